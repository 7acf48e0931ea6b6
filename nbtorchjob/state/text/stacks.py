"""Where ranks are, and where a profiled rank's time or memory went, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from html import escape
from pathlib import Path
from typing import Any

from nbtorchjob.frozen import FrozenDataclass, cached_property
from nbtorchjob.runtime.facts.errors import Frame
from nbtorchjob.runtime.facts.samples import RUNS, Collective, Group, RankSample
from nbtorchjob.runtime.look.profiler import MEMORY_EVENTS
from nbtorchjob.state import JobState
from nbtorchjob.state.diagnosis import Diagnosis, diagnose
from nbtorchjob.state.diagnosis.seen import Sources, library, place
from nbtorchjob.state.spent import ACCELERATOR, COMPUTE, DATA, IDLE, PYTHON, RANKS, TimeSpent
from nbtorchjob.state.text import hang
from nbtorchjob.text.words import clip, clock, columns, count, duration, line, ranks, size

_MOST_BLOCKS = 32
_MOST_THREADS = 4
_MOST_GROUPS = 8
_MAX_LINE = 160
_USERS = "  > "  # in front of a line of the user's own code
STATES = {
    "busy": "held by something in C",
    "stopped": "stopped, by a signal or a debugger",
    "held": "stopped in the debugger",
    "begins": "still starting",
    "ended": "ended",
    "unknown": "not known",
}


class Stacks(FrozenDataclass):
    """What the ranks of a job were doing when they were sampled.

    ``trouble`` is why a node gave no sample, by node. ``asked`` is whether a node was asked and answered, at
    ``time``; otherwise these are the newest samples known. ``str()`` returns everything as text.
    """

    state: JobState
    trouble: Mapping[int, str] = field(default_factory=dict)
    asked: bool = True
    time: float = 0.0

    @property
    def samples(self) -> Mapping[int, RankSample]:
        """The newest sample of each rank in the newest round, by rank."""
        return {rank: sample for rank, (sample, _) in self._samples.items()}

    @property
    def _samples(self) -> dict[int, tuple[RankSample, float]]:
        state = self.state
        newest = [item for item in state.samples.values() if state.base(item.round) == state.round]
        samples = [
            (rank, fact.time) for fact in sorted(newest, key=lambda fact: fact.time) for rank in fact.samples
        ]
        return {
            sample.rank: (sample, time) for sample, time in sorted(samples, key=lambda item: item[0].rank)
        }

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        """Why the job hangs; None where nothing shows that it does."""
        return diagnose(self.state, over=self.state.phase.terminal)

    @property
    def cause(self) -> str:
        """Why the job hangs, in a sentence; empty where nothing shows that it does."""
        return hang.describe(self.diagnosis) if self.diagnosis is not None else ""

    @property
    def lines(self) -> list[str]:
        """Everything as lines of text; those of the user's own code begin with a mark."""
        samples = self._samples
        lines = [self.cause] if self.cause else []
        if samples and not self.asked:
            ended = "The job has ended; this" if self.state.phase.terminal else "This"
            newest = max(time for _, time in samples.values())
            lines.append(f"{ended} is its last sample, of {clock(newest, self.time)}.")
        lines += [f"node {node}: {line(why, _MAX_LINE)}" for node, why in sorted(self.trouble.items())]
        if not samples and not lines:
            if self.state.phase.terminal:
                return ["The job has ended, and what its ranks did was not recorded."]
            return ["What its ranks are doing is not known."]
        for block in blocks(samples, self.state.info.sources):
            lines += ["", *block] if lines else block
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def _repr_html_(self) -> str:
        return html(self.lines)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        diagnosis = self.diagnosis
        return {
            "diagnosis": None
            if diagnosis is None
            else {
                "text": self.cause,
                "ranks": [*diagnosis.ranks],
                "sure": diagnosis.sure,
                "time": diagnosis.time,
            },
            "samples": [{**sample.to_json(), "time": time} for sample, time in self._samples.values()],
            "trouble": {str(node): why for node, why in self.trouble.items()},
            "asked": self.asked,
        }


def html(lines: Sequence[str], *, columns: bool = False) -> str:
    """Return lines of stacks as HTML, with the user's own and the first one in bold.

    With ``columns``, long lines scroll: wrapping them would break the columns.
    """
    shown = (
        f"<b>{escape(text)}</b>" if not at or text.startswith(_USERS) else escape(text)
        for at, text in enumerate(lines)
    )
    long = "white-space:pre;overflow-x:auto" if columns else "white-space:pre-wrap;overflow-wrap:anywhere"
    style = f"margin:0;{long};font:12px monospace"
    return f'<pre style="{style}">{chr(10).join(shown)}</pre>'


def blocks(samples: Mapping[int, tuple[RankSample, float]], sources: Sources) -> Iterator[list[str]]:
    """Yield the lines of each block of ranks that are at the same place, in the same calls."""
    alike: dict[object, list[int]] = {}
    for rank, (sample, _) in samples.items():
        # Ranks with the same key share a block.
        groups = tuple(
            (group.name, group.ranks, *(replace(call, since=0.0) for call in _telling_calls(group)))
            for group in sample.groups
        )
        alike.setdefault((sample.state, sample.threads, groups, sample.note), []).append(rank)
    shown = [*alike.values()][:_MOST_BLOCKS]
    for members in shown:
        yield _block(members, samples, sources)
    if len(alike) > len(shown):
        yield [f"and {count(len(alike) - len(shown), 'other stack')}"]


def _block(
    members: Sequence[int], samples: Mapping[int, tuple[RankSample, float]], sources: Sources
) -> list[str]:
    """Return the lines of one block of ranks that are at the same place, in the same calls."""
    sample, _ = samples[members[0]]
    state = "" if sample.state == RUNS else STATES.get(sample.state, line(sample.state, 40))
    block = [", ".join(part for part in (ranks(members), state, line(sample.note, _MAX_LINE)) if part) + ":"]
    for at, group in enumerate(sample.groups[:_MOST_GROUPS]):
        for call in _telling_calls(group):
            sinces = [
                samples[rank][1] - _telling_calls(samples[rank][0].groups[at])[-1].since for rank in members
            ]
            name, *shape = hang.call_text(call).split(" ", 1)
            did = "last completed" if call.done else "waits in" if not call.p2p else "isn't done with"
            peer = f" with rank {call.peer}" if call.p2p and call.peer is not None else ""
            sizes = f", {shape[0]}" if shape else ""
            which = f"{name} #{call.seq} of {hang.group_name(group, group.ranks)}{peer}{sizes}"
            block.append(f"  {did} {which}" + ("" if call.done else f", for {duration(max(sinces))}"))
    for number, thread in enumerate(sample.threads[:_MOST_THREADS]):
        block.extend([f"  thread {line(thread.name, 60)}:"] if number else [])
        folded: list[Frame] = []
        for frame in thread.frames:
            if library(frame, sources):
                folded.append(frame)
                continue
            block.extend(_folded(folded))
            folded = []
            inside = "" if frame.name == "<module>" else f"  (in {frame.name})"
            block.append(line(f"{_USERS}{place(frame, sources)}{inside}", _MAX_LINE))
        block.extend(_folded(folded))
    return block


def _telling_calls(group: Group) -> list[Collective]:
    """Return the calls of a group that show where a rank is: those that aren't done, else the last one."""
    return [call for call in group.calls if not call.done] or [*group.calls[-1:]]


def _folded(frames: Sequence[Frame]) -> Iterator[str]:
    if frames:
        last = frames[-1]
        file = "/".join(last.filename.split("/")[-3:])
        more = f"{count(len(frames), 'frame')} of libraries, the last " if len(frames) > 1 else ""
        yield f"    {clip(f'{more}{file}:{last.lineno}, in {last.name}', _MAX_LINE)}"


_WAITS = {DATA: "for data", RANKS: "for other ranks", ACCELERATOR: "for the accelerator"}
_PARTS = {
    DATA: "waiting for data",
    RANKS: "collectives, which wait for other ranks",
    ACCELERATOR: "waiting for the accelerator",
    COMPUTE: "compute: torch's other operations",
    PYTHON: "Python",
    IDLE: "idle: it sleeps, or waits for something else",
}
_MOST_LINES, _MOST_OPERATIONS = 5, 10
_MAX_NAME = 44
_SHORT = 0.95  # of the requested seconds
_LITTLE = 0.005  # of the time


class Profile(FrozenDataclass):
    """Where a rank's time went, and the file with its trace; ``str()`` returns it as text."""

    rank: int
    path: Path
    spent: TimeSpent

    @property
    def lines(self) -> list[str]:
        """The profile as lines of text."""
        spent = self.spent
        parts = [
            (_PARTS[name], seconds, "")
            for name, seconds in spent.parts.items()
            if name != ACCELERATOR or spent.busy is not None
        ]
        text = f"rank {self.rank}, {spent.seconds:.2g} s"
        if spent.seconds < _SHORT * spent.asked:
            text = f"{text} of {spent.asked:.1f} s, as a trace has no room for more"
        waits = {name: spent.parts[name] for name in _WAITS if spent.parts[name] > _LITTLE * spent.seconds}
        if not waits:
            headline = f"{text}: hardly any waiting"
        else:
            shares = ", ".join(f"{self._share(seconds)} {_WAITS[name]}" for name, seconds in waits.items())
            headline = f"{text}: waiting {shares}"
        return [
            headline,
            *self._table(parts),
            *([] if spent.busy is None else [f"its accelerator was busy for {self._share(spent.busy)}"]),
            *(["", "its lines:"] if spent.lines else []),
            *self._table([(place, seconds, "") for place, seconds in spent.lines[:_MOST_LINES]]),
            "",
            "torch's operations, without what each calls:" if spent.operations else "no operation of torch's",
            *self._table(
                [
                    (
                        f"{line(operation.name, _MAX_NAME)}, {count(operation.count, 'call')}",
                        operation.seconds,
                        f"mostly in {operation.place}" if operation.place else "",
                    )
                    for operation in spent.operations[:_MOST_OPERATIONS]
                ]
            ),
            "",
            f"trace: {self.path} (ui.perfetto.dev opens it)",
        ]

    def _table(self, rows: Sequence[tuple[str, float, str]]) -> list[str]:
        shown = [(f"  {self._share(seconds):>5}", name, more) for name, seconds, more in rows]
        return [row.rstrip() for row in columns(shown)] if shown else []

    def _share(self, seconds: float) -> str:
        return f"{100 * seconds / max(self.spent.seconds, 1e-9):.0f} %"

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def _repr_html_(self) -> str:
        return html(self.lines, columns=True)

    def to_json(self) -> dict[str, Any]:
        """Return the profile as plain data."""
        return {"rank": self.rank, "path": str(self.path), **asdict(self.spent)}


class TensorMemory(FrozenDataclass):
    """What a rank's tensors use of the memory that torch has reserved on a device, in bytes."""

    device: int
    reserved: int
    used: int

    def __str__(self) -> str:
        return f"tensors use {size(self.used)} of {size(self.reserved)} that torch has reserved"


class MemoryProfile(FrozenDataclass):
    """What the accelerator's memory held at the end, and the file with torch's own snapshot."""

    rank: int
    path: Path
    seconds: float
    events: int
    held: tuple[TensorMemory, ...]

    @property
    def lines(self) -> list[str]:
        """The profile as lines of text."""
        newest = "the newest " if self.events >= MEMORY_EVENTS else ""
        return [
            f"rank {self.rank}, {self.seconds:.1f} s: {newest}{count(self.events, 'event')} of its allocator",
            *(f"  device {memory.device}: {memory}" for memory in self.held),
            f"snapshot: {self.path} (pytorch.org/memory_viz opens it)",
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def _repr_html_(self) -> str:
        return html(self.lines)

    def to_json(self) -> dict[str, Any]:
        """Return the profile as plain data."""
        return {**asdict(self), "path": str(self.path)}
