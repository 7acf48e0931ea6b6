"""A user's typed code that uses the package: mypy and pyright check it, nothing runs it."""

from __future__ import annotations

from typing_extensions import assert_type

import nbtorchjob
from nbtorchjob import Elastic, Job, JobSpec, Retry, Runs, as_completed, attach, keep, submit, torchjob


def train(rows: list[float], lr: float = 0.1) -> float:
    nbtorchjob.report(loss=sum(rows) * lr)
    return lr


@torchjob(Elastic(nnodes=2))
def mean(rows: list[float]) -> float:
    return sum(rows) / len(rows)


@torchjob
def total(rows: list[float]) -> float:
    return sum(rows)


def use() -> None:
    spec = JobSpec(Elastic(nproc_per_node=2), retry=Retry(retries=1))
    job = submit(train, [1.0], lr=0.5, spec=spec)
    assert_type(job, Job[float])
    assert_type(job.result(timeout=5), float)
    assert_type(job.state.name, str)
    assert_type(mean([1.0]), float)
    assert_type(total([1.0]), float)
    runs = nbtorchjob.map(train, [{"lr": 0.1}], spec=spec)
    assert_type(runs, Runs[float])
    assert_type([run.name for run in as_completed(runs)], list[str])
    assert_type([state.phase.value for state in nbtorchjob.jobs()], list[str])
    with keep(spec, name="lab") as lab:
        assert_type(lab.run(train, [1.0]).result(), float)
    attach("train-2222").cancel()


def misuse() -> None:
    submit(train, [1.0], spec="two nodes")  # type: ignore[call-overload]
    JobSpec(Elastic(nnodes=2), backend=3)  # type: ignore[arg-type]
    mean("text")  # type: ignore[arg-type]
