"""The words of a diagnosis: ranks, the calls that they wait in, and where they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.facts.samples import BEGINS, BUSY, HELD, STOPPED, UNKNOWN, Collective, Group
from nbtorchjob.state.diagnosis.seen import Seen, Wait
from nbtorchjob.state.diagnosis.standing import parties, place
from nbtorchjob.text.words import duration, line, ranks

_DEFAULT = {"0", "default_pg"}  # what torch calls the group of init_process_group
_MOST_PLACES = 3
_MAX_NAME = 24
# A verb of one rank -> of several, and both of what is over.
_VERBS = {
    "is": ("are", "was", "were"),
    "has": ("have", "had", "had"),
    "waits": ("wait", "waited", "waited"),
    "sleeps": ("sleep", "slept", "slept"),
    "reads": ("read", "read", "read"),
    "compiles": ("compile", "compiled", "compiled"),
    "saves": ("save", "saved", "saved"),
}


class Telling(FrozenDataclass):
    """Says what is seen, of a moment that is now, or that is ``over``."""

    seen: Seen
    over: bool

    def verb(self, word: str, who: Sequence[int]) -> str:
        """Return a verb as so many ranks do it: ``wait``."""
        several, one_did, several_did = _VERBS[word]
        if self.over:
            return one_did if len(who) == 1 else several_did
        return word if len(who) == 1 else several

    def call(self, wait: Wait) -> str:
        """Return ``all_reduce #417 of the default group``, or ``DDP's all_reduce #417 …``."""
        ddp = all(self.seen.of[rank].ddp for rank in wait.waiters)
        return self._numbered(wait.group, wait.call, ddp=ddp)

    def _numbered(self, group: Group, call: Collective, *, ddp: bool) -> str:
        whose = "DDP's " if ddp and call.op == "all_reduce" else ""
        return f"{whose}{line(call.op, 80)} #{call.seq} of {self.group(group)}"

    def group(self, group: Group) -> str:
        """Return what to call a group."""
        return group_name(group, self.seen.members(group.name))

    def waited(self, wait: Wait) -> str:
        """Return ``all_reduce #417 of the default group, which ranks 0-1 have waited in for 40 s``."""
        has = self.verb("has", wait.waiters)
        return f"{self.call(wait)}, which {ranks(wait.waiters)} {has} waited in for {duration(wait.seconds)}"

    def waiting(self, wait: Wait, whom: str = "") -> str:
        """Return ``ranks 0-1 have waited for 40 s in all_reduce #417 of the default group``."""
        has = self.verb("has", wait.waiters)
        whom = f"for {whom} " if whom else ""
        return f"{ranks(wait.waiters)} {has} waited {whom}for {duration(wait.seconds)} in {self.call(wait)}"

    def places(self, who: Iterable[int], *, named: bool = False) -> str:
        """Return ``rank 2 sleeps in Cell In[3], line 14: sleep(100); ranks 3-4 have returned``.

        Of ranks that were ``named`` just before: ``it sleeps``, if they do the same.
        """
        alike: dict[tuple[str, str], list[int]] = {}
        for rank in who:
            alike.setdefault(self._does(rank), []).append(rank)
        texts = []
        for (does, where), mine in [*alike.items()][:_MOST_PLACES]:
            verb, _, rest = does.partition(" ")
            subject = ("it" if len(mine) == 1 else "they") if named and len(alike) == 1 else ranks(mine)
            parts = (subject, self.verb(verb, mine), rest, where)
            texts.append(" ".join(part for part in parts if part))
        more = len(alike) - len(texts)
        return "; ".join([*texts, *([f"and {more} more elsewhere"] if more > 0 else [])])

    def lines(self, who: Iterable[int]) -> str:
        """Return the lines that ranks are in: ``Cell In[3], line 14: loss.backward()``."""
        return "; ".join([*dict.fromkeys(filter(None, map(self.at, who)))][:_MOST_PLACES])

    def _does(self, rank: int) -> tuple[str, str]:
        """Return what a rank does, beginning with a verb, and where, as it can be said of several."""
        stand = self.seen.of.get(rank)
        if rank in self.seen.ended:
            return self.seen.ended[rank], ""
        if stand is None or stand.state == UNKNOWN:
            why = f" ({line(stand.note, 80)})" if stand is not None and stand.note else ""
            return f"has given no sample{why}", ""
        where = f"in {self.at(rank)}" if stand.place is not None else ""
        if stand.state == STOPPED:
            return "is stopped, by a signal or a debugger" + (", last seen" if where else ""), where
        if stand.state == HELD:
            return "is stopped in the debugger", where
        if stand.state == BEGINS:
            return "is still starting", ""
        if stand.state == BUSY:
            return "is held by something in C", where
        if stand.inside:
            call = stand.call
            numbered = self._numbered(*call, ddp=stand.ddp) if call else stand.inside
            whom = parties(stand.inside, stand.given)
            return f"waits in {line(f'{numbered} {whom}', 120)}".rstrip(), where and f"({self.at(rank)})"
        if stand.unrecorded:
            return "waits", where
        return stand.waits or ("is" if where else "is outside of the user's code"), where

    def at(self, rank: int) -> str:
        """Return where a rank is in the user's code; empty where that isn't known."""
        stand = self.seen.of.get(rank)
        frame = stand.place if stand is not None else None
        return place(frame, self.seen.known.info.sources) if frame is not None else ""


def group_name(group: Group, members: Sequence[int]) -> str:
    """Return what to call a group of these ranks: ``the default group``, ``group mesh_dp (ranks 0-1)``."""
    if _DEFAULT & {group.name, group.label}:
        return "the default group"
    return f"group {line(group.label or group.name, _MAX_NAME)} ({ranks(members)})"
