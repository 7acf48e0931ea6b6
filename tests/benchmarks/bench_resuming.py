"""What saving costs a training: its steps with checkpoints written beside it, and without.

Two ranks train a model of 1.6 million parameters with AdamW, whose checkpoint is 19 MB. *waited for* is what
a loop pays that goes on once a checkpoint is written.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial

import cloudpickle

from nbtorchjob import Elastic, submit
from tests.benchmarks.measure import Row, in_turn, medians, own_state, show, spread

# As in a notebook, whose functions no node can import.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROUNDS, STEPS, EVERY = 5, 200, 50
WIDTH, BATCH = 512, 256


def train(every: "int | None", waits: bool, folder: str) -> float:
    """Return the seconds of a training's steps, without those of the last save."""
    import torch
    from torch import distributed, nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader

    from nbtorchjob import GlobalBatchSampler, ResumableTraining

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(STEPS * BATCH // 4, WIDTH)
    sampler = GlobalBatchSampler(data, BATCH)
    loader = DataLoader(data, batch_sampler=sampler)
    training = ResumableTraining(model, optimizer, sampler=sampler, every=every, folder=folder)
    for _ in training.epochs(4):
        for x in training.batches(loader):
            loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if training.step == 0:  # the first step allocates
                began = time.perf_counter()
            if waits and (training.step + 1) % EVERY == 0:
                training.save()
        took = time.perf_counter() - began
    return took


def seconds(every: "int | None", waits: bool) -> float:
    """Return what one job measures."""
    with tempfile.TemporaryDirectory() as folder:
        return submit(train, every, waits, folder, spec=Elastic(nproc_per_node=2)).result(300)


def main() -> None:
    """Print the table."""
    subjects: dict[str, Callable[[], float]] = {
        "no saving": partial(seconds, None, False),
        f"beside the training, every {EVERY} steps": partial(seconds, EVERY, False),
        f"waited for, every {EVERY} steps": partial(seconds, None, True),
    }
    with own_state():
        taken = in_turn(subjects, ROUNDS)
    base, beside, waited = medians(taken).values()
    rows = [
        Row("no saving", base / STEPS, base / STEPS),
        Row("beside the training", beside / STEPS, base / STEPS, goal=1.05),
        Row("waited for", waited / STEPS, base / STEPS, peer=True),
    ]
    show(f"A step, with a checkpoint every {EVERY} steps", "no saving", rows, spread(taken))


if __name__ == "__main__":
    main()
