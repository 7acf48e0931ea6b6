"""The possible verdicts on a job that hangs: a class for each, which holds the facts it is based on.

A verdict is data; ``state/text/hang`` words it. ``ranks`` are the ranks to look at, ``waiters`` those that
wait for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.runtime.facts.samples import Collective, Group
from nbtorchjob.state.diagnosis.seen import Wait

Sides = Sequence[Sequence[int]]  # groups of ranks that did the same, the smallest first


class OtherCall(FrozenDataclass):
    """Ranks entered different operations, sizes or types at one number; ``ended``: they have ended in it."""

    group: Group
    number: int
    sides: Sides
    calls: Mapping[int, Collective]  # by rank
    ended: bool = False


class OtherArguments(FrozenDataclass):
    """Ranks wait in one call with different roots or reductions, or in different groups of the same ranks."""

    sides: Sides


class OtherOperation(FrozenDataclass):
    """All ranks wait in calls that no rank leaves before all have entered, but not in the same operation."""

    sides: Sides


class Uneven(FrozenDataclass):
    """Some ranks of a group made more calls than others, which returned or left it after fewer."""

    group: Group
    last: Collective
    more: Sequence[int]
    fewer: Mapping[int, int]  # the number of calls, by rank


class Alone(FrozenDataclass):
    """Ranks wait in a call although all others have returned."""

    wait: Wait
    returned: Sequence[int]


class Silent(FrozenDataclass):
    """Ranks are stopped, and can't report what they have entered, while others wait."""

    ranks: Sequence[int]
    wait: Wait


class Slow(FrozenDataclass):
    """A rank came ``late`` to the calls before this one: by how many seconds, the newest call first."""

    rank: int
    wait: Wait
    late: Sequence[float]


class Absent(FrozenDataclass):
    """Ranks never entered a call that others wait in."""

    ranks: Sequence[int]
    wait: Wait


class Circle(FrozenDataclass):
    """Ranks wait for each other in calls: those in a step for those in the next, the last for the first."""

    steps: Sequence[tuple[Wait, Sequence[int]]]


class Away(FrozenDataclass):
    """Ranks never entered a function that waits for all ranks, and that torch doesn't record."""

    operation: str
    ranks: Sequence[int]
    waiters: Sequence[int]


class Elsewhere(FrozenDataclass):
    """Ranks are outside the ``operations`` that others wait in, where torch records no call.

    ``silent`` ranks are stopped, and can't report what they have entered.
    """

    operations: Sequence[str]
    ranks: Sequence[int]
    waiters: Sequence[int]
    silent: bool


class Mismatched(FrozenDataclass):
    """Two ranks send to and receive from each other with different tags or groups."""

    ranks: Sequence[int]


class Chain(FrozenDataclass):
    """Each of these ranks waits for the next one, and the last one for none."""

    ranks: Sequence[int]


class Ring(FrozenDataclass):
    """These ranks wait for each other in sends, receives and collectives."""

    ranks: Sequence[int]


class Perhaps(FrozenDataclass):
    """Ranks wait in a call that these ranks may not have entered."""

    wait: Wait
    ranks: Sequence[int]


class Complete(FrozenDataclass):
    """All ranks have entered a call, which some of them still wait in."""

    wait: Wait
    completed: Sequence[int]


class Unrecorded(FrozenDataclass):
    """Ranks wait in a call that torch doesn't record, perhaps for these ranks."""

    waiters: Sequence[int]
    ranks: Sequence[int]


class Stopped(FrozenDataclass):
    """No rank waits in a collective, and these are stopped."""

    ranks: Sequence[int]


class NoCollective(FrozenDataclass):
    """No rank waits in a collective."""

    ranks: Sequence[int]


Verdict: TypeAlias = (
    OtherCall
    | OtherArguments
    | OtherOperation
    | Uneven
    | Alone
    | Silent
    | Slow
    | Absent
    | Circle
    | Away
    | Elsewhere
    | Mismatched
    | Chain
    | Ring
    | Perhaps
    | Complete
    | Unrecorded
    | Stopped
    | NoCollective
)
