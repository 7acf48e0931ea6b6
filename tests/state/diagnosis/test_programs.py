"""Random programs of collectives with one planted divergence: it is named, or the diagnosis is unsure."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from nbtorchjob.runtime.errors import Frame
from nbtorchjob.runtime.samples import BUSY, ENDED, RUNS, STOPPED, Collective, Group, RankSample, Thread
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state import events as ev
from nbtorchjob.state.diagnosis import diagnose

NOW = 1000.0
CELL = "/tmp/ipykernel_1/1.py"
C10D = "/site-packages/torch/distributed/distributed_c10d.py"
OPS = ("all_reduce", "broadcast", "barrier", "all_gather")
SKIP, OTHER, SIZE, AWAY, LEAVE, STOP, HOLD, EXTRA = range(8)


@dataclass(frozen=True)
class Step:
    """A call of a group; without an operation something else, that takes for ever."""

    group: int
    op: str
    size: int = 4


@dataclass
class Rank:
    number: int
    program: list[Step]
    at: int = 0
    made: dict[int, list[tuple[Step, bool]]] = field(default_factory=dict)  # by group

    @property
    def step(self) -> Step | None:
        return self.program[self.at] if self.at < len(self.program) else None


@st.composite
def programs(draw):
    """Return the ranks after they have run as far as they come, the planted one, and what was planted."""
    world = draw(st.integers(3, 5))
    every = tuple(range(world))
    some = st.sets(st.sampled_from(every), min_size=2).map(lambda ranks: tuple(sorted(ranks)))
    groups = [every, *draw(st.lists(some, max_size=2))]
    step = st.builds(Step, st.integers(0, len(groups) - 1), st.sampled_from(OPS), st.sampled_from((4, 8)))
    program = draw(st.lists(step, min_size=1, max_size=8))
    ranks = [Rank(number, [s for s in program if number in groups[s.group]]) for number in every]
    odd, what = draw(st.sampled_from(ranks)), draw(st.integers(SKIP, EXTRA))
    at = draw(st.integers(0, max(0, len(odd.program) - 1)))
    _plant(odd.program, at, what, draw(st.sampled_from(OPS)))
    _run(ranks, groups)
    return ranks, groups, odd, what


def _plant(program, at, what, op):
    mine = program[at : at + 1]
    if what == SKIP:
        del program[at : at + 1]
    elif what == OTHER:
        program[at : at + 1] = [Step(each.group, op, each.size) for each in mine]
    elif what == SIZE:
        program[at : at + 1] = [Step(each.group, each.op, each.size + 1) for each in mine]
    elif what == LEAVE:
        del program[at:]
    elif what == EXTRA:
        program[at:at] = [Step(0, op)]
    else:
        program[at:] = [Step(-1, "")]


def _run(ranks, groups):
    """Have each rank enter its calls until none gets any further."""
    moved = True
    while moved:
        moved = False
        for rank in ranks:
            step = rank.step
            if step is not None and step.group >= 0 and not _waits(rank):
                rank.made.setdefault(step.group, []).append((step, False))
                moved = True
        for number, members in enumerate(groups):
            there = [rank for rank in ranks if rank.number in members]
            if all(_waits(rank) and rank.step.group == number for rank in there):
                at = {len(rank.made[number]) for rank in there}
                alike = {
                    (r.step.op, r.step.size if r.step.op in ("all_reduce", "broadcast") else 0) for r in there
                }
                if len(at) == len(alike) == 1:
                    for rank in there:
                        rank.made[number][-1] = (rank.step, True)
                        rank.at += 1
                    moved = True


def _waits(rank):
    step = rank.step
    made = rank.made.get(step.group, []) if step is not None else []
    return bool(made) and not made[-1][1]


def _sample(rank, groups, what):
    known = tuple(
        Group(
            str(number),
            members,
            tuple(
                Collective(seq, step.op, NOW - 60, done, ((step.size,),), ("float32",))
                for seq, (step, done) in enumerate(rank.made.get(number, []), 1)
            ),
        )
        for number, members in enumerate(groups)
        if rank.number in members
    )
    if rank.step is None:
        return RankSample(rank.number, ENDED, note="exit code 0")
    away = rank.step.group < 0
    if away and what == STOP:
        return RankSample(rank.number, STOPPED)
    below = () if away else (Frame(C10D, 1, rank.step.op),)
    stack = (Thread("MainThread", (Frame(CELL, rank.at + 1, "<module>"), *below)),)
    if away and what == HOLD:
        return RankSample(rank.number, BUSY, 1, stack)
    return RankSample(rank.number, RUNS, 1, stack, known)


@settings(max_examples=150, deadline=None)
@given(programs())
def test_the_one_that_diverged_is_named_or_the_diagnosis_is_unsure(case):
    ranks, groups, odd, what = case
    world = len(ranks)
    samples = tuple(_sample(rank, groups, what) for rank in ranks)
    state = JobState(JobInfo("job", sources={CELL: ("Cell In[1]", "")}))
    for fact in (
        ev.WorkersStarted(1.0, 0, 0, 0, tuple(range(world)), world),
        ev.Sampled(NOW, 0, 0, "quiet", samples),
    ):
        state = apply(state, fact)

    found = diagnose(state)

    hangs = any(rank.step is not None and rank.step.group >= 0 for rank in ranks)
    if hangs:
        assert found is not None
        assert odd.number in found.ranks or not found.sure
        assert found.sure == (not found.text.startswith("unsure"))
