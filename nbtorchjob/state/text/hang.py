"""Why a job hangs, in words: the verdict of a diagnosis, the calls that ranks wait in, and where they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.facts.samples import BEGINS, BUSY, HELD, STOPPED, UNKNOWN, Collective, Group
from nbtorchjob.state.diagnosis import Diagnosis, verdicts
from nbtorchjob.state.diagnosis.seen import POINT_TO_POINT, Seen, Wait, WaitsFor, place
from nbtorchjob.state.diagnosis.verdicts import Sides, Verdict
from nbtorchjob.text.words import clip, duration, line, ranks

_DEFAULT = {"0", "default_pg"}  # what torch calls the group of init_process_group
_MAX_TEXT = 700
_MAX_LINE = 120
_MAX_NAME = 24
_MOST_PLACES = _MOST_SIDES = _MOST_SIZES = 3
# A verb for one rank -> for several, and the past tenses of both.
_VERBS = {
    "is": ("are", "was", "were"),
    "has": ("have", "had", "had"),
    "waits": ("wait", "waited", "waited"),
    "sleeps": ("sleep", "slept", "slept"),
    "reads": ("read", "read", "read"),
    "compiles": ("compile", "compiled", "compiled"),
    "saves": ("save", "saved", "saved"),
}
_WAITS = {
    WaitsFor.AWAIT: "waits in an await",
    WaitsFor.CHECKPOINT: "saves or loads a checkpoint",
    WaitsFor.COMPILER: "compiles",
    WaitsFor.DATALOADER: "waits for its DataLoader",
    WaitsFor.FILE_LOCK: "waits for a file's lock",
    WaitsFor.FUTURE: "waits for a future",
    WaitsFor.LOCK: "waits for a lock",
    WaitsFor.PIPE: "waits for a pipe",
    WaitsFor.POOL: "waits for a pool of processes",
    WaitsFor.PROCESS: "waits for a process",
    WaitsFor.QUEUE: "waits for a queue",
    WaitsFor.READ: "reads",
    WaitsFor.SERVER: "waits for a server",
    WaitsFor.SLEEP: "sleeps",
    WaitsFor.STORE: "waits for a store",
    WaitsFor.THREAD: "waits for a thread",
}


def describe(diagnosis: Diagnosis) -> str:
    """Describe in a sentence why a job hangs; it begins with "unsure" unless the diagnosis is sure."""
    text = _Wording(diagnosis.seen, diagnosis.over).sentence(diagnosis.verdict)
    return clip(text if diagnosis.sure else f"unsure: {text}", _MAX_TEXT)


class _Wording(FrozenDataclass):
    """Puts what is seen into words, in the present tense or, once it is ``over``, in the past."""

    seen: Seen
    over: bool

    def sentence(self, verdict: Verdict) -> str:
        match verdict:
            case verdicts.OtherCall():
                return self._other_call(verdict)
            case verdicts.OtherArguments(sides):
                entered = {side[0]: self._entered(side[0]) for side in sides}
                return f"{_differ('in one call', sides, entered)}; {self._places(_firsts(sides))}"
            case verdicts.OtherOperation(sides):
                entered = {side[0]: self.seen.of[side[0]].inside for side in sides}
                return f"{_differ('as the same call', sides, entered)}; {self._places(_firsts(sides))}"
            case verdicts.Uneven():
                return self._uneven(verdict)
            case verdicts.Alone(wait, returned):
                places = f"{self._places(returned)}; {self._places(wait.waiters)}"
                return f"{self._waiting(wait)}, alone: {places}"
            case verdicts.Silent(silent, wait):
                whom = "it" if len(silent) == 1 else "them"
                return f"{self._places(silent)}; {self._waiting(wait, whom)}"
            case verdicts.Slow(rank, wait, late):
                times = duration(sorted(late)[len(late) // 2])
                text = f"rank {rank} is slow: it entered the last {len(late)} calls {times} after the others"
                return f"{text}; {self._waiting(wait, 'it')}; {self._places([rank], named=True)}"
            case verdicts.Absent(absent, wait):
                call = f"{self._call(wait)}, which {ranks(wait.waiters)} {self._verb('has', wait.waiters)}"
                waited = f"{call} waited in for {duration(wait.seconds)}"
                return f"{ranks(absent)} never entered {waited}; {self._places(absent, named=True)}"
            case verdicts.Circle(steps):
                circle = sorted({rank for _, inside in steps for rank in inside})
                parts = [
                    f"{ranks(inside)} for {ranks(awaited)} in {self._call(wait)} ({self._at(inside[0])})"
                    for (wait, inside), (_, awaited) in zip(steps, [*steps[1:], steps[0]], strict=True)
                ]
                return f"{ranks(circle)} {self._verb('waits', circle)} for each other: {', '.join(parts)}"
            case verdicts.Away(operation, away, entrants):
                waiting = f"{ranks(entrants)} {self._verb('is', entrants)} waiting"
                text = f"{ranks(away)} never entered {operation}, where {waiting}"
                return f"{text}; {self._places(away, named=True)}"
            case verdicts.Elsewhere(operations, away, entrants, silent):
                inside = f"{ranks(entrants)} {self._verb('is', entrants)} in {' or '.join(operations)}"
                if silent:
                    return f"{self._places(away)}; {inside}"
                return f"{inside}, which {ranks(away)} never entered; {self._places(away, named=True)}"
            case verdicts.Mismatched(pair):
                text = f"{ranks(pair)} wait for each other with different tags or groups"
                return f"{text}: {self._places(pair)}"
            case verdicts.Chain(chain):
                return f"{self._places(chain[-2::-1])}; {self._places(chain[-1:])}"
            case verdicts.Ring(ring):
                return f"{ranks(ring)} {self._verb('waits', ring)} for each other: {self._places(ring)}"
            case verdicts.Perhaps(wait, others):
                return f"{self._waiting(wait, ranks(others))}; {self._places(others)}"
            case verdicts.Complete(wait, done):
                which = (
                    f"{ranks(done)} {self._verb('has', done)} completed it" if done else "all ranks are in it"
                )
                return f"{self._waiting(wait)}, and {which}; {self._places(wait.waiters)}"
            case verdicts.Unrecorded(waiters, others):
                return f"{self._places(waiters)}; {self._places(others)}".removesuffix("; ")
            case verdicts.Stopped(stopped):
                return self._places(stopped)
            case verdicts.NoCollective(everybody):
                return f"no rank waits in a collective: {self._places(everybody)}"

    def _other_call(self, verdict: verdicts.OtherCall) -> str:
        entered = {rank: call_text(call) for rank, call in verdict.calls.items()}
        firsts = _firsts(verdict.sides)
        if verdict.ended:
            for rank, call in verdict.calls.items():
                # ``all_gather_object (all_gather int64[1])``: what the code called, and what that called.
                inside = self.seen.of[rank].inside
                entered[rank] = (
                    call_text(call) if inside in ("", call.op) else f"{inside} ({call_text(call)})"
                )
        where = f"as call #{verdict.number} of {self._group(verdict.group)}"
        places = (
            self._lines(firsts) if verdict.ended else self._places(firsts)
        )  # ranks that ended aren't doing anything
        return f"{_differ(where, verdict.sides, entered)}; {places}"

    def _entered(self, rank: int) -> str:
        """Return ``broadcast from rank 0 in the default group``."""
        stand = self.seen.of[rank]
        if stand.call is None:
            return stand.inside
        group, call = stand.call
        return (
            f"{' '.join((call.op, parties(stand.inside, stand.arguments))).strip()} in {self._group(group)}"
        )

    def _uneven(self, verdict: verdicts.Uneven) -> str:
        counts: dict[int, list[int]] = {}
        for rank, calls in sorted(verdict.fewer.items()):
            counts.setdefault(calls, []).append(rank)
        others = ", ".join(f"{ranks(side)} made {calls}" for calls, side in [*counts.items()][:_MOST_SIDES])
        leaders = f"{ranks(verdict.more)} made {verdict.last.seq} calls in {self._group(verdict.group)}"
        last = ", ".join(filter(None, [call_text(verdict.last), self._lines(verdict.more)]))
        why = "the usual causes are uneven batches and a branch that some ranks skip"
        left = "returning" if all(map(self.seen.returned, verdict.fewer)) else "leaving it"
        return f"{leaders}, and {others} before {left}; the last is {last}; {why}"

    def _verb(self, word: str, subjects: Sequence[int]) -> str:
        """Return a verb in the form that goes with its subjects: ``wait``."""
        several, one_did, several_did = _VERBS[word]
        if self.over:
            return one_did if len(subjects) == 1 else several_did
        return word if len(subjects) == 1 else several

    def _call(self, wait: Wait) -> str:
        """Return ``all_reduce #417 of the default group``, or ``DDP's all_reduce #417 …``."""
        ddp = all(self.seen.of[rank].ddp for rank in wait.waiters)
        return self._numbered(wait.group, wait.call, ddp=ddp)

    def _numbered(self, group: Group, call: Collective, *, ddp: bool) -> str:
        owner = "DDP's " if ddp and call.op == "all_reduce" else ""
        return f"{owner}{line(call.op, 80)} #{call.seq} of {self._group(group)}"

    def _group(self, group: Group) -> str:
        return group_name(group, self.seen.members(group.name))

    def _waiting(self, wait: Wait, whom: str = "") -> str:
        """Return ``ranks 0-1 have waited for 40 s in all_reduce #417 of the default group``."""
        has = self._verb("has", wait.waiters)
        whom = f"for {whom} " if whom else ""
        return f"{ranks(wait.waiters)} {has} waited {whom}for {duration(wait.seconds)} in {self._call(wait)}"

    def _places(self, of: Iterable[int], *, named: bool = False) -> str:
        """Return ``rank 2 sleeps in Cell In[3], line 14: sleep(100); ranks 3-4 have returned``.

        For ranks that were ``named`` just before it is ``it sleeps``, if they all do the same.
        """
        alike: dict[tuple[str, str], list[int]] = {}
        for rank in of:
            alike.setdefault(self._does(rank), []).append(rank)
        texts = []
        for (does, where), subjects in [*alike.items()][:_MOST_PLACES]:
            verb, _, remainder = does.partition(" ")
            subject = (
                ("it" if len(subjects) == 1 else "they") if named and len(alike) == 1 else ranks(subjects)
            )
            parts = (subject, self._verb(verb, subjects), remainder, where)
            texts.append(" ".join(part for part in parts if part))
        more = len(alike) - len(texts)
        return "; ".join([*texts, *([f"and {more} more elsewhere"] if more > 0 else [])])

    def _lines(self, of: Iterable[int]) -> str:
        """Return the lines that ranks are in: ``Cell In[3], line 14: loss.backward()``."""
        return "; ".join([*dict.fromkeys(filter(None, map(self._at, of)))][:_MOST_PLACES])

    def _does(self, rank: int) -> tuple[str, str]:
        """Return what a rank does, beginning with a verb, and where, in words that also fit several ranks."""
        stand = self.seen.of.get(rank)
        if rank in self.seen.ended:
            end = self.seen.ended[rank]
            return f"has {end.how} ({end.why})" if end.why else f"has {end.how}", ""
        if stand is None or stand.state == UNKNOWN:
            why = f" ({line(stand.note, 80)})" if stand is not None and stand.note else ""
            return f"has given no sample{why}", ""
        where = f"in {self._at(rank)}" if stand.place is not None else ""
        if stand.state == STOPPED:
            return "is stopped, by a signal or a debugger" + (", last seen" if where else ""), where
        if stand.state == HELD:
            return "is stopped in the debugger", where
        if stand.state == BEGINS:
            return "is still starting", ""
        if stand.state == BUSY:
            return "is held by something in C", where
        if stand.inside or stand.surely_waits:
            call = stand.call
            numbered = self._numbered(*call, ddp=stand.ddp) if call else stand.inside
            whom = parties(stand.inside, stand.arguments)
            return f"waits in {line(f'{numbered} {whom}', 120)}".rstrip(), where and f"({self._at(rank)})"
        if stand.unrecorded:
            return "waits", where
        if stand.waits is not None:
            return _WAITS[stand.waits], where
        return "is" if where else "is outside of the user's code", where

    def _at(self, rank: int) -> str:
        """Return where a rank is in the user's code; empty where that is unknown."""
        stand = self.seen.of.get(rank)
        frame = stand.place if stand is not None else None
        return place(frame, self.seen.facts.info.sources) if frame is not None else ""


def group_name(group: Group, members: Sequence[int]) -> str:
    """Return a name for a group of these ranks: ``the default group``, ``group mesh_dp (ranks 0-1)``."""
    if _DEFAULT & {group.name, group.label}:
        return "the default group"
    name = f"group {line(group.label or group.name, _MAX_NAME)}"
    return f"{name} ({ranks(members)})" if members else name


def _firsts(sides: Sides) -> list[int]:
    return [side[0] for side in sides]


def _differ(where: str, sides: Sides, entered: Mapping[int, str]) -> str:
    odd, *others = sides
    more = ", ".join(f"{ranks(side)} {entered[side[0]]}" for side in others[:_MOST_SIDES])
    return f"{where} {ranks(odd)} entered {entered[odd[0]]}, but {more}"


def call_text(call: Collective) -> str:
    """Return an operation with the types and sizes that it was called with: ``all_reduce float32[4, 8]``."""
    dtypes = [*call.dtypes, *[""] * (len(call.sizes) - len(call.dtypes))]
    shapes = [
        f"{dtype}[{', '.join(map(str, size))}]" for dtype, size in zip(dtypes, call.sizes, strict=False)
    ]
    more = [f"and {len(shapes) - _MOST_SIZES} more"] if len(shapes) > _MOST_SIZES else []
    return line(" ".join([call.op, *shapes[:_MOST_SIZES], *more]), _MAX_LINE)


def parties(inside: str, arguments: Mapping[str, str]) -> str:
    """Return where an operation moves data from or to, and how: ``from rank 1``, ``to rank 0 (MAX)``."""
    parts = [
        f"{word} rank {arguments[name]}"
        for name, word in (("src", "from"), ("dst", "to"))
        if name in arguments
    ]
    parts += [f"({arguments['op']})"] if arguments.get("op", "SUM") != "SUM" else []
    parts += (
        [f"with tag {arguments['tag']}"]
        if arguments.get("tag", "0") != "0" and inside in POINT_TO_POINT
        else []
    )
    return " ".join(parts)
