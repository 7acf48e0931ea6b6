"""A small training that may be disturbed, and the losses of its steps."""

import sys
from pathlib import Path

import cloudpickle

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SAMPLES, BATCH, EPOCHS = 53, 12, 3  # an uneven last batch of 5
STEPS = 15


def train(kind="plain", dtype="float64", *, log="", folder=None, stop=0, every=4, pause=0.0, **options):
    """Train, and append each step's global loss to ``log``; kill the last rank once, in step ``stop``."""
    import os
    import signal
    import time

    import torch
    from torch import distributed, nn
    from torch.utils.data import DataLoader, Dataset

    from nbtorchjob import GlobalBatchSampler, ResumableTraining, checkpoint_dir, report

    class Noisy(Dataset):  # type: ignore[misc]
        def __init__(self):
            generator = torch.Generator().manual_seed(7)
            self.x = torch.randn(SAMPLES, 6, generator=generator)
            self.y = torch.randn(SAMPLES, 1, generator=generator)

        def __len__(self):
            return SAMPLES

        def __getitem__(self, index):
            return self.x[index] + 0.1 * torch.randn(6), self.y[index]

    torch.set_default_dtype(getattr(torch, dtype))
    torch.set_num_threads(1)
    ranks = int(os.environ["WORLD_SIZE"])
    if kind != "plain":
        distributed.init_process_group("gloo")
    torch.manual_seed(1)
    dropout = 0.2 if options.get("microbatch_size") else 0.0
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1))
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    workers = options.pop("workers", 0)
    sampler = GlobalBatchSampler(range(SAMPLES), BATCH, seed=2, **options)
    loader = DataLoader(sampler.seeded(Noisy()), batch_sampler=sampler, num_workers=workers)
    training = ResumableTraining(
        model, optimizer, scheduler, sampler=sampler, every=every, folder=folder or checkpoint_dir() / "own"
    )
    begin, total = training.step, torch.zeros(())
    for _ in training.epochs(EPOCHS):
        for x, y in training.batches(loader):
            loss = nn.functional.mse_loss(model(x), y) * training.weight
            loss.backward()
            total += loss.detach() / ranks
            if not training.accumulated:
                continue
            optimizer.step()
            optimizer.zero_grad()
            if ranks > 1:
                distributed.all_reduce(total)
            if int(os.environ["RANK"]) == 0:
                with open(log or checkpoint_dir() / "log", "a") as file:
                    file.write(f"{training.step} {total.item()!r}\n")
            total = torch.zeros(())
            report(step=training.step)
            time.sleep(pause)
            if stop and begin < stop and training.step == stop - 1:
                training.save()
            if stop and begin < stop and training.step == stop and int(os.environ["RANK"]) == ranks - 1:
                os.kill(os.getpid(), signal.SIGKILL)
        scheduler.step()
    return begin


def curve(log):
    """Return the logged steps in their order, and the newest loss of each step."""
    lines = [line.split() for line in Path(log).read_text().splitlines()]
    return [int(step) for step, _ in lines], {int(step): float(loss) for step, loss in lines}
