"""What follows an attempt that ended badly, and what the budgets have left: pure, the same for everybody.

A supervisor on this machine, whoever follows a job on a cluster and a card that is only drawn ask the
same question and get the same answer, so a retry goes on wherever it was left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.spec.policies import Retry
from nbtorchjob.state.attempts import Attempt, Budget


class Spent(FrozenDataclass):
    """One budget: how many attempts it has paid for, and how many it can; infinite where unlimited."""

    budget: Budget
    used: int
    limit: float

    @property
    def over(self) -> bool:
        """Whether more was used than there is: an operator that counts nothing went on."""
        return self.used > self.limit


class Next(FrozenDataclass):
    """The attempt that follows: its number, when (seconds since the epoch), and what it is paid from.

    ``on_demand`` says that it must not be placed where it may be preempted.
    """

    number: int
    at: float
    budget: Budget
    on_demand: bool = False


def spent(retry: Retry, attempts: Sequence[Attempt]) -> tuple[Spent, ...]:
    """Return what each budget has paid for: what is behind each attempt that drew on it, if it had that."""
    used = [attempt.budget for attempt in attempts]
    last = used[-1] if used else None
    return tuple(
        Spent(budget, used.count(budget) - (last is budget and used.count(budget) > limit), limit)
        for budget, limit in _limits(retry).items()
    )


def _limits(retry: Retry) -> dict[Budget, float]:
    return {Budget.FAILURES: float(retry.retries), Budget.PREEMPTIONS: retry.most_preemptions}


def following(retry: Retry, attempts: Sequence[Attempt], tries: int, ended: float) -> Next | None:
    """Return what follows the newest of ``attempts``, which ended badly; None where nothing may.

    ``tries`` is its number, ``ended`` when it ended.
    """
    budget = attempts[-1].budget
    counts = {use.budget: use for use in spent(retry, attempts)}
    if budget is None or sum(attempt.budget is budget for attempt in attempts) > _limits(retry)[budget]:
        return None
    used_up = any(spent.used >= spent.limit for spent in counts.values() if 0 < spent.limit < math.inf)
    last = used_up or counts[Budget.PREEMPTIONS].limit == 0
    return Next(tries + 1, ended + retry.delay(tries), budget, retry.on_demand_last and last)


def first_on_demand(retry: Retry | None) -> bool:
    """Whether even the first attempt is the last, and so must not be preemptible."""
    return retry is not None and retry.on_demand_last and retry.most_preemptions == 0
