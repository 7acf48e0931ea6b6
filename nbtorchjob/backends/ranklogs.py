"""What several ranks of a job wrote: as lines in the order of their times, or as files of an archive."""

from __future__ import annotations

from collections.abc import Iterator

from nbtorchjob.backends import zipped
from nbtorchjob.backends.base import Backend
from nbtorchjob.state import JobState, loglines
from nbtorchjob.state.loglines import LogLine


def lines(
    backend: Backend, state: JobState, *, rank: int | None = None, node: int | None = None
) -> Iterator[LogLine]:
    """Yield what a rank wrote, or all ranks on a node, or all there are, in the order of the lines' times.

    ``state`` is what was known of the job before this: of one that goes on, a line that has no end yet is
    left out.
    """
    places = None if node is None else written_on(state, node)
    if places is not None:
        ranks = sorted({rank for rank, _ in places})
    else:
        ranks = _all_ranks(state) if rank is None else [rank]
    logs = []
    for number, chunks in zip(ranks, backend.chunks(state.info.address, ranks), strict=True):
        there = (chunk for chunk in chunks if places is None or (chunk.rank, chunk.round) in places)
        logs.append(loglines.lines(number, there, ended=state.phase.terminal))
    return loglines.merged(logs)


def written_on(state: JobState, node: int) -> frozenset[tuple[int, int]]:
    """Return the ranks that a node had, each with the round."""
    workers = state.nodes[node].workers if node in state.nodes else ()
    had = {worker.round: worker.ranks for worker in workers}
    turns = ((turn.round, {*turn.ranks} & {*had.get(turn.base, ())}) for turn in state.turns)
    return frozenset((rank, round_) for round_, ranks in (*had.items(), *turns) for rank in ranks)


def archive(backend: Backend, state: JobState, *, times: bool = False) -> Iterator[bytes]:
    """Return a zip archive in pieces: ``JOB/rank-0.log`` and so on, of all ranks that have written.

    As they were written, or with ``times`` line by line as :func:`lines` yields them, each with its time in
    front. Little of it is in memory at any time.
    """
    return zipped.archive(
        (
            f"{state.info.name}/rank-{rank}.log",
            zipped.PLAIN,
            filter(None, _stamped(backend, state, rank) if times else backend.log(state.info.address, rank)),
        )
        for rank in _all_ranks(state)
    )


def _all_ranks(state: JobState) -> list[int]:
    """Return the ranks that the job may have; what others submitted doesn't say how many."""
    info = state.info
    told = (rank for node in state.nodes.values() for worker in node.workers for rank in worker.ranks)
    return sorted({*range(info.nodes[1] * info.nproc_per_node), *told})


def _stamped(backend: Backend, state: JobState, rank: int) -> Iterator[bytes]:
    return (line.shown(time=True, rank=False) for line in lines(backend, state, rank=rank))
