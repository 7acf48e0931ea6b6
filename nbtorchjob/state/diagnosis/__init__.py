"""Why a job hangs: which rank the others wait for, and where it is.

Theory of operation
===================

Ranks wait for each other in collectives. One of those ends when every rank of its group has entered it, so
most ranks of a job that hangs are found in a collective, and the one to look at is elsewhere: it hasn't
entered it. A sample tells of each rank which calls it has made in each group, and where its stack stands.
Calls are counted within a group, so a number means the same call on all its ranks. From that:

1. *A call is waited in* where a rank has entered it and it isn't done, for longer than a moment: the ranks of
   a healthy job, too, are found in collectives. Who of the group has made fewer calls is *absent* from it.
2. *A call differs* where ranks have entered different operations at one number. They went different ways,
   or one of them skipped a call, and its numbers are off by one since. So does one that must be given as
   many elements of one type on all ranks, and wasn't. Of two sides the smaller one is named.
3. *Who is absent may wait itself*, in a call of another group, and the ranks that are absent from that are
   to blame, and so on. It ends in a rank that waits in no call, which is the one to name, or in a circle.
4. A rank that is stopped tells nothing of its calls, nor one that something in C holds; but neither enters
   any, nor does one that has ended. Where one rank is left in a call, and all others have returned, it has
   made a call too many.
5. Samples of several nodes aren't of one moment. A rank is absent only if it was looked at after somebody
   had begun to wait for it; else it may be there by now. Of ranks that gave no sample nothing is known.
6. Some calls aren't recorded (of gloo: send, recv, monitored_barrier). A stack tells that a rank waits in
   one, and its frame for whom; of what ``irecv`` returned nothing tells that. Since when it waits isn't known
   either: what is concluded from such a call is sure only if nothing had moved for long.
7. A frame holds what a call was given, too: where ranks wait in one call for another root, reduce otherwise,
   or are in one line with other groups of the same ranks, they don't mean the same.
8. A collective may give up at once: a rank that has left closes its connections, and gloo ends a rank that
   gets data of another size. Ranks tell what they were in before they end. What a rank was in last is the
   call that gave up: another rank was in another call there, or had ended before it.
9. Where torch records none (of gloo before 2.9), a stack tells that a rank is in a call that needs all ranks.
   Whoever isn't in one, and does nothing that would end by itself, keeps them waiting.

A diagnosis is *sure* if these leave no other rank to name. Else it says "unsure", and what is known.
The first of these that applies:

    seen                                                    named                        sure  rule
    ------------------------------------------------------  ---------------------------  ----  --------------
    another operation, size or type at one number           the fewer; both, if as many  yes   ``_differing``
    the newest call of a rank that a collective ended:      as above                     yes   ``_broken``
    another operation, size or type there
    the same, and all others had returned before            the fewer; all, if as many   yes   ``_broken``
    another root or reduction in one call, or another       the fewer; both, if as many  yes   ``_arguments``
    group of the same ranks in one line
    absent, and it waits in no call: it is somewhere else,  it, and where it is          yes   ``_absent``
    has ended, is stopped, or is held by something in C
    the same of one that came late to the calls before      it, which is slow            yes   ``_absent``
    one waits in a call, and all others have returned       the one                      yes   ``_absent``
    each is absent from the call that another one waits in  all of them                  yes   ``_circle``
    some aren't in init_process_group, which others are in  those                        yes   ``_meeting``
    no call is recorded, and some aren't in one of the one  those; if all are in one,    if    ``_elsewhere``
    group's that all ranks have to enter                    the fewer                    idle
    another tag on both sides of a send and a receive       both                         [6]   ``_peers``
    sends, receives and calls wait for a rank that waits    that one                     [6]   ``_peers``
    in none, or for each other                              or all of them
    some aren't in monitored_barrier, which others are in   those                        [6]   ``_monitored``
    absent, and perhaps at work, or waiting for others      those                        no    ``_perhaps``
    nothing is known of those that may be absent            those                        no    ``_perhaps``
    all have entered the call                               nobody                       no    ``_complete``
    some wait in a call that isn't recorded                 the others                   no    ``_unrecorded``
    nobody waits in a call, and one is stopped              it                           yes   ``_apart``
    nobody waits in a call: they wait for data, or compute  nobody                       yes   ``_apart``
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.facts.errors import Frame
from nbtorchjob.runtime.facts.samples import STOPPED, Collective, Group
from nbtorchjob.state.diagnosis.seen import RETURNED, Seen, Wait
from nbtorchjob.state.diagnosis.standing import (
    COMPILES,
    MEETS,
    MONITORED,
    SAVES,
    Standing,
    parties,
    standing,
    what,
)
from nbtorchjob.state.diagnosis.telling import Telling
from nbtorchjob.state.known import Known
from nbtorchjob.text.words import clip, duration, ranks

_ALIKE = ("all_reduce", "allreduce", "broadcast", "reduce")  # all ranks give as many elements of one type
_TOGETHER = frozenset(
    ("all_reduce", "barrier", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all")
)  # no rank leaves one of these before all have entered it
_ONE_FOR_ALL = ("group", "src", "dst", "op")  # of what a call is given
_GLOOS_ALIKE = (*_ALIKE, "all_gather", "_all_gather_base")  # of gloo, which has no uneven ones, of these too
_OFTEN, _MUCH_LONGER = 2, 3  # who was late so often is slow, unless it takes so much longer now
_MAX_TEXT = 700
_MOST_SIDES = 3


class Diagnosis(FrozenDataclass):
    """Why a job hangs, in a sentence, and the ranks to look at; ``frame`` is where the first of them is.

    Unless it is ``sure`` the text begins with "unsure". ``time`` is when the job was looked at. ``busy`` says
    that those ranks do what ends by itself: they compile, or save or load a checkpoint; ``slow`` that they
    were late to the calls before, and came.
    """

    text: str
    ranks: tuple[int, ...]
    frame: Frame | None
    sure: bool
    time: float
    busy: bool = False
    slow: bool = False


class _Finding(FrozenDataclass):
    text: str
    ranks: Sequence[int] = ()
    sure: bool = True
    slow: bool = False


def diagnose(known: Known, *, over: bool = False) -> Diagnosis | None:
    """Return why the newest round hangs, as its samples tell; None where they show no sign of that.

    ``over`` says that the ranks are no longer there.
    """
    sources = known.info.sources
    sampled = [sample for sample in known.samples.values() if known.base(sample.round) == known.round]
    raised = {error.rank: error.error.frames for error in known.errors if error.round == known.round}
    stands = [
        standing(rank, fact.time, sources, raised.get(rank.rank, ()))
        for fact in sampled
        for rank in fact.samples
    ]
    if not stands:
        return None
    seen = Seen(known, stands)
    telling = Telling(seen, over)
    finding = next((finding for rule in _RULES if (finding := rule(seen, telling)) is not None), None)
    if finding is None:
        return None
    text = clip(finding.text if finding.sure else f"unsure: {finding.text}", _MAX_TEXT)
    frame = next((seen.of[rank].place for rank in finding.ranks if rank in seen.of), None)
    named = [seen.of.get(rank) for rank in finding.ranks]
    busy = bool(named) and all(fact is not None and fact.waits in (SAVES, COMPILES) for fact in named)
    time = max(fact.time for fact in sampled)
    return Diagnosis(text, tuple(finding.ranks), frame, finding.sure, time, busy, finding.slow)


def _differing(seen: Seen, tell: Telling) -> _Finding | None:
    for wait in seen.waits:
        made: dict[int, dict[int, list[Collective]]] = {}  # by number and rank
        for stand in seen.of.values():
            for call in (c for g in stand.groups if g.name == wait.group.name for c in g.calls if not c.p2p):
                made.setdefault(call.seq, {}).setdefault(stand.rank, []).append(call)
        for seq, calls in sorted(made.items()):
            sides: dict[object, list[int]] = {}
            for rank, mine in sorted(calls.items()):
                sides.setdefault(tuple(map(_alike, mine)), []).append(rank)
            if len(sides) > 1:
                entered = {rank: what(mine[0]) for rank, mine in calls.items()}
                where = f"as call #{seq} of {tell.group(wait.group)}"
                return _differ(where, [*sides.values()], entered, tell)
    return None


def _differ(
    call: str, sides: list[list[int]], entered: Mapping[int, str], tell: Telling, *, over: bool = False
) -> _Finding:
    odd, *others = sorted(sides, key=lambda side: (len(side), side))
    named = odd if len(odd) < len(others[0]) else sorted([*odd, *others[0]])
    rest = ", ".join(f"{ranks(side)} {entered[side[0]]}" for side in others[:_MOST_SIDES])
    firsts = [odd[0], *(side[0] for side in others)]
    where = tell.lines(firsts) if over else tell.places(firsts)  # what those do that a call has ended?
    return _Finding(f"{call} {ranks(odd)} entered {entered[odd[0]]}, but {rest}; {where}", named)


def _broken(seen: Seen, tell: Telling) -> _Finding | None:
    for first in seen.broken:
        group, call = first
        made = {rank: known for rank in seen.members(group.name) if (known := seen.made(rank, group.name))}
        there = {rank: same for rank, calls in made.items() if (same := _numbered(calls, call.seq))}
        alike = _GLOOS_ALIKE if group.backend == "gloo" else _ALIKE
        sides: dict[object, list[int]] = {}
        for rank, same in sorted(there.items()):
            sides.setdefault(_alike(same, alike), []).append(rank)
        if len(sides) > 1:
            entered = {rank: _outer(seen.of[rank], same) for rank, same in there.items()}
            where = f"as call #{call.seq} of {tell.group(group)}"
            finding = _differ(where, [*sides.values()], entered, tell, over=True)
            # Ranks that nothing is known of, another node's, may have been on either side.
            return (
                finding
                if len(there) == len(seen.members(group.name))
                else replace(finding, ranks=sorted(there))
            )
        less = {
            rank: calls[-1].seq
            for rank, calls in made.items()
            if calls[-1].seq < call.seq and seen.ended.get(rank) == RETURNED
        }
        if less and {*there, *less} == {*seen.members(group.name)}:
            return _uneven(group, call, sorted(there), less, tell)
    return None


def _uneven(
    group: Group, call: Collective, more: list[int], less: Mapping[int, int], tell: Telling
) -> _Finding:
    counts: dict[int, list[int]] = {}
    for rank, count in sorted(less.items()):
        counts.setdefault(count, []).append(rank)
    others = ", ".join(f"{ranks(who)} made {count}" for count, who in [*counts.items()][:_MOST_SIDES])
    text = f"{ranks(more)} made {call.seq} calls in {tell.group(group)}, and {others} before returning"
    last = ", ".join(filter(None, [what(call), tell.lines(more)]))
    why = "the usual causes are uneven batches and a branch that some ranks skip"
    named = more if len(more) < len(less) else sorted([*more, *less])
    return _Finding(f"{text}; the last is {last}; {why}", named)


def _numbered(calls: Sequence[Collective], seq: int) -> Collective | None:
    return next((call for call in calls if call.seq == seq), None)


def _outer(stand: Standing, call: Collective) -> str:
    """Return ``all_gather_object (all_gather int64[1])``: what the code called, and what that made of it."""
    outer = what(call)
    return outer if stand.inside in ("", call.op) else f"{stand.inside} ({outer})"


def _arguments(seen: Seen, tell: Telling) -> _Finding | None:
    calls: dict[object, list[int]] = {}
    for rank, stand in seen.of.items():
        if stand.call is None or not stand.inside or rank in seen.ended:
            continue
        group, call = stand.call
        calls.setdefault((group.name, call.seq, call.op), []).append(rank)
        if stand.place is not None and call.op in stand.place.line:
            # One line that is given other groups of the same ranks is one call of the code's.
            line = stand.place.filename, stand.place.lineno
            calls.setdefault((line, group.ranks, call.op), []).append(rank)
    for mine in calls.values():
        sides: dict[object, list[int]] = {}
        for rank in mine:
            sides.setdefault(tuple(seen.of[rank].given.get(name) for name in _ONE_FOR_ALL), []).append(rank)
        if len(sides) > 1:
            entered = {rank: _entered(seen.of[rank], tell) for rank in mine}
            return _differ("in one call", [*sides.values()], entered, tell)
    return None


def _entered(stand: Standing, tell: Telling) -> str:
    """Return ``broadcast from rank 0 in the default group``."""
    if stand.call is None:
        return stand.inside
    group, call = stand.call
    return f"{' '.join((call.op, parties(stand.inside, stand.given))).strip()} in {tell.group(group)}"


def _alike(call: Collective, alike: Sequence[str] = _ALIKE) -> object:
    """Return what must be the same on all ranks of a call."""
    given = call.op in alike
    return call.op, call.dtypes if given else (), tuple(map(prod, call.sizes)) if given else ()


def _absent(seen: Seen, tell: Telling) -> _Finding | None:
    for wait in seen.waits:
        free = [rank for rank in wait.absent if seen.free(rank)]
        if len(wait.waiters) < len(wait.absent) and all(seen.ended.get(rank) == RETURNED for rank in free):
            if free and len(free) == len(wait.absent):
                where = "; ".join((tell.places(free), tell.places(wait.waiters)))
                return _Finding(f"{tell.waiting(wait)}, alone: {where}", wait.waiters)
            continue  # it may be that those made a call too many, and these are right to have ended
        if free and all(map(seen.silent, free)):  # they may have been stopped in it
            whom = "it" if len(free) == 1 else "them"
            return _Finding(f"{tell.places(free)}; {tell.waiting(wait, whom)}", free)
        late = seen.late(free[0], wait) if len(free) == len(wait.absent) == 1 else ()
        if len(late) >= _OFTEN and wait.seconds < _MUCH_LONGER * max(late):
            return _slow(free[0], wait, late, tell)
        if free:
            where = tell.places(free, named=True)
            return _Finding(f"{ranks(free)} never entered {tell.waited(wait)}; {where}", free)
    return None


def _slow(rank: int, wait: Wait, late: Sequence[float], tell: Telling) -> _Finding:
    times = duration(sorted(late)[len(late) // 2])
    text = f"rank {rank} is slow: it entered the last {len(late)} calls {times} after the others"
    return _Finding(
        f"{text}; {tell.waiting(wait, 'it')}; {tell.places([rank], named=True)}", [rank], slow=True
    )


def _circle(seen: Seen, tell: Telling) -> _Finding | None:
    for first in seen.waits:
        path = _way(seen, first, first, set())
        if not path:
            continue
        # Who is absent from one call waits in the next.
        turns = zip([path[-1], *path[:-1]], path, strict=True)
        inside = [[rank for rank in a.absent if seen.held_in(rank) is b] for a, b in turns]
        steps = [
            f"{ranks(who)} for {ranks(whom)} in {tell.call(wait)} ({tell.at(who[0])})"
            for wait, who, whom in zip(path, inside, [*inside[1:], inside[0]], strict=True)
        ]
        circle = sorted({rank for pair in inside for rank in pair})
        waits = f"{ranks(circle)} {tell.verb('waits', circle)} for each other"
        return _Finding(f"{waits}: {', '.join(steps)}", circle)
    return None


def _way(seen: Seen, at: Wait, to: Wait, passed: set[int]) -> list[Wait]:
    """Return the calls on a way from one to another: in each waits who is absent from the one before it."""
    following = {id(held): held for rank in at.absent if (held := seen.held_in(rank)) is not None}
    if id(to) in following:
        return [at]
    for step in following.values():
        if id(step) not in passed:
            passed.add(id(step))
            if way := _way(seen, step, to, passed):
                return [at, *way]
    return []


def _meeting(seen: Seen, tell: Telling) -> _Finding | None:
    there = [stand.rank for stand in seen.of.values() if stand.inside == MEETS]
    away = [rank for rank, stand in seen.of.items() if rank not in there and not stand.groups]
    if seen.waits or not there or not away:
        return None
    is_ = tell.verb("is", there)
    text = f"{ranks(away)} never entered {MEETS}, where {ranks(there)} {is_} waiting"
    return _Finding(f"{text}; {tell.places(away, named=True)}", away, sure=not seen.pending)


def _elsewhere(seen: Seen, tell: Telling) -> _Finding | None:
    groups = [group for stand in seen.of.values() for group in stand.groups]
    if len({group.name for group in groups}) != 1 or any(group.calls for group in groups) or seen.unseen:
        return None
    sides: dict[str, list[int]] = {}
    for rank, stand in sorted(seen.of.items()):
        if stand.inside in _TOGETHER and rank not in seen.ended:
            sides.setdefault(stand.inside, []).append(rank)
    inside = sorted(itertools.chain(*sides.values()))
    away = [rank for rank in seen.of if rank not in inside]
    if not inside or not all(map(seen.free, away)):
        return None
    if away:
        there = f"{ranks(inside)} {tell.verb('is', inside)} in {' or '.join(sides)}"
        idle = all(rank in seen.ended or seen.cant(rank) or seen.of[rank].waits for rank in away)
        if all(map(seen.silent, away)):  # they may have been stopped in it
            return _Finding(f"{tell.places(away)}; {there}", away)
        text = f"{there}, which {ranks(away)} never entered; {tell.places(away, named=True)}"
        return _Finding(text, away, sure=idle)
    entered = {rank: operation for operation, side in sides.items() for rank in side}
    return _differ("as the same call", [*sides.values()], entered, tell) if len(sides) > 1 else None


def _monitored(seen: Seen, tell: Telling) -> _Finding | None:
    there = [rank for rank, stand in seen.of.items() if stand.inside == MONITORED and stand.call is None]
    away = [rank for rank in seen.of if rank not in there and seen.free(rank)]
    if not there or not away or seen.unseen or len(there) + len(away) < len(seen.of):
        return None
    text = f"{ranks(away)} never entered {MONITORED}, where {ranks(there)} {tell.verb('is', there)} waiting"
    return _Finding(f"{text}; {tell.places(away, named=True)}", away, sure=seen.settled)


def _peers(seen: Seen, tell: Telling) -> _Finding | None:
    beginnings = [
        rank for rank, stand in seen.of.items() if stand.peer is not None and rank not in seen.ended
    ]
    for rank in beginnings:
        other = seen.of.get(seen.of[rank].peer or 0)
        if other is not None and other.peer == rank and other.inside != seen.of[rank].inside:
            pair = sorted((rank, other.rank))
            if seen.awaited(rank):
                text = f"{ranks(pair)} wait for each other with different tags or groups"
                return _Finding(f"{text}: {tell.places(pair)}", pair, sure=seen.settled)
    for rank in beginnings:
        path = _to_who_waits_for_none(seen, rank)
        if path:
            *waiting, last = path
            text = f"{tell.places(reversed(waiting))}; {tell.places([last])}"
            return _Finding(text, [last], sure=seen.settled)
    for rank in beginnings:
        circle = _ring(seen, rank)
        if circle:
            text = f"{ranks(circle)} {tell.verb('waits', circle)} for each other"
            return _Finding(f"{text}: {tell.places(circle)}", circle, sure=seen.settled)
    return None


def _to_who_waits_for_none(seen: Seen, rank: int) -> list[int]:
    """Return a way from a rank over those that it waits for to one that waits for no other."""
    ways, passed = [[rank]], {rank}
    for way in ways:
        for waiter in seen.awaited(way[-1]):
            if waiter in seen.of and seen.free(waiter):
                return [*way, waiter]
            if waiter not in passed:
                passed.add(waiter)
                ways.append([*way, waiter])
    return []


def _ring(seen: Seen, rank: int) -> list[int]:
    """Return the ranks of which each waits for another one of them, beginning with a rank."""
    passed: list[int] = []
    following = [rank]
    while following:
        step = following.pop()
        if step in passed:
            continue
        passed.append(step)
        if not seen.awaited(step):
            return []  # of that one it isn't known what it waits for
        following += seen.awaited(step)
    return sorted(passed)


def _perhaps(seen: Seen, tell: Telling) -> _Finding | None:
    for wait in seen.waits:
        others = (*wait.absent, *wait.unknown)
        if others:
            return _Finding(f"{tell.waiting(wait, ranks(others))}; {tell.places(others)}", others, sure=False)
    return None


def _complete(seen: Seen, tell: Telling) -> _Finding | None:
    for wait in seen.waits:
        done = [rank for rank in seen.members(wait.group.name) if rank not in wait.waiters]
        which = f"{ranks(done)} {tell.verb('has', done)} completed it" if done else "all ranks are in it"
        return _Finding(f"{tell.waiting(wait)}, and {which}; {tell.places(wait.waiters)}", sure=False)
    return None


def _unrecorded(seen: Seen, tell: Telling) -> _Finding | None:
    inside = [rank for rank, stand in seen.of.items() if stand.unrecorded]
    if not inside or seen.moves:
        return None
    others = sorted([*(rank for rank in seen.of if rank not in inside), *seen.unseen])
    return _Finding(f"{tell.places(inside)}; {tell.places(others)}".removesuffix("; "), others, sure=False)


def _apart(seen: Seen, tell: Telling) -> _Finding | None:
    if seen.moves:
        return None
    stopped = [rank for rank, stand in seen.of.items() if stand.state == STOPPED]
    if stopped:
        return _Finding(tell.places(stopped), stopped)
    where = tell.places([*seen.of, *seen.unseen])
    return _Finding(f"no rank waits in a collective: {where}", sure=not seen.unseen)


_RULES: tuple[Callable[[Seen, Telling], _Finding | None], ...] = (
    *(_broken, _differing, _arguments, _absent, _circle, _meeting, _elsewhere, _peers, _monitored),
    *(_perhaps, _complete, _unrecorded, _apart),
)
