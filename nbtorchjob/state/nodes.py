"""A node, and its lives: its pods or, on this machine, its process."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field

from nbtorchjob.frozen import FrozenDataclass, cached_property, replace
from nbtorchjob.runtime.facts import exits
from nbtorchjob.state.facts import events as ev

# How a container ends on request: with code 0, by SIGTERM or SIGKILL, with an agent's own codes, or unseen.
ON_DEMAND = (0, 143, 137, exits.CANCELLED, exits.LEFT, None)


class Life(FrozenDataclass):
    """One pod of a node; on this machine, where there are none, the node's process."""

    pod: str = ""
    since: float = float("inf")  # the time of the earliest fact
    starts: tuple[ev.NodeStarted, ...] = ()  # one for each run of its container, by run
    exits: tuple[ev.NodeExited, ...] = ()  # one for each run, by run
    disruption: ev.NodeDisrupted | None = None  # the first
    wait: ev.Waiting | None = None  # the newest of the furthest stage
    gone_at: float | None = None
    attempt: int = 1
    restarts: int | None = None  # of all nodes by their operator before this pod, where pods record that

    @property
    def start(self) -> ev.NodeStarted | None:
        """How its newest run began."""
        return self.starts[-1] if self.starts else None

    @property
    def exit(self) -> ev.NodeExited | None:
        """How its newest run ended; None while it runs."""
        if not self.exits:
            return None
        start, exit_ = self.start, self.exits[-1]
        # The API's times are whole seconds, so a run may seem to end when it starts.
        running = start is not None and (start.run, start.time) > (exit_.run, exit_.time)
        return None if running else exit_

    @property
    def running(self) -> bool:
        """Whether its process is running, as far as is known."""
        return bool(self.starts) and self.exit is None and self.gone_at is None

    @property
    def over(self) -> bool:
        """Whether its process has ended for good; a container that is being restarted in place hasn't."""
        return self.gone_at is not None or (self.exit is not None and self.waiting is None)

    @property
    def waiting(self) -> ev.Waiting | None:
        """Why it doesn't run yet, or not again; None where it runs or ran."""
        wait, exit_ = self.wait, self.exit
        if wait is None or self.disruption is not None or self.gone_at is not None:
            return None
        if exit_ is not None:
            between = wait.stage is ev.Stage.RESTARTING and (wait.run, wait.time) >= (exit_.run, exit_.time)
            return wait if between else None
        return None if self.starts else wait

    def runs(self) -> tuple[Life, ...]:
        """Return a life for each run of its container, in order: the kubelet may restart it in place."""
        starts = {start.run: start for start in self.starts}
        exits_ = {exit_.run: exit_ for exit_ in self.exits}
        numbers = sorted(starts.keys() | exits_.keys()) or [0]
        if numbers == [0]:  # true of most
            return (self,)
        lives = []
        for number in numbers:
            start, exit_ = starts.get(number), exits_.get(number)
            since = start.time if start is not None and start.run else self.since
            own_starts, own_exits = (start,) if start else (), (exit_,) if exit_ else ()
            if number == numbers[-1]:
                lives.append(replace(self, since=since, starts=own_starts, exits=own_exits))
            else:
                lives.append(Life(self.pod, since, own_starts, own_exits, attempt=self.attempt))
        return tuple(lives)

    @property
    def again(self) -> int:
        """How often its container was started again in place."""
        return max([*(start.run for start in self.starts), *(exit_.run for exit_ in self.exits)], default=0)

    @property
    def ended_badly(self) -> bool:
        """Whether it failed, or was taken away."""
        failed = self.exit is not None and self.exit.code != 0
        return failed or self.vanished or self.disruption is not None

    @property
    def vanished(self) -> bool:
        """Whether it is gone, without any fact about how it ended or what took it."""
        return self.gone_at is not None and self.exit is None and self.disruption is None

    @property
    def taken_at(self) -> float | None:
        """When its pod was simply deleted, or found to be gone for no known reason; None for other ends."""
        if self.disruption is not None:
            return self.disruption.time if self.disruption.reason == ev.DELETED else None
        return self.gone_at if self.vanished else None

    @property
    def end(self) -> float:
        """When it ended, or was told to end; when it began if it still lives."""
        if self.exit is not None:
            return self.exit.time
        times = (self.gone_at, self.disruption.time if self.disruption else None)
        return min((time for time in times if time is not None), default=self.since)

    @property
    def failure(self) -> ev.NodeExited | None:
        """The exit of a run that failed by itself; None for other runs."""
        exit_ = self.exit
        if exit_ is None or exit_.code == 0 or self.ended_on_demand(exit_):
            return None
        return exit_

    def ended_on_demand(self, exit_: ev.NodeExited) -> bool:
        """Whether a run ended because its pod was taken away, and not the other way round."""
        if self.disruption is None or exit_ is not self.exits[-1]:
            return False
        # The API's times are whole seconds: within one, only the code tells what came first.
        at = self.disruption.time
        return at < exit_.time or (at == exit_.time and exit_.code in ON_DEMAND)


class Node(FrozenDataclass):
    """One agent of the job: its index, its lives, and the rounds that it took part in."""

    index: int
    lives: Mapping[str, Life] = field(default_factory=dict)  # by pod
    workers: tuple[ev.WorkersStarted, ...] = ()  # one for each round, by round

    @cached_property
    def aged(self) -> tuple[Life, ...]:
        """Its lives, the newest last."""
        if len(self.lives) == 1:  # true of most nodes of most jobs
            return tuple(self.lives.values())
        joined = {worker.pod: worker.time for worker in reversed(self.workers)}

        # A recreated pod may have been born in the same second as the one before. Where its operator doesn't
        # count restarts, a pod that never joined the others is older than those that did if it is over, and
        # newer if it isn't: then it has still to join.
        def age(life: Life) -> tuple[int, float, int, float, float, float, str]:
            never = -math.inf if life.over else math.inf
            return (
                life.attempt,
                life.since,
                life.restarts or 0,
                joined.get(life.pod, never),
                life.end if life.over else math.inf,
                life.gone_at or 0.0,
                life.pod,
            )

        return tuple(sorted(self.lives.values(), key=age))

    @cached_property
    def life(self) -> Life:
        """Its newest life."""
        return self.aged[-1] if self.aged else Life()

    @property
    def host(self) -> str:
        """The machine that it is on."""
        return self.life.start.host if self.life.start else ""

    @property
    def pid(self) -> int:
        """Its process; 0 on a cluster."""
        return self.life.start.pid if self.life.start else 0

    @property
    def started(self) -> float | None:
        """When it started."""
        return self.life.start.time if self.life.start else None

    @property
    def ended(self) -> float | None:
        """When it ended; None while it lives."""
        return self.life.exit.time if self.life.exit else self.life.gone_at

    @property
    def code(self) -> int | None:
        """Its exit code."""
        return self.life.exit.code if self.life.exit else None

    @property
    def signal(self) -> int | None:
        """The signal that ended it."""
        return self.life.exit.signal if self.life.exit else None

    def ended_well(self, verdict: ev.Verdict | None = None) -> bool:
        """Whether it ended with code 0, and by itself: an evicted pod may end with code 0, too.

        Once there is a ``verdict``, operators delete pods (``cleanPodPolicy``), maybe while these end or
        before their end was seen: that doesn't count against a node.
        """
        exit_, took = self.life.exit, self.life.disruption
        if exit_ is None and (self.life.gone_at is None or verdict is None):
            return False
        if took is None or (exit_ is not None and not self.life.ended_on_demand(exit_)):
            return exit_ is None or exit_.code == 0
        return took.reason == ev.DELETED and verdict is not None and took.time >= verdict.time

    def life_of(self, event: ev.WorkersStarted | ev.NodeFailed) -> Life:
        """Return the life that reported ``event``."""
        return self.lives[event.pod] if event.pod in self.lives else self.life_at(event.time)

    def life_at(self, time: float) -> Life:
        """Return the node's life at ``time``."""
        born = [life for life in self.aged if life.since <= time]
        # A pod's clock may be behind the API's, whose times are whole seconds.
        return (born[-1:] or [*self.aged[:1], Life()])[0]

    def round_at(self, time: float, pod: str = "") -> int:
        """The round that it was in at ``time``, in its ``pod`` where that is known; -1 before the first."""
        # A time of whole seconds is the API's: what began within that second counts as before it.
        whole = time % 1 == 0
        workers = [w for w in self.workers if not pod or w.pod in ("", pod)]
        return max((w.round for w in workers if w.time <= time or (whole and w.time < time + 1)), default=-1)

    @property
    def failed(self) -> bool:
        """Whether it ended badly, and by itself; losing a peer doesn't count if it was also deleted."""
        exit_, took = self.life.failure, self.life.disruption
        if exit_ is None:
            return False
        deleted = took is not None and took.reason == ev.DELETED
        return not (deleted and exit_.code == exits.INFRASTRUCTURE_ERROR)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The global ranks it had in its newest round."""
        return self.workers[-1].ranks if self.workers else ()

    @property
    def round(self) -> int:
        """Its newest round; -1 before the first."""
        return self.workers[-1].round if self.workers else -1

    @property
    def working(self) -> bool:
        """Whether the life that took part in its newest round is still its newest one."""
        life = self.life
        if not self.workers or life.gone_at is not None:
            return False
        if self.workers[-1].pod in self.lives:
            # By its times a pod may seem to belong to the round before: the API's are whole seconds.
            return self.workers[-1].pod == life.pod
        born = life.since if life.starts or life.wait else float("-inf")
        return born <= self.workers[-1].time

    @property
    def left(self) -> bool:
        """Whether it is no longer in its newest round, and didn't end well."""
        return not self.working or (self.ended is not None and self.code != 0)
