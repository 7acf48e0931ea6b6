"""The cost of saving to a training: steps during which a checkpoint is written, and others of the same job.

Two ranks train a model of 1.6 million parameters with AdamW, and its checkpoint has 19 MB; on a machine with
a GPU, one rank trains 25 million there, with 300 MB. A checkpoint is written in every other stretch of steps.
*waited for* is the cost to a loop that goes on once its checkpoint is whole; *sharded* is the same model in
``fully_shard``, compared with steps of its own.
"""

import statistics
import sys
import tempfile

import cloudpickle

from nbtorchjob import Elastic, submit
from nbtorchjob.machine import processes
from tests.benchmarks.measure import Row, own_state, show

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

PAIRS, STRETCH = 10, 50
BESIDE, WAITED, SHARDED = HOW = ("beside the training", "waited for", "sharded")
# The width of a layer and the batch size: for two ranks on CPU cores, for one on a GPU.
SIZES = {"cpu": (512, 256), "cuda": (2048, 8192)}


def train(how: str, folder: str, device: str) -> "tuple[list[float], list[float]]":
    """Return the seconds of each stretch of steps without a save, and of each with one, in their order."""
    import time

    import torch
    from torch import distributed, nn
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader

    from nbtorchjob import GlobalBatchSampler, ResumableTraining

    torch.set_num_threads(1)
    width, batch = SIZES[device]
    distributed.init_process_group("gloo" if device == "cpu" else "nccl")
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(width, width), nn.ReLU())]
    plain = nn.Sequential(*layers).to(device)
    model = fully_shard(plain) if how == SHARDED else DistributedDataParallel(plain)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(2 * STRETCH * batch, width, device=device)  # an epoch is a pair of stretches
    sampler = GlobalBatchSampler(data, batch)
    # Fetch the rows together: on a GPU each row alone would take as long as a step.
    loader = DataLoader(range(len(data)), batch_sampler=sampler, collate_fn=lambda rows: data[rows])
    every = None if how == WAITED else 2 * STRETCH
    training = ResumableTraining(model, optimizer, sampler=sampler, every=every, folder=folder)
    ends = []

    def now() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    for _ in training.epochs(PAIRS + 1):
        for x in training.batches(loader):
            if training.step % STRETCH == 0:
                ends.append(now())
            if how == WAITED and (training.step + 1) % (2 * STRETCH) == 0:
                training.save()
            loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if training.step % (2 * STRETCH) == 2 * STRETCH - 1:
                # The save begins at the request for the next batch, and belongs to the stretch that follows.
                ends.append(now())
    # For each epoch: its begin, its middle, the end of its last step. The first epoch allocates memory.
    middles, lasts = ends[1::3], ends[2::3]
    with_save = [middle - last for last, middle in zip(lasts[:-1], middles[1:], strict=True)]
    without = [last - middle for middle, last in zip(middles[1:], lasts[1:], strict=True)]
    return without, with_save


def main() -> None:
    """Print the table."""
    device, ranks = ("cuda", 1) if processes.gpus() else ("cpu", 2)
    timings = {}
    with own_state():
        for how in HOW:
            with tempfile.TemporaryDirectory() as folder:
                job = submit(train, how, folder, device, spec=Elastic(nproc_per_node=ranks))
                timings[how] = job.result(900)
    # Compare neighbours: the speed of a machine differs from minute to minute.
    ratios = {how: [saved / free for free, saved in zip(*timings[how], strict=True)] for how in HOW}
    step = statistics.median(timings[BESIDE][0]) / STRETCH
    rows = [Row("no saving", step, step)]
    for how in HOW:
        goal = None if how == WAITED else 1.05
        rows.append(Row(how, step * statistics.median(ratios[how]), step, goal=goal, peer=how == WAITED))
    ranges = ", ".join(f"{how} {min(ratios[how]):.3f}-{max(ratios[how]):.3f}" for how in HOW)
    note = f"ratios, from-to: {ranges}"
    show(f"A step, with a checkpoint every {STRETCH} steps", "no saving", rows, note)


if __name__ == "__main__":
    main()
