"""Why a job hangs: which rank the others wait for, and where it is.

Theory of operation
===================

Ranks wait for each other in collectives. A collective ends when every rank of its group has entered it, so
most ranks of a job that hangs are found in one, and the rank to look at is elsewhere: it hasn't entered it. A
sample shows which calls each rank has made in each group, and where its stack is. Calls are counted within a
group, so a number means the same call on all ranks of the group. From that:

1. *A call is waited in* where a rank entered it more than a moment ago and it isn't done: the ranks of a
   healthy job are found in collectives, too. Ranks of the group that made fewer calls are *absent* from it.
2. *A call differs* where ranks have entered different operations at the same number. They took different
   paths, or one of them skipped a call, and its numbers have been off by one since. A call that needs equally
   many elements of one type on all ranks, and got others, differs as well. The smaller of two sides is named.
3. *An absent rank may itself wait*, in a call of another group, and then the ranks that are absent from that
   call are to blame, and so on. This ends at a rank that waits in no call, which is the one to name, or in a
   circle.
4. A rank that is stopped, or held by something in C, doesn't report its calls; but it enters none either, nor
   does one that has ended. If one rank is left in a call, and all others have returned, it has made a call
   too many.
5. Samples of several nodes aren't of one moment. A rank is absent only if it was sampled after another rank
   had begun to wait for it; otherwise it may be there by now. Nothing is known of ranks without a sample.
6. Some calls aren't recorded (gloo's send, recv, monitored_barrier). A stack shows that a rank waits in one,
   and the frame for which rank; for the handle that ``irecv`` returns, nothing shows that. How long the rank
   has waited is unknown, too: a conclusion from such a call is sure only if nothing had moved for long.
   NCCL's are recorded, but don't show in the stack: a rank that has one under way may wait for the other side
   or be at work, so it isn't the one to name, and conclusions from it are unsure.
7. A frame also holds the arguments of a call: if ranks wait in one call with different roots or reductions,
   or are in one line with different groups of the same ranks, they don't mean the same call.
8. A collective may give up at once: a rank that has left closes its connections, and gloo ends a rank that
   gets data of another size. Ranks report their calls before they end. The last call of a rank is the one
   that gave up: another rank was in another call there, or had ended before it.
9. Where torch records no calls (gloo's before 2.9), a stack shows that a rank is in a call that needs all
   ranks. A rank that isn't in one, and does nothing that would end by itself, keeps the others waiting.

A diagnosis is *sure* if these leave no other rank to name. Otherwise it says "unsure", and what is known.
The first of these that applies:

    seen                                                    named                        sure  rule
    ------------------------------------------------------  ---------------------------  ----  --------------
    another operation, size or type at one number           the fewer; both, if as many  yes   ``_differing``
    the newest call of a rank that a collective ended:      as above                     yes   ``_broken``
    another operation, size or type there
    the same, and all others had returned, or destroyed     the fewer; all, if as many   yes   ``_broken``
    the group, before
    another root or reduction in one call, or another       the fewer; both, if as many  yes   ``_arguments``
    group of the same ranks in one line
    absent, and it waits in no call: it is somewhere else,  it, and where it is          yes   ``_absent``
    has ended, is stopped, or is held by something in C
    the same, and it came late to the calls before          it, which is slow            yes   ``_absent``
    one waits in a call, and all others have returned       that one                     yes   ``_absent``
    each is absent from the call that another one waits in  all of them                  yes   ``_circle``
    some aren't in init_process_group, which others are in  those                        yes   ``_meeting``
    no call is recorded, there is one group, and some       those; if all are in one,    if    ``_elsewhere``
    aren't in a call of it that all ranks have to enter     the fewer                    idle
    another tag on both sides of a send and a receive       both                         [6]   ``_peers``
    ranks in sends, receives and calls wait for one that    that one,                    [6]   ``_peers``
    waits in none, or for each other                        or all of them
    some aren't in monitored_barrier, which others are in   those                        [6]   ``_monitored``
    absent, and perhaps at work, or waiting for others      those                        no    ``_perhaps``
    nothing is known of those that may be absent            those                        no    ``_perhaps``
    all have entered the call                               none                         no    ``_complete``
    some wait in a call that isn't recorded                 the others                   no    ``_unrecorded``
    none waits in a call, and one is stopped                it                           yes   ``_none_waits``
    none waits in a call: they wait for data, or compute    none                         yes   ``_none_waits``
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TypeAlias

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.facts.errors import Frame
from nbtorchjob.runtime.facts.samples import STOPPED, Collective
from nbtorchjob.state.diagnosis import verdicts
from nbtorchjob.state.diagnosis.seen import ENDS_BY_ITSELF, MEETS, MONITORED, Seen, Wait, standing
from nbtorchjob.state.diagnosis.verdicts import Sides, Verdict
from nbtorchjob.state.jobfacts import Facts

_ALIKE = ("all_reduce", "allreduce", "broadcast", "reduce")  # all ranks pass equally many items of one type
_TOGETHER = frozenset(
    ("all_reduce", "barrier", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all")
)  # no rank leaves one of these before all have entered it
_ONE_FOR_ALL = ("group", "src", "dst", "op")  # the arguments that must agree on all ranks
_GLOOS_ALIKE = (*_ALIKE, "all_gather", "_all_gather_base")  # gloo has no uneven gathers
_OFTEN, _MUCH_LONGER = 2, 3  # a rank late this often is slow, unless it takes this many times longer now


class Diagnosis(FrozenDataclass):
    """Why a job hangs: a ``verdict``, and the ranks to look at; ``frame`` is where the first of them is.

    It is based on what is ``seen``; ``over`` says that the ranks no longer exist. ``time`` is when the job
    was sampled. ``busy`` says that those ranks do something that ends by itself: they compile, or save or
    load a checkpoint; ``slow`` that they came late to the calls before. ``state/text/hang`` words it.
    """

    verdict: Verdict
    ranks: tuple[int, ...]
    frame: Frame | None
    sure: bool
    time: float
    seen: Seen
    over: bool = False
    busy: bool = False
    slow: bool = False


class _Finding(FrozenDataclass):
    verdict: Verdict
    ranks: Sequence[int] = ()
    sure: bool = True


_Rule: TypeAlias = Callable[[Seen], _Finding | None]
_RULES: list[_Rule] = []  # in the order of their definitions; the first that concludes anything counts


def _rule(concludes: _Rule) -> _Rule:
    """Make a function a rule, after those above it."""
    _RULES.append(concludes)
    return concludes


def diagnose(facts: Facts, *, over: bool = False) -> Diagnosis | None:
    """Return why the newest round hangs, according to its samples; None where they show no sign of that.

    ``over`` says that the ranks no longer exist.
    """
    sources = facts.info.sources
    sampled = [sample for sample in facts.samples.values() if facts.base(sample.round) == facts.round]
    raised = {error.rank: error.error.frames for error in facts.errors if error.round == facts.round}
    standings = [
        standing(rank, fact.time, sources, raised.get(rank.rank, ()))
        for fact in sampled
        for rank in fact.samples
    ]
    if not standings:
        return None
    seen = Seen(facts, standings)
    finding = next((finding for rule in _RULES if (finding := rule(seen)) is not None), None)
    if finding is None:
        return None
    named = [seen.of.get(rank) for rank in finding.ranks]
    return Diagnosis(
        finding.verdict,
        tuple(finding.ranks),
        next((stand.place for stand in named if stand is not None), None),
        finding.sure,
        max(fact.time for fact in sampled),
        seen,
        over,
        busy=bool(named) and all(stand is not None and stand.waits in ENDS_BY_ITSELF for stand in named),
        slow=isinstance(finding.verdict, verdicts.Slow),
    )


@_rule
def _broken(seen: Seen) -> _Finding | None:
    for group, call in seen.broken:
        by_rank = {
            rank: calls for rank in seen.members(group.name) if (calls := seen.calls(rank, group.name))
        }
        numbered = {
            rank: next((c for c in calls if c.seq == call.seq), None) for rank, calls in by_rank.items()
        }
        matches = {rank: same for rank, same in numbered.items() if same is not None}
        alike = _GLOOS_ALIKE if group.backend == "gloo" else _ALIKE
        sides = _sides({rank: _alike(same, alike) for rank, same in sorted(matches.items())})
        if len(sides) > 1:
            # Ranks without a sample, on another node, may have been on either side.
            all_known = seen.are_all(matches, group.name)
            return _Finding(
                verdicts.OtherCall(group, call.seq, sides, matches, ended=True),
                _odd(sides) if all_known else sorted(matches),
            )
        fewer = {
            rank: calls[-1].seq
            for rank, calls in by_rank.items()
            if calls[-1].seq < call.seq and seen.has_left(rank, group.name)
        }
        if fewer and seen.are_all({*matches, *fewer}, group.name):
            more = sorted(matches)
            named = more if len(more) < len(fewer) else sorted([*more, *fewer])
            return _Finding(verdicts.Uneven(group, call, more, fewer), named)
    return None


@_rule
def _differing(seen: Seen) -> _Finding | None:
    for wait in seen.waits:
        by_number: dict[int, dict[int, list[Collective]]] = {}  # by number and rank
        for stand in seen.of.values():
            for call in (c for g in stand.groups if g.name == wait.group.name for c in g.calls if not c.p2p):
                by_number.setdefault(call.seq, {}).setdefault(stand.rank, []).append(call)
        for number, calls in sorted(by_number.items()):
            sides = _sides({rank: tuple(map(_alike, own_calls)) for rank, own_calls in sorted(calls.items())})
            if len(sides) > 1:
                first = {rank: own_calls[0] for rank, own_calls in calls.items()}
                return _Finding(verdicts.OtherCall(wait.group, number, sides, first), _odd(sides))
    return None


def _sides(key_of: Mapping[int, object]) -> Sides:
    """Return the ranks grouped by key, the smallest group first."""
    alike: dict[object, list[int]] = {}
    for rank, key in key_of.items():
        alike.setdefault(key, []).append(rank)
    return sorted(alike.values(), key=lambda side: (len(side), side))


def _odd(sides: Sides) -> Sequence[int]:
    """Return the ranks to name: the smaller side, or both where they are equal in size."""
    odd, other, *_ = sides
    return odd if len(odd) < len(other) else sorted([*odd, *other])


@_rule
def _arguments(seen: Seen) -> _Finding | None:
    calls: dict[object, list[int]] = {}
    for rank, stand in seen.of.items():
        if stand.call is None or not stand.inside or rank in seen.ended:
            continue
        group, call = stand.call
        calls.setdefault((group.name, call.seq, call.op), []).append(rank)
        if stand.place is not None and call.op in stand.place.line:
            # One line with different groups of the same ranks is a single call in the user's code.
            line = stand.place.filename, stand.place.lineno
            calls.setdefault((line, group.ranks, call.op), []).append(rank)
    for callers in calls.values():
        sides = _sides({rank: tuple(map(seen.of[rank].arguments.get, _ONE_FOR_ALL)) for rank in callers})
        if len(sides) > 1:
            return _Finding(verdicts.OtherArguments(sides), _odd(sides))
    return None


def _alike(call: Collective, alike: Sequence[str] = _ALIKE) -> object:
    """Return what must be the same on all ranks of a call."""
    sized = call.op in alike
    return call.op, call.dtypes if sized else (), tuple(map(prod, call.sizes)) if sized else ()


@_rule
def _absent(seen: Seen) -> _Finding | None:
    for wait in seen.waits:
        free = [rank for rank in wait.absent if seen.free(rank)]
        if len(wait.waiters) < len(wait.absent) and all(map(seen.returned, free)):
            if free and len(free) == len(wait.absent):
                return _Finding(verdicts.Alone(wait, free), wait.waiters)
            continue  # the waiters may have made a call too many, and the others rightly ended
        if free and all(map(seen.silent, free)):  # they may have been stopped in the call
            return _Finding(verdicts.Silent(free, wait), free)
        late = seen.late(free[0], wait) if len(free) == len(wait.absent) == 1 else ()
        if len(late) >= _OFTEN and wait.seconds < _MUCH_LONGER * max(late):
            return _Finding(verdicts.Slow(free[0], wait, late), free)
        if free:
            return _Finding(verdicts.Absent(free, wait), free)
    return None


@_rule
def _circle(seen: Seen) -> _Finding | None:
    for first in seen.waits:
        path = _way(seen, first, first, set())
        if not path:
            continue
        # The ranks that are absent from one call wait in the next.
        turns = zip([path[-1], *path[:-1]], path, strict=True)
        steps = [(b, [rank for rank in a.absent if seen.held_in(rank) is b]) for a, b in turns]
        return _Finding(verdicts.Circle(steps), sorted({rank for _, inside in steps for rank in inside}))
    return None


def _way(seen: Seen, at: Wait, to: Wait, passed: set[int]) -> list[Wait]:
    """Return the calls on a path from ``at`` to ``to``: ranks absent from one call wait in the next."""
    following = {id(wait): wait for rank in at.absent if (wait := seen.held_in(rank)) is not None}
    if id(to) in following:
        return [at]
    for step in following.values():
        if id(step) not in passed:
            passed.add(id(step))
            if way := _way(seen, step, to, passed):
                return [at, *way]
    return []


@_rule
def _meeting(seen: Seen) -> _Finding | None:
    callers = [stand.rank for stand in seen.of.values() if stand.inside == MEETS]
    away = [
        rank for rank, stand in seen.of.items() if rank not in callers and all(g.left for g in stand.groups)
    ]
    if seen.waits or not callers or not away:
        return None
    return _Finding(verdicts.Away(MEETS, away, callers), away, sure=not seen.pending)


@_rule
def _elsewhere(seen: Seen) -> _Finding | None:
    groups = [group for stand in seen.of.values() for group in stand.groups]
    if len({group.name for group in groups}) != 1 or any(group.calls for group in groups) or seen.unseen:
        return None
    inside = {
        rank: stand.inside
        for rank, stand in sorted(seen.of.items())
        if stand.inside in _TOGETHER and rank not in seen.ended
    }
    away = [rank for rank in seen.of if rank not in inside]
    if not inside or not all(map(seen.free, away)):
        return None
    if not away:
        sides = _sides(inside)
        return _Finding(verdicts.OtherOperation(sides), _odd(sides)) if len(sides) > 1 else None
    silent = all(map(seen.silent, away))  # they may have been stopped in the call
    idle = all(rank in seen.ended or seen.cant(rank) or seen.of[rank].waits for rank in away)
    verdict = verdicts.Elsewhere([*dict.fromkeys(inside.values())], away, [*inside], silent)
    return _Finding(verdict, away, sure=silent or idle)


@_rule
def _peers(seen: Seen) -> _Finding | None:
    beginnings = [
        rank for rank, stand in seen.of.items() if stand.peer is not None and rank not in seen.ended
    ]
    for rank in beginnings:
        other = seen.of.get(seen.of[rank].peer or 0)
        if other is not None and other.peer == rank and other.inside != seen.of[rank].inside:
            pair = sorted((rank, other.rank))
            if seen.awaited(rank):
                return _Finding(verdicts.Mismatched(pair), pair, sure=_all_wait(seen, pair))
    for rank in beginnings:
        path = _to_who_waits_for_none(seen, rank)
        if path:
            return _Finding(verdicts.Chain(path), path[-1:], sure=_all_wait(seen, path))
    for rank in beginnings:
        circle = _ring(seen, rank)
        if circle:
            return _Finding(verdicts.Ring(circle), circle, sure=_all_wait(seen, circle))
    return None


def _all_wait(seen: Seen, ranks: Sequence[int]) -> bool:
    """Whether ranks surely wait in their sends and receives: they have for long, with no other work."""
    return seen.settled and not any(seen.of[rank].beside for rank in ranks)


@_rule
def _monitored(seen: Seen) -> _Finding | None:
    callers = [rank for rank, stand in seen.of.items() if stand.inside == MONITORED]
    away = [rank for rank in seen.of if rank not in callers and seen.free(rank)]
    if not callers or not away or seen.unseen or len(callers) + len(away) < len(seen.of):
        return None
    return _Finding(verdicts.Away(MONITORED, away, callers), away, sure=seen.settled)


def _to_who_waits_for_none(seen: Seen, rank: int) -> list[int]:
    """Return a path from a rank, along the ranks that each waits for, to a rank that waits for none."""
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
    """Return all ranks that ``rank`` waits for, directly or not, if each of them waits, too; else none."""
    passed: list[int] = []
    following = [rank]
    while following:
        step = following.pop()
        if step in passed:
            continue
        passed.append(step)
        if not seen.awaited(step):
            return []  # it is unknown what that rank waits for
        following += seen.awaited(step)
    return sorted(passed)


@_rule
def _perhaps(seen: Seen) -> _Finding | None:
    for wait in seen.waits:
        others = (*wait.absent, *wait.unknown)
        if others:
            return _Finding(verdicts.Perhaps(wait, others), others, sure=False)
    return None


@_rule
def _complete(seen: Seen) -> _Finding | None:
    for wait in seen.waits:
        done = [rank for rank in seen.members(wait.group.name) if rank not in wait.waiters]
        return _Finding(verdicts.Complete(wait, done), sure=False)
    return None


@_rule
def _unrecorded(seen: Seen) -> _Finding | None:
    inside = [rank for rank, stand in seen.of.items() if stand.unrecorded]
    if not inside or seen.moves:
        return None
    others = sorted([*(rank for rank in seen.of if rank not in inside), *seen.unseen])
    return _Finding(verdicts.Unrecorded(inside, others), others, sure=False)


@_rule
def _none_waits(seen: Seen) -> _Finding | None:
    if seen.moves:
        return None
    stopped = [rank for rank, stand in seen.of.items() if stand.state == STOPPED]
    if stopped:
        return _Finding(verdicts.Stopped(stopped), stopped)
    return _Finding(verdicts.NoCollective([*seen.of, *seen.unseen]), sure=not seen.unseen)
