"""Random programs of collectives with one planted divergence: it is named, or the diagnosis is unsure.

Some calls are made with ``async_op=True``: their rank goes on, and waits for one or all of them later.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from nbtorchjob.runtime.facts.errors import Frame
from nbtorchjob.runtime.facts.samples import BUSY, ENDED, RUNS, STOPPED, Collective, Group, RankSample, Thread
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.diagnosis import diagnose
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.text.hang import describe

NOW = 1000.0
CELL = "/tmp/ipykernel_1/1.py"
C10D = "/site-packages/torch/distributed/distributed_c10d.py"
OPS = ("all_reduce", "broadcast", "barrier", "all_gather")
SKIP, OTHER, SIZE, AWAY, SLEEP, LEAVE, STOP, HOLD, EXTRA = range(9)


@dataclass(frozen=True)
class Step:
    """A call in a group; if ``later``, its rank goes on, and waits for it later."""

    group: int
    op: str
    size: int = 4
    later: bool = False


@dataclass(frozen=True)
class Wait:
    """A wait for the oldest, or the newest, pending call that was made for later."""

    newest: bool


@dataclass(frozen=True)
class Elsewhere:
    """Something else, which never ends."""


@dataclass
class Call:
    """A call that a rank has made at ``time``."""

    step: Step
    time: float
    done: bool = False


@dataclass
class Rank:
    number: int
    program: list[Step | Wait | Elsewhere]
    at: int = 0
    made: dict[int, list[Call]] = field(default_factory=dict)  # by group
    later: list[Call] = field(default_factory=list)
    awaited: Call | None = None

    @property
    def step(self) -> Step | Wait | Elsewhere | None:
        return self.program[self.at] if self.at < len(self.program) else None

    def go(self, time: float) -> bool:
        """Go on by a step; return whether that was possible."""
        step = self.step
        if step is None or isinstance(step, Elsewhere):
            return False
        if self.awaited is None:
            self._begin(step, time)
            return True
        if self.awaited.done:
            self._end()
        return self.awaited is None

    def _begin(self, step: Step | Wait, time: float) -> None:
        if isinstance(step, Wait):
            self.awaited = self.later.pop(-1 if step.newest else 0) if self.later else None
        else:
            call = Call(step, time)
            self.made.setdefault(step.group, []).append(call)
            if step.later:
                self.later.append(call)
            else:
                self.awaited = call
        if self.awaited is None:
            self._end()

    def _end(self) -> None:
        self.at, self.awaited = self.at + 1, None


@st.composite
def programs(draw):
    """Return ranks that have run as far as they can, their groups, the divergent rank, and its fault."""
    world = draw(st.integers(3, 5))
    every = tuple(range(world))
    some = st.sets(st.sampled_from(every), min_size=2).map(lambda ranks: tuple(sorted(ranks)))
    groups = [every, *draw(st.lists(some, max_size=2))]
    where, later = st.integers(0, len(groups) - 1), st.booleans()
    call = st.builds(Step, where, st.sampled_from(OPS), st.sampled_from((4, 8)), later)
    program = draw(st.lists(call | st.builds(Wait, st.booleans()), min_size=1, max_size=10))
    ranks = [Rank(number, [s for s in program if _takes_part(number, s, groups)]) for number in every]
    odd, fault = draw(st.sampled_from(ranks)), draw(st.integers(SKIP, EXTRA))
    at = draw(st.integers(0, max(0, len(odd.program) - 1)))
    _plant(odd.program, at, fault, draw(st.sampled_from(OPS)))
    _run(ranks, groups)
    return ranks, groups, odd, fault


def _takes_part(number, step, groups):
    return isinstance(step, Wait) or number in groups[step.group]


def _plant(program, at, fault, op):
    steps = [step for step in program[at : at + 1] if isinstance(step, Step)]
    if fault == SKIP:
        del program[at : at + 1]
    elif fault == OTHER:
        program[at : at + 1] = [replace(step, op=op) for step in steps]
    elif fault == SIZE:
        program[at : at + 1] = [replace(step, size=step.size + 1) for step in steps]
    elif fault == LEAVE:
        del program[at:]
    elif fault == EXTRA:
        program[at:at] = [Step(0, op)]
    else:
        program[at:] = [Elsewhere()]


def _run(ranks, groups):
    """Run all ranks until none can go on."""
    for rank in ranks:
        rank.program += [Wait(False)] * sum(isinstance(step, Step) and step.later for step in rank.program)
    time, moved = NOW - 60, True
    while moved:
        time += 0.01
        moved = sum(rank.go(time) for rank in ranks) > 0
        for number, members in enumerate(groups):
            for calls in zip(*(ranks[member].made.get(number, []) for member in members), strict=False):
                if len({_alike(call.step) for call in calls}) > 1:
                    break  # later calls don't end either
                for call in calls:
                    moved |= not call.done
                    call.done = True


def _alike(step):
    return step.op, step.size if step.op in ("all_reduce", "broadcast") else 0


def _sample(rank, groups, fault):
    own_groups = tuple(
        Group(
            str(number),
            members,
            tuple(
                Collective(seq, call.step.op, call.time, call.done, ((call.step.size,),), ("float32",))
                for seq, call in enumerate(rank.made.get(number, []), 1)
            ),
        )
        for number, members in enumerate(groups)
        if rank.number in members
    )
    step = rank.step
    if step is None:
        return RankSample(rank.number, ENDED, note="exit code 0")
    away = isinstance(step, Elsewhere)
    if away and fault == STOP:
        return RankSample(rank.number, STOPPED)
    line = "time.sleep(9)" if away and fault == SLEEP else "work.wait()" if isinstance(step, Wait) else "f()"
    below = (Frame(C10D, 1, step.op),) if isinstance(step, Step) else ()
    stack = (Thread("MainThread", (Frame(CELL, rank.at + 1, "<module>", line), *below)),)
    if away and fault == HOLD:
        return RankSample(rank.number, BUSY, 1, stack)
    return RankSample(rank.number, RUNS, 1, stack, own_groups)


@settings(max_examples=150, deadline=None)
@given(programs())
def test_the_one_that_diverged_is_named_or_the_diagnosis_is_unsure(case):
    ranks, groups, odd, fault = case
    world = len(ranks)
    samples = tuple(_sample(rank, groups, fault) for rank in ranks)
    state = JobState(JobInfo("job", sources={CELL: ("Cell In[1]", "")}))
    for fact in (
        ev.WorkersStarted(1.0, 0, 0, 0, tuple(range(world)), world),
        ev.Sampled(NOW, 0, 0, "quiet", samples),
    ):
        state = apply(state, fact)

    diagnosis = diagnose(state)

    hangs = any(rank.awaited is not None for rank in ranks)
    if hangs:
        assert diagnosis is not None
        assert odd.number in diagnosis.ranks or not diagnosis.sure
        assert diagnosis.sure == (not describe(diagnosis).startswith("unsure"))
