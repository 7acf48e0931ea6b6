"""What several ranks of a job wrote: as lines in the order of their times, or as files of an archive."""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Iterator
from itertools import chain
from typing import Any

from nbtorchjob.backends.base import Backend
from nbtorchjob.state import JobState, loglines
from nbtorchjob.state.loglines import LogLine

_PIECE_BYTES = 1 << 18  # of an archive, at a time


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
    return frozenset((rank, worker.round) for worker in workers for rank in worker.ranks)


def archive(backend: Backend, state: JobState, *, times: bool = False) -> Iterator[bytes]:
    """Yield a zip archive in pieces: ``JOB/rank-0.log`` and so on, of all ranks that have written.

    As they were written, or with ``times`` line by line as :func:`lines` yields them, each with its time in
    front. Little of it is in memory at any time.
    """
    taken = _Taken()
    with zipfile.ZipFile(taken, "w") as file:
        for rank in _all_ranks(state):
            pieces = _stamped(backend, state, rank) if times else backend.log(state.info.address, rank)
            first = next(pieces, b"")
            if not first:
                continue
            with file.open(_entry(f"{state.info.name}/rank-{rank}.log"), "w", force_zip64=True) as entry:
                for piece in chain((first,), pieces):
                    entry.write(piece)
                    if taken.size >= _PIECE_BYTES:
                        yield taken.take()
    yield taken.take()


def _all_ranks(state: JobState) -> list[int]:
    """Return the ranks that the job may have; what others submitted doesn't say how many."""
    info = state.info
    told = (rank for node in state.nodes.values() for worker in node.workers for rank in worker.ranks)
    return sorted({*range(info.nodes[1] * info.nproc_per_node), *told})


def _stamped(backend: Backend, state: JobState, rank: int) -> Iterator[bytes]:
    return (line.shown(time=True, rank=False) for line in lines(backend, state, rank=rank))


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, time.localtime()[:6])
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o600 << 16
    return entry


class _Taken(io.RawIOBase):
    """Holds what a zip file writes until it is taken; it can't seek, and so is written in one go."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self.size += len(part)
        return len(part)

    def take(self) -> bytes:
        """Return what was written, and forget it."""
        parts, self._parts, self.size = self._parts, [], 0
        return b"".join(parts)
