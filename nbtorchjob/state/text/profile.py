"""A profile of a rank in words: where its time went, or what its accelerator's memory holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.profiler import MEMORY_EVENTS
from nbtorchjob.state.spent import ACCELERATOR, COMPUTE, DATA, IDLE, PYTHON, RANKS, Spent
from nbtorchjob.state.text.stacks import html
from nbtorchjob.text.words import columns, count, line, size

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
_SHORT = 0.95  # of the seconds asked for
_LITTLE = 0.005  # of the time


class Profile(FrozenDataclass):
    """Where a rank's time went, and the file with its trace; ``str()`` is the whole as text."""

    rank: int
    path: Path
    spent: Spent

    @property
    def lines(self) -> list[str]:
        """The whole in lines."""
        spent = self.spent
        parts = [(_PARTS[name], seconds, "") for name, seconds in spent.parts.items() if self._is_told(name)]
        return [
            self._headline(),
            *self._table(parts),
            *([] if spent.busy is None else [f"its accelerator was busy for {self._share(spent.busy)}"]),
            *(["", "its lines:"] if spent.lines else []),
            *self._table([(place, seconds, "") for place, seconds in spent.lines[:_MOST_LINES]]),
            "",
            "torch's operations, without what each calls:" if spent.operations else "no operation of torch's",
            *self._table([*self._operations()]),
            "",
            f"trace: {self.path} (ui.perfetto.dev opens it)",
        ]

    def _headline(self) -> str:
        spent = self.spent
        told = f"rank {self.rank}, {spent.seconds:.2g} s"
        if spent.seconds < _SHORT * spent.asked:
            told = f"{told} of {spent.asked:.1f} s, as a trace has no room for more"
        waits = {name: spent.parts[name] for name in _WAITS if spent.parts[name] > _LITTLE * spent.seconds}
        if not waits:
            return f"{told}: hardly any waiting"
        each = ", ".join(f"{self._share(seconds)} {_WAITS[name]}" for name, seconds in waits.items())
        return f"{told}: waiting {each}"

    def _is_told(self, part: str) -> bool:
        return part != ACCELERATOR or self.spent.busy is not None

    def _operations(self) -> Iterator[tuple[str, float, str]]:
        for each in self.spent.operations[:_MOST_OPERATIONS]:
            where = f"mostly in {each.place}" if each.place else ""
            name = f"{line(each.name, _MAX_NAME)}, {count(each.count, 'call')}"
            yield name, each.seconds, where

    def _table(self, rows: Sequence[tuple[str, float, str]]) -> list[str]:
        shown = [(f"  {self._share(seconds):>5}", name, more) for name, seconds, more in rows]
        return [each.rstrip() for each in columns(shown)] if shown else []

    def _share(self, seconds: float) -> str:
        return f"{100 * seconds / max(self.spent.seconds, 1e-9):.0f} %"

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def _repr_html_(self) -> str:
        return html(self.lines, columns=True)

    def to_json(self) -> dict[str, Any]:
        """Return the whole as plain data."""
        return {"rank": self.rank, "path": str(self.path), **asdict(self.spent)}


class Held(FrozenDataclass):
    """What a rank's tensors use of the memory that torch has reserved on a device, in bytes."""

    device: int
    reserved: int
    used: int


class MemoryProfile(FrozenDataclass):
    """What the accelerator's memory held at the end, and the file with torch's own snapshot."""

    rank: int
    path: Path
    seconds: float
    events: int
    held: tuple[Held, ...]

    @property
    def lines(self) -> list[str]:
        """The whole in lines."""
        newest = "the newest " if self.events >= MEMORY_EVENTS else ""
        return [
            f"rank {self.rank}, {self.seconds:.1f} s: {newest}{count(self.events, 'event')} of its allocator",
            *(f"  device {each.device}: {_used(each)}" for each in self.held),
            f"snapshot: {self.path} (pytorch.org/memory_viz opens it)",
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def _repr_html_(self) -> str:
        return html(self.lines)

    def to_json(self) -> dict[str, Any]:
        """Return the whole as plain data."""
        return {**asdict(self), "path": str(self.path)}


def _used(held: Held) -> str:
    return f"tensors use {size(held.used)} of {size(held.reserved)} that torch has reserved"
