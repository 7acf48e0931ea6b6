"""A profile of a rank: its node is asked for one, and what comes of it becomes a file, and is read."""

from __future__ import annotations

import base64
import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nbtorchjob.backends.base import Backend, Talks, able
from nbtorchjob.errors import JobEndedError, ProfileError, SpecError
from nbtorchjob.runtime.facts.samples import RUNS, RankSample
from nbtorchjob.runtime.look.profiler import AWAY, LONGEST_S, TOLD, TRACE, TURN_S
from nbtorchjob.runtime.look.profiling import ENDING_S, MOST_WRITTEN
from nbtorchjob.state import JobState
from nbtorchjob.state.diagnosis.standing import place, users_frame
from nbtorchjob.state.events import UNREADABLE, Sampled, believed
from nbtorchjob.state.spent import marked, spent
from nbtorchjob.state.text.stacks import STATES, Held, MemoryProfile, Profile
from nbtorchjob.text.words import line

_LOOK_S = 10.0
_SPARE_S = 2 * TURN_S + ENDING_S + 20.0  # beside the seconds of a profile: for it to begin, and to come home
_MAX_LINE = 300
_LEVEL = 6  # of compression, as the node's
_MOST = 1 << 63  # nanoseconds since the epoch, and bytes


def take(backend: Backend, state: JobState, rank: int, seconds: float, folder: Path) -> Profile:
    """Have a rank profiled; write its trace to ``folder``, and return where its time went.

    Raises ``ProfileError`` where it can't be, and ``JobEndedError``.
    """
    records = _records(backend, state, rank, seconds, folder, memory=False)
    with _reading(rank):
        record = _record(records)
        trace = marked(json.loads(_unpacked(_joined(records, TRACE))), record)
        breakdown = spent(record, trace, state.info.sources)
        content = gzip.compress(json.dumps(trace).encode(), _LEVEL)
    return Profile(rank, _written(folder, state, rank, ".trace.json.gz", content), breakdown)


def take_memory(backend: Backend, state: JobState, rank: int, seconds: float, folder: Path) -> MemoryProfile:
    """Have a rank's accelerator's memory recorded; write torch's snapshot to ``folder``.

    Raises as ``take`` does. The snapshot is a pickle, which is left to who trusts the job.
    """
    records = _records(backend, state, rank, seconds, folder, memory=True)
    with _reading(rank):
        snapshot, record = _unpacked(_joined(records, TRACE)), _record(records)
        held = tuple(Held(*map(int, amounts)) for amounts in record["held"])
        asked, events = float(record["asked"]), int(record["events"])
    path = _written(folder, state, rank, ".memory.pickle", snapshot)
    return MemoryProfile(rank, path, asked, events, held)


def check(seconds: float, folder: Path) -> None:
    """Raise ``SpecError`` for what can't be profiled, or written, before anything is."""
    if not 0 < seconds <= LONGEST_S:
        raise SpecError("seconds", seconds, f"more than 0, and {LONGEST_S:.0f} at most")
    if not folder.is_dir():
        raise SpecError("folder", str(folder), "a folder that exists")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SpecError("folder", str(folder), "a folder that you may write to")


def _records(
    backend: Backend, state: JobState, rank: int, seconds: float, folder: Path, *, memory: bool
) -> Sequence[Mapping[str, Any]]:
    """Return what the rank's node answers."""
    check(seconds, folder)
    if state.phase.terminal:
        raise JobEndedError(f"{state.info.name} has ended: its ranks can't be profiled any more")
    node, sample = _sample_of(backend, state, rank)
    if sample.state != RUNS:
        raise _refused(rank, ", ".join(filter(None, (STATES.get(sample.state, sample.state), sample.note))))
    question = {"question": "profile", "rank": rank, "seconds": seconds, "memory": memory}
    (answer,) = able(backend, Talks, "profile", state.info.address).ask(
        state.info.address, question, nodes=[node], timeout=seconds + _SPARE_S
    )
    for trouble in (*(record.get("trouble") for record in answer.records), answer.trouble):
        if trouble:
            where = _where(sample, state) if str(trouble).startswith(AWAY) else ""
            raise _refused(rank, f"{trouble}{where}")
    return answer.records


def _sample_of(backend: Backend, state: JobState, rank: int) -> tuple[int, RankSample]:
    """Return the node that has a rank, and what that does just now."""
    known = [index for index, node in state.nodes.items() if node.round == state.round and rank in node.ranks]
    troubles = []
    for answer in able(backend, Talks, "profile", state.info.address).ask(
        state.info.address, {"question": "sample"}, nodes=known or None, timeout=_LOOK_S
    ):
        facts = [fact for record in answer.records if isinstance(fact := believed(record), Sampled)]
        for sample in (sample for fact in facts for sample in fact.samples if sample.rank == rank):
            return answer.node, sample
        troubles += [f"node {answer.node}: {answer.trouble}"] if answer.trouble else []
    raise _refused(rank, "; ".join(troubles) or "no node has it")


def _where(sample: RankSample, state: JobState) -> str:
    """Return where a rank was when it was looked at."""
    frames = sample.threads[0].frames if sample.threads else ()
    frame = users_frame(frames, state.info.sources)
    return f": it was in {place(frame, state.info.sources)}" if frame is not None else ""


def _refused(rank: int, why: str) -> ProfileError:
    return ProfileError(f"rank {rank} can't be profiled: {line(why, _MAX_LINE)}")


@contextmanager
def _reading(rank: int) -> Iterator[None]:
    """Tell that what a rank told is no profile, whatever it is instead."""
    try:
        yield
    except (*UNREADABLE, LookupError, ArithmeticError, zlib.error) as exc:
        why = line(f"{type(exc).__name__}: {exc}", _MAX_LINE)
        raise ProfileError(f"what rank {rank} told of its profile can't be read: {why}") from exc


def _record(records: Iterable[Mapping[str, Any]]) -> Any:
    return json.loads(
        _unpacked(_joined(records, TOLD)), parse_int=_whole, parse_float=_finite, parse_constant=_finite
    )


def _whole(text: str) -> int:
    if abs(number := int(text)) >= _MOST:
        raise ValueError(f"no rank tells a number of {len(text)} digits")
    return number


def _finite(text: str) -> float:
    if not abs(number := float(text)) < _MOST:
        raise ValueError(f"no rank tells {text}")
    return number


def _joined(records: Iterable[Mapping[str, Any]], name: str) -> bytes:
    return b"".join(base64.b64decode(record[name]) for record in records if name in record)


def _unpacked(pressed: bytes) -> bytes:
    unpack = zlib.decompressobj(16 + zlib.MAX_WBITS)
    whole = unpack.decompress(pressed, MOST_WRITTEN)
    if not unpack.eof:
        raise ValueError("it is too long, or cut off")
    return whole


def _written(folder: Path, state: JobState, rank: int, kind: str, content: bytes) -> Path:
    """Write a new file: an earlier profile stays."""
    number = 1
    while True:
        more = f"-{number}" if number > 1 else ""
        path = folder / f"{state.info.name}-rank-{rank}{more}{kind}"
        try:
            with path.open("xb") as file:
                file.write(content)
            return path
        except FileExistsError:
            number += 1
        except OSError as exc:
            raise ProfileError(f"the profile can't be written to {path}: {exc.strerror}") from exc
