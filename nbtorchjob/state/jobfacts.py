"""All facts of a job, and what follows from them directly; ``job.py`` draws the conclusions."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import field, replace
from functools import reduce
from typing import TypeAlias

from nbtorchjob.frozen import FrozenDataclass, NumberedMapping, cached_property
from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts.logs import LogTail
from nbtorchjob.state.facts.series import Point, Series, Use
from nbtorchjob.state.info import JobInfo
from nbtorchjob.state.nodes import Life, Node

# The key of an error: its round, time and rank. The lowest is the first error of the newest round.
Described: TypeAlias = tuple[int, float, int]


def described(event: ev.RankFailed) -> Described:
    """Return an error's key in :attr:`Facts.variables`."""
    return -event.round, event.error.time, event.rank


class Facts(FrozenDataclass):
    """The facts of one job. ``apply`` adds to them; nothing else does."""

    info: JobInfo
    nodes: Mapping[int, Node] = field(default_factory=NumberedMapping)
    errors: tuple[ev.RankFailed, ...] = ()  # by time, without variables
    exits: tuple[ev.RankExited, ...] = ()  # by time
    variables: Mapping[Described, Error] = field(default_factory=dict)  # some errors, with their variables
    agents: tuple[ev.NodeFailed, ...] = ()  # by time
    values: Mapping[int, ev.ValueReady] = field(default_factory=NumberedMapping)  # by rank
    artifacts: Mapping[tuple[int, int], ev.ArtifactsReady] = field(default_factory=dict)  # by attempt, node
    series: Mapping[int, Series] = field(default_factory=NumberedMapping)  # by rank
    trainer_told: tuple[ev.TrainerStatus, ...] = ()  # the newest ones, by attempt and time
    displays: tuple[ev.Displayed, ...] = ()  # rank 0's newest, by round and number
    samples: Mapping[int, ev.Sampled] = field(
        default_factory=NumberedMapping
    )  # the newest of each node, by node
    uses: Mapping[int, Use] = field(default_factory=NumberedMapping)  # by node
    logs: Mapping[int, LogTail] = field(default_factory=NumberedMapping)  # by rank
    installs: Mapping[int, ev.Installing | ev.Installed] = field(
        default_factory=NumberedMapping
    )  # the newest, by node
    fetches: Mapping[tuple[int, str], ev.Fetching | ev.Fetched] = field(
        default_factory=dict
    )  # the newest, by node and name
    met: Mapping[int, float] = field(
        default_factory=NumberedMapping
    )  # when each node last began to look for the others
    checkout: ev.CheckoutTold | None = None
    files_seen: Mapping[tuple[str, int], ev.FilesSeen] = field(default_factory=dict)  # by what and node
    annotated: ev.Annotated | None = None  # the newest note and tags
    environments: Mapping[int, ev.EnvironmentTold] = field(
        default_factory=NumberedMapping
    )  # the newest, by node
    began: Mapping[int, ev.RankBegan] = field(default_factory=NumberedMapping)  # by rank, in its newest round
    leaves: tuple[ev.NodeLeaves, ...] = ()  # the first of each round, by round
    left: tuple[ev.RankLeft, ...] = ()  # the first of each round, by round
    swaps: tuple[ev.Swapped, ...] = ()  # the newest ones, by round and id: see ``swapped``
    stops: Mapping[int, ev.RankStops] = field(default_factory=NumberedMapping)  # the newest, by rank
    goes_on: Mapping[int, ev.RankGoesOn] = field(default_factory=NumberedMapping)  # the newest, by rank
    wrote: float | None = None  # when a rank last wrote to its log; None where logs aren't read
    output: tuple[ev.NodeOutput, ...] = ()  # the newest lines, by time
    turns: tuple[ev.TurnTaken, ...] = ()  # a lab's newest, by round
    turns_placed: tuple[ev.TurnPlaced, ...] = ()  # a pool's newest, by round
    turns_over: tuple[ev.TurnEnded, ...] = ()  # by round and node
    lab_ends: ev.LabEnds | None = None
    notices: tuple[ev.Notice, ...] = ()  # by time
    waits: tuple[ev.Waiting, ...] = ()  # of the whole job: the newest for each reason, by time
    cancelled: float | None = None
    early: str = ""  # why a run was stopped early
    deadline: ev.DeadlineExceeded | None = None
    verdicts: tuple[ev.Verdict, ...] = ()  # the operator's newest verdict on each attempt, by attempt
    refused: tuple[ev.Refused, ...] = ()  # some of the facts that aren't believed
    begun: tuple[int, ...] = ()  # the attempts that are known to have started, where they are numbered
    paid: tuple[ev.AttemptPaid, ...] = ()  # by attempt
    pauses: tuple[ev.Suspended, ...] = ()  # by time
    queue: ev.Queued | None = None  # the newest from its queue
    standing: ev.Standing | None = None  # its newest place in its queue
    evictions: tuple[ev.Evicted, ...] = ()  # by its queue, by time
    removed: float | None = None
    lost: ev.Lost | None = None
    closed: float | None = None

    @cached_property
    def swapped(self) -> tuple[ev.Swapped, ...]:
        """The swaps of its code, by time; putting one back is another fact with the same number."""
        return tuple(sorted(self.swaps, key=lambda swap: (swap.time, swap.number)))

    @property
    def operator_verdict(self) -> ev.Verdict | None:
        """The operator's newest verdict."""
        return self.verdicts[-1] if self.verdicts else None

    @property
    def trainer(self) -> ev.TrainerStatus | None:
        """The newest attempt's progress as the operator last had it."""
        newest = self.trainer_told[-1] if self.trainer_told else None
        return newest if newest is not None and newest.attempt == self.tries else None

    @cached_property
    def spoken(self) -> Series:
        """What the rank that stands for all reported; if it reported nothing, what its operator received."""
        if self.info.speaker in self.series or self.info.turn:
            return self.series.get(self.info.speaker) or Series()
        points = [Point(n, status.time, status.metrics) for n, status in enumerate(self.trainer_told)]
        return reduce(lambda series, point: series.add(0, point), points, Series())

    @property
    def environment(self) -> ev.EnvironmentTold | None:
        """What its lead can import, in the newest attempt."""
        return self.environments.get(0)

    @cached_property
    def importable(self) -> ev.EnvironmentTold | None:
        """What ranks can import: the environment, with packages that local nodes report separately."""
        fact = self.environment
        if fact is None or fact.installed:
            return fact
        named = (text for install in self.installs.values() for text in getattr(install, "packages", ()))
        installed = {name: version for name, _, version in (text.rpartition(" ") for text in named)}
        return replace(fact, installed=installed) if installed else fact

    @property
    def image(self) -> str:
        """The image of its lead, by digest; "" where that is unknown."""
        return self.image_of(self.environment) if self.environment is not None else ""

    def image_of(self, fact: ev.EnvironmentTold) -> str:
        """Return the image, by digest, that a node ran when it reported ``fact``; "" where unknown."""
        life = self.nodes[fact.node].lives.get(fact.pod) if fact.node in self.nodes else None
        return life.start.image if life is not None and life.start is not None else ""

    @property
    def pause(self) -> ev.Suspended | None:
        """The newest suspension or resumption."""
        return self.pauses[-1] if self.pauses else None

    @cached_property
    def tries(self) -> int:
        """The number of the newest attempt, where attempts are numbered; else 1."""
        return max(self.numbers)

    @cached_property
    def numbers(self) -> frozenset[int]:
        """The numbers of the attempts that any fact is about, where attempts are numbered; else just 1."""
        lives = (life for node in self.nodes.values() for life in node.lives.values())
        return frozenset(
            (1, *self.begun, *(fact.attempt for fact in self.paid), *(life.attempt for life in lives))
        )

    @cached_property
    def round(self) -> int:
        """The newest round in which the worker group was started; -1 before the first."""
        return max((node.round for node in self.nodes.values()), default=-1)

    @property
    def last_round(self) -> int:
        """The newest round, those of a lab's turns included; -1 before the first."""
        return max(self.round, self.turns[-1].round if self.turns else -1)

    def base(self, round: int) -> int:
        """Return the round in which the ranks of ``round`` began: ``round`` itself, unless it is a turn's."""
        at = bisect_left(self.turns, round, key=lambda turn: turn.round)
        is_turn = at < len(self.turns) and self.turns[at].round == round
        return self.turns[at].base if is_turn else round

    @cached_property
    def restarts(self) -> int:
        """torch's restart count: 0 in the first life of an attempt's worker group."""
        newest = (w for n in self.nodes.values() for w in n.workers if w.round == self.round)
        return max((w.restart for w in newest), default=0)

    @cached_property
    def world_size(self) -> int:
        """Ranks in the newest round; 0 before the first."""
        newest = (w for n in self.nodes.values() for w in n.workers if w.round == self.round)
        return next((w.world_size for w in newest), 0)

    @cached_property
    def members(self) -> tuple[Node, ...]:
        """The nodes of the newest round, by index."""
        nodes = sorted(self.nodes.values(), key=lambda n: n.index)
        return tuple(n for n in nodes if n.round == self.round and n.workers)

    @property
    def ended(self) -> float | None:
        """When the last process ended; None while the job lives."""
        return self.closed if self.closed is not None else self.lost.time if self.lost else None

    @property
    def suspended(self) -> bool:
        """Whether the job is suspended: its nodes were taken away for a while."""
        on_hold = self.queue is not None and self.queue.held
        return self.ended is None and (on_hold or (self.pause is not None and self.pause.suspended))

    @cached_property
    def verdict(self) -> ev.Verdict | None:
        """What the operator concluded; None before that, and where a pause only looks like an end.

        A verdict on an attempt no longer counts once there is another attempt. Where an operator shows a
        suspended job like a failed one (Volcano's ``AbortJob``), only what the nodes did tells them apart.
        """
        if self.operator_verdict is None or self.operator_verdict.attempt < self.tries:
            return None
        if self.pause is None:
            return self.operator_verdict
        if self.pause.suspended:
            if self.operator_verdict.reason.startswith(ev.GIVEN_UP):
                return self.operator_verdict
            newest = (node for node in self.nodes.values() if node.life.attempt == self.tries)
            return self.operator_verdict if any(node.failed for node in newest) else None
        # Times are whole seconds: an abort that is undone within its own second is no end either.
        since = self.operator_verdict.time - self.pause.time
        return (
            self.operator_verdict if since > 0 or (since == 0 and not self.operator_verdict.pauses) else None
        )

    @property
    def queued(self) -> ev.Queued | None:
        """The newest fact from its queue while the job waits there to be admitted; else None."""
        wish = self.cancelled is not None or self.removed is not None
        if (
            self.queue is None
            or self.queue.held
            or wish
            or self.verdict is not None
            or self.ended is not None
        ):
            return None
        return None if self.queue.admitted and not self.suspended else self.queue

    def evicted(self, life: Life) -> ev.Evicted | None:
        """Return why the job's queue took that pod away; None if the queue didn't."""
        took = life.taken_at
        if took is None:
            return None
        # Times are whole seconds, and a job's pods only go once it has been suspended for the eviction.
        before = [eviction for eviction in self.evictions if eviction.time <= took + 1.0]
        if not before:
            return None
        begun = [p.time for p in self.pauses if not p.suspended and p.time > before[-1].time]
        again = min(begun, default=math.inf)
        # A list may show only much later that a pod is gone, and removing a pod dates its deletion anew.
        missed = life.vanished and life.since < again - 1.0
        return before[-1] if missed or min(took, life.end) <= again + 1.0 else None

    @property
    def working(self) -> bool:
        """Whether a node of the newest attempt takes part in the newest round."""
        return any(node.working and node.life.attempt == self.tries for node in self.nodes.values())

    @property
    def all_over(self) -> bool:
        """Whether all known nodes have ended."""
        return all(node.life.over for node in self.nodes.values())

    @cached_property
    def waiting(self) -> tuple[ev.Waiting, ...]:
        """What the job and its nodes wait for: the whole job's waits first, then its nodes', by index."""
        if self.ended is not None:
            return ()
        nodes = sorted(self.nodes.values(), key=lambda n: n.index)
        waits = tuple(wait for node in nodes if (wait := node.life.waiting) is not None)
        if self.working and self.verdict is None:
            return waits
        return (*(w for w in self.waits if self._holds(w)), *waits)

    def _holds(self, wait: ev.Waiting) -> bool:
        # Volcano says that a group can't be placed even while it places it, and after its pods have ended.
        lives = [life for node in self.nodes.values() for life in node.lives.values()]
        if wait.reason == ev.GROUP:  # the pods exist, but have no hosts
            return bool(wait.text) and not any(life.starts and not life.over for life in lives)
        if lives and wait.stage is ev.Stage.QUEUED:
            return False
        if wait.reason == "FailedCreate" and len(self.nodes) < self.info.nodes[0]:
            return True  # a quota that lets in one pod of two
        moved = [max(life.since, life.start.time if life.start else life.since) for life in lives]
        return wait.time > max(moved, default=float("-inf"))
