"""What the samples of all ranks show together: which calls are waited in, and who isn't in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import ClassVar

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.facts.samples import (
    BEGINS,
    BUSY,
    ENDED,
    HAS_RETURNED,
    HELD,
    RUNS,
    STOPPED,
    Collective,
    Group,
)
from nbtorchjob.state import failure
from nbtorchjob.state.diagnosis.standing import Standing
from nbtorchjob.state.known import Known
from nbtorchjob.text.words import line

MOMENT_S = 1.0  # a call that takes no longer isn't waited in
ASKED = "asked"  # why there is a sample: somebody wanted it, and its node saw no reason to take one
_MOST_WAITS = 256
_CANT = (STOPPED, HELD, BUSY, BEGINS)  # none of them enters anything


class End(FrozenDataclass):
    """How a rank ended: ``RETURNED``, ``EXITED`` (perhaps by a signal) or ``FAILED``, and why if known."""

    RETURNED: ClassVar = "returned"
    EXITED: ClassVar = "ended"
    FAILED: ClassVar = "failed"

    how: str
    why: str = ""


class Wait(FrozenDataclass):
    """A call that ranks wait in, for so many seconds, and who of its group isn't in it."""

    group: Group
    call: Collective
    waiters: tuple[int, ...]
    absent: tuple[int, ...]
    unknown: tuple[int, ...]  # members that may be in it or not
    seconds: float


class Seen(FrozenDataclass):
    """The standing of every rank that was sampled, and what follows from all of them."""

    known: Known
    standings: Sequence[Standing]

    @cached_property
    def of(self) -> Mapping[int, Standing]:
        """The newest standing of each rank."""
        return {
            stand.rank: stand for stand in sorted(self.standings, key=lambda stand: (stand.time, stand.rank))
        }

    @property
    def settled(self) -> bool:
        """Whether nothing had moved for long when the newest samples were taken: nobody just asked."""
        newest = max(self.known.samples.values(), key=lambda fact: fact.time, default=None)
        return newest is not None and newest.why != ASKED

    @property
    def unseen(self) -> list[int]:
        """The ranks of the round of which there is no sample."""
        # Of a bigger world than this nobody reads a list, and anybody can claim that a world is big.
        return [rank for rank in range(min(self.known.world_size, 1 << 13)) if rank not in self.of]

    @cached_property
    def ended(self) -> Mapping[int, End]:
        """How ranks had ended when the samples were taken."""
        last, now = max(standing.time for standing in self.standings), self.known.round
        ended: dict[int, End] = {}
        for stand in self.of.values():
            if stand.state == ENDED:
                well = stand.note.partition(";")[0] in (HAS_RETURNED, "exit code 0")
                ended[stand.rank] = End(End.RETURNED) if well else End(End.EXITED, line(stand.note, 80))
        for gone in self.known.exits:
            if gone.round == now and gone.time <= last:
                why = failure.of_signal(gone.signal) if gone.signal else failure.of_exit(gone.code or 0)
                ended[gone.rank] = End(End.EXITED, why.line)
        for failed in self.known.errors:
            if failed.round == now and failed.error.time <= last:
                ended[failed.rank] = End(End.FAILED, failed.error.type.rpartition(".")[2])
        return ended

    def returned(self, rank: int) -> bool:
        """Whether a rank had ended well."""
        return rank in self.ended and self.ended[rank].how == End.RETURNED

    @cached_property
    def pending(self) -> Mapping[str, list[tuple[int, Group, Collective]]]:
        """The calls that aren't done, with the ranks that they are of, by group."""
        calls: dict[str, list[tuple[int, Group, Collective]]] = {}
        for stand in self.of.values():
            for group, call in stand.pending if stand.rank not in self.ended else ():
                calls.setdefault(group.name, []).append((stand.rank, group, call))
        return calls

    @cached_property
    def broken(self) -> Sequence[tuple[Group, Collective]]:
        """The newest calls of ranks that ended in them, the first first; they told so as they ended."""
        newest = []
        for stand in self.of.values():
            calls = [(g, call) for g in stand.groups for call in g.calls if not call.p2p]
            if calls and stand.state == ENDED and not self.returned(stand.rank):
                newest.append(max(calls, key=lambda pair: pair[1].since))
        return sorted(newest, key=lambda pair: pair[1].since)

    def made(self, rank: int, name: str) -> Sequence[Collective]:
        """Return the calls that are known of a rank in a group."""
        groups = self.of[rank].groups if rank in self.of else ()
        return [call for group in groups if group.name == name for call in group.calls if not call.p2p]

    def late(self, rank: int, wait: Wait) -> Sequence[float]:
        """Return by how many seconds a rank was behind in the calls before one that others wait in.

        The newest first, as far back as it always was, by more than a moment.
        """
        begun = {
            waiter: {c.seq: c.since for c in self.made(waiter, wait.group.name)} for waiter in wait.waiters
        }
        mine = {call.seq: call.since for call in self.made(rank, wait.group.name)}
        delays: list[float] = []
        for seq in range(wait.call.seq - 1, 0, -1):
            others = [calls[seq] for calls in begun.values() if seq in calls]
            if seq not in mine or len(others) < len(begun) or mine[seq] - max(others) < MOMENT_S:
                break
            delays.append(mine[seq] - max(others))
        return delays

    @cached_property
    def moves(self) -> bool:
        """Whether a rank made a call just before it was looked at, or one isn't done."""
        calls = (
            (stand, call) for stand in self.of.values() for group in stand.groups for call in group.calls
        )
        return any(not call.done or stand.time - call.since < MOMENT_S for stand, call in calls)

    @cached_property
    def waits(self) -> Sequence[Wait]:
        """One call of each group that is waited in, the longest first."""
        waits = [wait for name in self.pending if (wait := self._wait(name)).seconds >= MOMENT_S]
        return sorted(waits, key=lambda wait: (-wait.seconds, wait.group.name))[:_MOST_WAITS]

    def _wait(self, name: str) -> Wait:
        """Return the first call of a group that somebody is absent from; where nobody is, the first."""
        calls = self.pending[name]
        numbered = [self._numbered(calls, seq) for seq in sorted({call.seq for _, _, call in calls})]
        return next((wait for wait in numbered if wait.absent or wait.unknown), numbered[0])

    def _numbered(self, calls: Iterable[tuple[int, Group, Collective]], seq: int) -> Wait:
        mine = [call for call in calls if call[2].seq == seq]
        _, group, first = min(mine, key=lambda item: item[2].since)
        waiters = tuple(sorted({rank for rank, _, _ in mine}))
        there = {
            rank: self._there(rank, group.name, seq, first.since)
            for rank in self.members(group.name)
            if rank not in waiters
        }
        absent = tuple(rank for rank, known in there.items() if known is False)
        unknown = tuple(rank for rank, known in there.items() if known is None)
        return Wait(
            group, first, waiters, absent, unknown, max(self.of[rank].time - c.since for rank, _, c in mine)
        )

    def _there(self, rank: int, group: str, seq: int, since: float) -> bool | None:
        """Whether a rank has entered a call that others have been in ``since``; None where nobody knows."""
        stand = self.of.get(rank)
        if rank in self.ended:
            return False
        if stand is None or stand.time < since:
            return None
        entered = stand.entered(group)
        if entered is None:
            return False if stand.state in _CANT else None
        return entered >= seq

    def members(self, name: str) -> list[int]:
        """Return the ranks of a group."""
        listed = [(stand.rank, g) for stand in self.of.values() for g in stand.groups if g.name == name]
        return sorted({rank for rank, _ in listed}.union(*(group.ranks for _, group in listed)))

    def free(self, rank: int) -> bool:
        """Whether a rank surely waits for no other."""
        stand = self.of.get(rank)
        if rank in self.ended or (stand is not None and self.cant(rank)):
            return True
        return stand is not None and stand.state == RUNS and stand.call is None and not stand.unrecorded

    def cant(self, rank: int) -> bool:
        """Whether a rank is stopped, or held, or the like: it enters nothing."""
        return self.of[rank].state in _CANT

    def silent(self, rank: int) -> bool:
        """Whether a rank can't tell what it has entered."""
        return rank not in self.ended and self.cant(rank) and not self.of[rank].recorded

    def awaited(self, rank: int) -> Sequence[int]:
        """Return the ranks that a rank surely waits for: in a send or a receive, or in a collective."""
        stand = self.of.get(rank)
        if stand is None or rank in self.ended or stand.state != RUNS:
            return ()
        if stand.peer is not None:
            return () if self._fits(stand, stand.peer) else (stand.peer,)
        held = self.held_in(rank)
        return held.absent if held is not None else ()

    def _fits(self, stand: Standing, peer: int) -> bool:
        """Whether a peer does what a send or a receive waits for, so that it is on its way."""
        other = self.of.get(peer)
        if other is None or peer in self.ended or other.peer != stand.rank or other.inside == stand.inside:
            return False
        return all(other.given.get(name) == stand.given.get(name) for name in ("group", "tag"))

    def held_in(self, rank: int) -> Wait | None:
        """Return the call that a rank surely waits in, of those that are waited in."""
        stand = self.of.get(rank)
        if stand is None or stand.call is None or not stand.held:
            return None
        name = stand.call[0].name
        return next((wait for wait in self.waits if wait.group.name == name and rank in wait.waiters), None)
