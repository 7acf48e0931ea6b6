"""Jobs with handwritten folders, one for each state that a card can show; nothing runs."""

import math
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from nbtorchjob.backends.local import directory
from nbtorchjob.machine.processes import Process
from nbtorchjob.runtime.facts import append
from nbtorchjob.runtime.facts.errors import Error, Frame
from nbtorchjob.runtime.facts.samples import RUNS, Collective, Group, RankSample, Thread
from nbtorchjob.runtime.store.stream import TIMES
from nbtorchjob.state import JobInfo
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts import factlines

CELL = """import torch, torch.distributed as dist
dist.init_process_group("gloo")
def step(x, n):
    if dist.get_rank() == 1:
        x = x.view(32, n)
    return x.sum()
total = 0.0
for number in range(4):
    total += step(torch.ones(30, 10), 10)
    dist.barrier()
"""
SWAPPED = """from nbtorchjob import report, swap_point
lr = 1e-3
smoothing = 0.0
def loss_fn(out, y):
    return F.cross_entropy(out, y, label_smoothing=smoothing)
def train(batch):
    return lr
for epoch in range(40):
    train(epoch)
    swap_point()
"""
_SOURCES = {"<cell>": ("Cell In[12]", CELL)}
_WAIT = Frame("/site-packages/torch/distributed/distributed_c10d.py", 3252, "all_reduce", "work.wait()")


def _job(name: str, facts: Iterable[ev.Event], log: str = "", ended: bool = False, **info: Any) -> str:
    """Write a job's folder; return its name."""
    job = directory.create(directory.jobs_dir(), JobInfo(name, **info), lambda folder: None)
    job.claim(Process.of(os.getpid()))
    for fact in facts:
        append(str(job.events), factlines.to_json(fact), once=True)
    if log:
        path = job.rank_log(0, 0, 0)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(log)
        path.with_name(path.name + TIMES).write_text(f"{len(log.encode())} {time.time()}\n")
    if ended:
        (job.path / "supervisor.json").unlink()
        job.claim(Process(os.getpid(), 1, "another boot"))
    return name


def _begun(at: float, nodes: int = 1, per_node: int = 2, round: int = 0) -> Iterator[ev.Event]:
    for node in range(nodes):
        if not round:
            yield ev.NodeStarted(at, node, f"gpu-{node}", 100 + node)
        ranks = tuple(range(node * per_node, (node + 1) * per_node))
        yield ev.WorkersStarted(at + 0.5, node, 0, round, ranks, nodes * per_node)


def _reports(
    at: float, many: int, total: int, ranks: int = 2, round: int = 0, first: int = 0, every: float = 0.5
) -> Iterator[ev.Event]:
    """Yield reports of a falling loss, epoch by epoch."""
    for rank in range(ranks):
        for n in range(many):
            loss = 0.2 + 1.8 * math.exp(-(first + n) / 8)
            values = {"epoch": first + n, "epochs": total, "loss": loss, "accuracy": 0.95 - loss / 2.5}
            yield ev.Reported(at + n * every, rank, round, n, values if rank == 0 else {"epoch": first + n})


def _swapped(at: float) -> Iterator[ev.Event]:
    """Yield reports of a falling loss, and two swaps of its code."""
    for n in range(28):
        loss = 1.2 + 0.8 * math.exp(-n / 3)
        loss -= 0.6 * (1 - math.exp(-max(0, n - 10) / 3)) + 0.35 * (1 - math.exp(-max(0, n - 19) / 3))
        rate = {} if n <= 10 else {"lr": 3e-4 if n <= 19 else 1e-4}
        yield ev.Reported(
            at + n * 300, 0, 0, n, {"epoch": n, "epochs": 40, "loss": loss, "accuracy": 1 - loss / 3, **rate}
        )
    texts = {
        10: ("def loss_fn(out, y):\n    return 0\nlr = 3e-4", {"loss_fn": "replaced", "lr": "replaced"}),
        19: ("lr = 1e-4", {"lr": "replaced"}),
    }
    for number, (n, (text, names)) in enumerate(texts.items(), 1):
        when, step = at + n * 300 + 10, {"epoch": float(n), "step": float(n)}
        by = "ada, finetune.ipynb, Cell In[4]"
        yield ev.Swapped(
            when, 0, 0, number, f"s{n}", by, text, f"+{text}", names, "swap_point()", n + 1, metrics=step
        )


def _log(many: int) -> str:
    return "".join(
        f"epoch {n}  loss {0.2 + 1.8 * math.exp(-n / 8):.4f}  accuracy {0.87 - 0.72 * math.exp(-n / 8):.4f}\n"
        for n in range(many)
    )


def _ended(at: float, code: int = 0, nodes: int = 1) -> Iterator[ev.Event]:
    yield from (ev.NodeExited(at, node, code) for node in range(nodes))
    yield ev.Closed(at + 0.2)


def _hung(at: float, now: float, nodes: int, per_node: int, odd: int) -> Iterator[ev.Event]:
    """Yield the nodes' samples of ranks that wait for the ``odd`` one."""
    call = Collective(417, "all_reduce", at, False, ((1024,),), ("float32",))
    everybody = tuple(range(nodes * per_node))
    waits = (Frame("<cell>", 9, "<module>", "dist.all_reduce(loss)"), _WAIT)
    reads = (Frame("<cell>", 8, "<module>", "batch = next(loader)"),)
    for node in range(nodes):
        samples = []
        for rank in range(node * per_node, (node + 1) * per_node):
            collective = replace(call, seq=416, done=True) if rank == odd else call
            group = Group("0", everybody, (collective,))
            thread = Thread("main", reads if rank == odd else waits)
            samples.append(RankSample(rank, RUNS, 100 + rank, (thread,), (group,)))
        yield ev.Sampled(now, node, 0, "quiet", tuple(samples))


def write(notebook: str = "") -> dict[str, str]:
    """Write all jobs; return, for each state, the expression that shows it in a notebook."""
    now = time.time()
    common: dict[str, Any] = {
        "label": "cell",
        "ships": "train, model (3.4 KiB)",
        "sources": _SOURCES,
        "notebook": notebook,
    }
    two = {**common, "nproc_per_node": 2}
    wait = "waits for stuck: hanging for 8 min, holds 2 of 2 places"
    error = Error(
        *("RuntimeError", "shape '[32, 10]' is invalid for input of size 300"),
        (
            Frame("<cell>", 9, "<module>", variables=(("number", "3"), ("total", "900.0"))),
            Frame("<cell>", 5, "step", variables=(("n", "10"), ("x", "float32[30, 10] cpu, finite"))),
        ),
        time=now - 60.5,
    )
    jobs = {
        "waiting": _job(
            "eval", [ev.Waiting(now, wait, holder="stuck", stuck=True)], created=now - 532, **two
        ),
        "running": _job(
            "digits",
            [*_begun(now - 7810), *_reports(now - 7500, 26, 40, every=300)],
            _log(26),
            created=now - 7812,
            **two,
        ),
        "swapped": _job(
            "finetune",
            [*_begun(now - 9310), *_swapped(now - 9300)],
            _log(28),
            created=now - 9312,
            **{**two, "sources": {"<cell>": ("Cell In[3]", SWAPPED)}},
        ),
        "hung": _job(
            "stuck",
            [
                *_begun(now - 7810),
                *_reports(now - 7500, 20, 40, every=300),
                *_hung(now - 730, now, 1, 2, 1),
            ],
            _log(20),
            created=now - 7812,
            **two,
        ),
        "debugging": _job(
            "sizes",
            [
                *_begun(now - 3800),
                ev.RankStops(now - 3700, 1, 0, 0, 5, "step", "<cell>", ev.BREAKPOINT),
            ],
            created=now - 3802,
            **two,
        ),
        "failed": _job(
            "boom",
            [
                *_begun(now - 62),
                ev.RankFailed(now - 60.5, 0, 1, 0, 0, error),
                *_ended(now - 60, 1),
            ],
            _log(4),
            ended=True,
            created=now - 63,
            **two,
        ),
        "succeeded": _job(
            "baseline",
            [
                *_begun(now - 100),
                *_reports(now - 99, 40, 40),
                ev.ValueReady(now - 79, 0, 0, "value", 3500),
                *_ended(now - 78),
            ],
            _log(40),
            ended=True,
            created=now - 101,
            **two,
        ),
        "elastic": _job(
            "elastic",
            [
                *_begun(now - 10820, 2, 1),
                *_reports(now - 10800, 24, 40, every=300),
                ev.NodeExited(now - 3500, 1, signal=9),
                *_begun(now - 3450, 1, 1, round=1),
                *_reports(now - 2250, 8, 40, 1, 1, first=15, every=300),
            ],
            _log(24),
            created=now - 10822,
            **{**common, "nodes": (1, 2), "max_restarts": 3},
        ),
        "ranks": _job(
            "pretrain",
            [
                *_begun(now - 7300, 8, 32),
                *(
                    ev.Reported(now - 7200 + 1000 * n, rank, 0, n, {"step": n, "loss": 3 / (n + 1)})
                    for rank in range(256)
                    for n in range(4)
                ),
                *_hung(now - 3800, now, 8, 32, 101),
            ],
            created=now - 7302,
            **{**common, "nodes": (8, 8), "nproc_per_node": 32},
        ),
    }
    for number, (lr, width) in enumerate(((lr, w) for lr in (0.001, 0.01, 0.1, 1.0) for w in (1, 4)), 1):
        fails = lr == 1.0 and width == 4
        curve = [
            ev.Reported(
                *(now - 50 + n / 10, 0, 0, n),
                {
                    "step": n,
                    "loss": abs(math.log10(lr) + 2) + 2 * math.exp(-n * lr * width),
                    "accuracy": 0.95 - abs(math.log10(lr) + 2) / 5 - 0.3 * math.exp(-n * lr * width),
                },
            )
            for n in range(20)
        ]
        nan = Error("ValueError", "loss is NaN at lr=1.0", time=now - 47)
        _job(
            f"sw-r{number}",
            [
                *_begun(now - 52, 1, 1),
                *curve,
                *([ev.RankFailed(now - 47, 0, 0, 0, 0, nan)] if fails else []),
                *_ended(now - 46, int(fails)),
            ],
            ended=True,
            created=now - 53,
            **{
                **common,
                "label": "train",
                "group": "sw",
                "number": number,
                "given": {"lr": f"{lr:g}", "width": str(width)},
            },
        )
    shown = {state: f"nbtorchjob.attach({name!r})" for state, name in jobs.items()}
    return {**shown, "sweep": "%torchjob attach sw"}
