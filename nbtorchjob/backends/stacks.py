"""What a job's ranks are doing now: their stacks, added to the job's state, and profiles of one rank.

Both are requested from the nodes; a profile becomes a file, and its report is computed from that.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtorchjob.backends.base import Backend, Talks, able
from nbtorchjob.backends.talk import MOST
from nbtorchjob.errors import JobEndedError, NBTorchJobError, ProfileError, SpecError
from nbtorchjob.runtime.ask.questions import RECORD_BYTES
from nbtorchjob.runtime.facts.samples import RUNS, RankSample, Thread
from nbtorchjob.runtime.look.profiler import AWAY, LONGEST_S, TOLD, TRACE, TURN_S
from nbtorchjob.runtime.look.profiling import ENDING_S, MOST_WRITTEN
from nbtorchjob.state import JobState, apply
from nbtorchjob.state.diagnosis.seen import place, users_frame
from nbtorchjob.state.facts.events import Event, Sampled
from nbtorchjob.state.facts.factlines import UNREADABLE, believed
from nbtorchjob.state.spent import marked, spent
from nbtorchjob.state.text.stacks import STATES, MemoryProfile, Profile, TensorMemory
from nbtorchjob.text.words import line

if TYPE_CHECKING:
    from nbtorchjob.state.text.stacks import Stacks

_LOOK_S = 10.0
_SPARE_S, _LEAST_S = 2.0, 1.0  # of the timeout: what the other nodes don't get, and what they get at least
_MOST_MISSED = 64  # nodes that are asked directly, as they didn't answer the one that gathers
_UNHEARD = "it didn't answer the node that asked all others"


def ask(backend: Backend, state: JobState, timeout: float) -> Stacks:
    """Return the current stacks of a job's ranks; if it has ended or doesn't answer, the last known ones.

    If there are many nodes, one is asked and gathers the others' answers. Then only those that didn't answer
    it are asked directly.
    """
    from nbtorchjob.state.text.stacks import Stacks  # late: most commands don't need it

    answers = _Answers(able(backend, Talks, "stacks", state.info.address), state, timeout)
    try:
        lead = next((index for index, node in sorted(state.nodes.items()) if node.life.running), None)
        if len(state.nodes) <= MOST or lead is None or not answers.gather(lead):
            answers.ask(None)
    except JobEndedError:
        pass  # the last known stacks are shown, and marked as such
    # A state keeps the samples of few nodes for long, but this answer has those of all nodes.
    state = replace(answers.state, samples={**answers.state.samples, **answers.samples})
    return Stacks(state, answers.trouble, asked=bool(answers.samples), time=time.time())


class _Answers:
    """The nodes' answers so far."""

    def __init__(self, backend: Talks, state: JobState, timeout: float) -> None:
        self.state = state
        self.samples: dict[int, Sampled] = {}
        self.trouble: dict[int, str] = {}
        self._backend = backend
        self._timeout = timeout
        self._threads: dict[str, tuple[Thread, ...]] = {}  # by the JSON that they were sent as

    def ask(self, nodes: Sequence[int] | None) -> None:
        """Ask all nodes, or only ``nodes``, for their own samples."""
        question = {"question": "sample"}
        for answer in self._backend.ask(self.state.info.address, question, nodes, timeout=self._timeout):
            outcomes = [self._take(record) for record in answer.records]
            if answer.trouble or not any(outcomes):
                self.trouble[answer.node] = answer.trouble or "it reported nothing about its ranks"

    def gather(self, lead: int) -> bool:
        """Ask one node for all nodes' samples, then those that it missed; False if it can't gather them."""
        question = {"question": "sample", "all": max(_LEAST_S, self._timeout - _SPARE_S)}
        (answer,) = self._backend.ask(self.state.info.address, question, [lead], timeout=self._timeout)
        if not any(record.get("gathers") for record in answer.records):
            return False
        for record in answer.records:
            self._take(_unpacked(record) if "packed" in record else record)
        alone = [index for index, node in self.state.nodes.items() if node.life.running]
        missed = sorted({*range(self.state.info.nodes[0]), *alone} - {*self.samples})
        self.trouble = dict.fromkeys(missed[_MOST_MISSED:], _UNHEARD)
        if missed:
            self.ask(missed[:_MOST_MISSED])
        return True

    def _take(self, record: dict[str, Any]) -> bool:
        fact = self._fact(record)
        if not isinstance(fact, Sampled):
            return False
        self.state = apply(self.state, fact)
        self.samples[fact.node] = fact
        return True

    def _fact(self, record: dict[str, Any]) -> Event | None:
        """Return a record's fact; many ranks share the same few stacks, and each of these is read once."""
        samples = record.get("samples") if isinstance(record, dict) else None  # a node may send anything
        if not isinstance(samples, list) or not all(isinstance(sample, dict) for sample in samples):
            return believed(record)
        fact = believed({**record, "samples": [{**sample, "threads": []} for sample in samples]})
        if not isinstance(fact, Sampled):
            return fact
        whole = []
        for sample, sample_record in zip(fact.samples, samples, strict=True):
            text = json.dumps(sample_record.get("threads"))
            if text not in self._threads:
                sample_fact = believed({**record, "samples": [sample_record]})
                if not isinstance(sample_fact, Sampled):
                    return sample_fact
                self._threads[text] = sample_fact.samples[0].threads
            whole.append(replace(sample, threads=self._threads[text]))
        return replace(fact, samples=tuple(whole))


def _unpacked(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record that one node passed on for another; {} if it isn't one, or is too long."""
    try:
        data = zlib.decompressobj().decompress(base64.b64decode(record["packed"]), RECORD_BYTES)
        report = json.loads(data)
    except (ValueError, TypeError, zlib.error, RecursionError):
        return {}
    return report if isinstance(report, dict) and report.get("node") == record.get("of") else {}


def look(backend: Backend, name: str) -> None:
    """Have a job's nodes report what their ranks are doing, which becomes a fact of the job.

    Raises ``NBTorchJobError`` if none of them answers.
    """
    answers = ask(backend, backend.snapshot(name), _LOOK_S)
    if not answers.asked:
        why = next(iter(answers.trouble.values()), "the job has ended")
        raise NBTorchJobError(f"{answers.state.info.name} reported nothing about its ranks: {why}")


_PROFILE_SPARE_S = (
    2 * TURN_S + ENDING_S + 20.0
)  # on top of a profile's seconds, for it to begin and to be transferred
_MAX_LINE = 300
_LEVEL = 6  # of compression, as the node's
_MOST = 1 << 63  # nanoseconds since the epoch, and bytes


def take_profile(backend: Backend, state: JobState, rank: int, seconds: float, folder: Path) -> Profile:
    """Profile a rank; write its trace to ``folder``, and return where its time went.

    Raises ``ProfileError`` if that fails, and ``JobEndedError``.
    """
    records = _records(backend, state, rank, seconds, folder, memory=False)
    with _reading(rank):
        record = _record(records)
        trace = marked(json.loads(_unpacked_profile(_joined(records, TRACE))), record)
        breakdown = spent(record, trace, state.info.sources)
        content = gzip.compress(json.dumps(trace).encode(), _LEVEL)
    return Profile(rank, _write_new(folder, state, rank, ".trace.json.gz", content), breakdown)


def take_memory_profile(
    backend: Backend, state: JobState, rank: int, seconds: float, folder: Path
) -> MemoryProfile:
    """Record the memory of a rank's accelerator; write torch's snapshot to ``folder``.

    Raises as ``take_profile`` does. The snapshot is a pickle: reading it is left to people who trust the job.
    """
    records = _records(backend, state, rank, seconds, folder, memory=True)
    with _reading(rank):
        snapshot, record = _unpacked_profile(_joined(records, TRACE)), _record(records)
        usages = tuple(TensorMemory(*map(int, amounts)) for amounts in record["held"])
        duration, events = float(record["asked"]), int(record["events"])
    path = _write_new(folder, state, rank, ".memory.pickle", snapshot)
    return MemoryProfile(rank, path, duration, events, usages)


def check_profile(seconds: float, folder: Path) -> None:
    """Raise ``SpecError`` for seconds that can't be profiled, or a folder that can't be written to."""
    if not 0 < seconds <= LONGEST_S:
        raise SpecError("seconds", seconds, f"more than 0, and {LONGEST_S:.0f} at most")
    if not folder.is_dir():
        raise SpecError("folder", str(folder), "a folder that exists")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SpecError("folder", str(folder), "a folder that you may write to")


def _records(
    backend: Backend, state: JobState, rank: int, seconds: float, folder: Path, *, memory: bool
) -> Sequence[Mapping[str, Any]]:
    """Return the records that the rank's node answers."""
    check_profile(seconds, folder)
    if state.phase.terminal:
        raise JobEndedError(f"{state.info.name} has ended: its ranks can't be profiled any more")
    node, sample = _sample_of(backend, state, rank)
    if sample.state != RUNS:
        raise _refused(rank, ", ".join(filter(None, (STATES.get(sample.state, sample.state), sample.note))))
    question = {"question": "profile", "rank": rank, "seconds": seconds, "memory": memory}
    (answer,) = able(backend, Talks, "profile", state.info.address).ask(
        state.info.address, question, nodes=[node], timeout=seconds + _PROFILE_SPARE_S
    )
    for trouble in (*(record.get("trouble") for record in answer.records), answer.trouble):
        if trouble:
            if str(trouble).startswith(AWAY):
                # Where the rank was when it was sampled
                frames = sample.threads[0].frames if sample.threads else ()
                frame = users_frame(frames, state.info.sources)
                where = f": it was in {place(frame, state.info.sources)}" if frame is not None else ""
            else:
                where = ""
            raise _refused(rank, f"{trouble}{where}")
    return answer.records


def _sample_of(backend: Backend, state: JobState, rank: int) -> tuple[int, RankSample]:
    """Return the node that has a rank, and the rank's current sample."""
    nodes = [index for index, node in state.nodes.items() if node.round == state.round and rank in node.ranks]
    troubles = []
    for answer in able(backend, Talks, "profile", state.info.address).ask(
        state.info.address, {"question": "sample"}, nodes=nodes or None, timeout=_LOOK_S
    ):
        facts = [fact for record in answer.records if isinstance(fact := believed(record), Sampled)]
        for sample in (sample for fact in facts for sample in fact.samples if sample.rank == rank):
            return answer.node, sample
        troubles += [f"node {answer.node}: {answer.trouble}"] if answer.trouble else []
    raise _refused(rank, "; ".join(troubles) or "no node has it")


def _refused(rank: int, why: str) -> ProfileError:
    return ProfileError(f"rank {rank} can't be profiled: {line(why, _MAX_LINE)}")


@contextmanager
def _reading(rank: int) -> Iterator[None]:
    """Raise ``ProfileError`` for a rank's records that are no profile, whatever they are instead."""
    try:
        yield
    except (*UNREADABLE, LookupError, ArithmeticError, zlib.error) as exc:
        why = line(f"{type(exc).__name__}: {exc}", _MAX_LINE)
        raise ProfileError(f"the profile that rank {rank} sent can't be read: {why}") from exc


def _record(records: Iterable[Mapping[str, Any]]) -> Any:
    return json.loads(
        _unpacked_profile(_joined(records, TOLD)),
        parse_int=_whole,
        parse_float=_finite,
        parse_constant=_finite,
    )


def _whole(text: str) -> int:
    if abs(number := int(text)) >= _MOST:
        raise ValueError(f"it holds a number of {len(text)} digits")
    return number


def _finite(text: str) -> float:
    if not abs(number := float(text)) < _MOST:
        raise ValueError(f"it holds {text}")
    return number


def _joined(records: Iterable[Mapping[str, Any]], name: str) -> bytes:
    return b"".join(base64.b64decode(record[name]) for record in records if name in record)


def _unpacked_profile(pressed: bytes) -> bytes:
    unpack = zlib.decompressobj(16 + zlib.MAX_WBITS)
    whole = unpack.decompress(pressed, MOST_WRITTEN)
    if not unpack.eof:
        raise ValueError("it is too long, or cut off")
    return whole


def _write_new(folder: Path, state: JobState, rank: int, kind: str, content: bytes) -> Path:
    """Write a new file; earlier profiles stay."""
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
