"""A page has a job's nodes tell what their ranks do; what keeps all of them from it is told."""

from functools import reduce
from typing import Any

import pytest

from nbtorchjob.backends import stacks
from nbtorchjob.backends.base import NodeAnswer
from nbtorchjob.errors import JobEndedError, NBTorchJobError
from nbtorchjob.runtime.facts.samples import RUNS, RankSample
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state import events as ev
from tests.backends.full import Questions


class Asked(Questions):
    def __init__(self, *answers):
        self.answers = answers

    def snapshot(self, name):
        return reduce(apply, [ev.WorkersStarted(1.0, 0, 0, 0, (0,), 1)], JobState(JobInfo(name)))

    def ask(self, name, question, nodes=None, timeout=10.0):
        if not self.answers:
            raise JobEndedError(f"{name} has ended")
        yield from self.answers


TOLD = NodeAnswer(0, (ev.to_json(ev.Sampled(5.0, 0, 0, "asked", (RankSample(0, RUNS),))),))
SILENT = NodeAnswer(1, (), "doesn't answer since 12 s")


def test_one_node_that_answers_will_do():
    backend: Any = Asked(SILENT, TOLD)

    stacks.look(backend, "job")


@pytest.mark.parametrize(("answers", "why"), [((SILENT,), "doesn't answer since 12 s"), ((), "has ended")])
def test_says_why_none_answers(answers, why):
    backend: Any = Asked(*answers)

    with pytest.raises(NBTorchJobError, match=f"job told nothing of its ranks: .*{why}"):
        stacks.look(backend, "job")
