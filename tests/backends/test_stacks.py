"""Stacks of a job's ranks, as its nodes report them to a page, or the reason if no node does."""

import base64
import json
import zlib
from functools import reduce
from typing import Any

import pytest

from nbtorchjob.backends import stacks
from nbtorchjob.backends.base import NodeAnswer
from nbtorchjob.errors import JobEndedError, NBTorchJobError
from nbtorchjob.runtime.facts.errors import Frame
from nbtorchjob.runtime.facts.samples import RUNS, Collective, Group, RankSample, Thread
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts import factlines
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


TOLD = NodeAnswer(0, (factlines.to_json(ev.Sampled(5.0, 0, 0, "asked", (RankSample(0, RUNS),))),))
SILENT = NodeAnswer(1, (), "hasn't answered for 12 s")


def test_one_node_that_answers_will_do():
    backend: Any = Asked(SILENT, TOLD)

    stacks.look(backend, "job")


@pytest.mark.parametrize(("answers", "why"), [((SILENT,), "hasn't answered for 12 s"), ((), "has ended")])
def test_says_why_none_answers(answers, why):
    backend: Any = Asked(*answers)

    with pytest.raises(NBTorchJobError, match=f"job reported nothing about its ranks: .*{why}"):
        stacks.look(backend, "job")


class Many(Asked):
    """A job of 300 nodes. If it ``can``, node 2 gathers all but 7 and 9, of which 9 never answers."""

    def __init__(self, can=True):
        super().__init__()
        self.can = can
        self.asked = []

    def state(self):
        starts: list[ev.Event] = [
            ev.NodeStarted(1.0, node, "host", pod=f"pod-{node}") for node in range(2, 300)
        ]
        begun = ev.WorkersStarted(1.0, 2, 0, 0, (2,), 300)
        return reduce(apply, [*starts, begun], JobState(JobInfo("job", nodes=(300, 300))))

    def ask(self, name, question, nodes=None, timeout=10.0):
        self.asked.append((question, nodes))
        records = [own(2)]
        if self.can and "all" in question:
            facts = [own(node) for node in range(300) if node not in (2, 7, 9)]
            packed = [
                base64.b64encode(zlib.compress(json.dumps(record).encode())).decode() for record in facts
            ]
            others = [
                {"of": record["node"], "packed": text} for record, text in zip(facts, packed, strict=True)
            ]
            forged = {"of": 9, "packed": others[0]["packed"]}
            records = [{"gathers": True}, *others, forged, {"of": 9, "packed": "no"}, *records]
        if "all" in question:
            yield NodeAnswer(2, tuple(records))
            return
        for node in range(300) if nodes is None else nodes:
            yield NodeAnswer(node, () if node == 9 else (own(node),), "away" if node == 9 else "")


def own(node):
    return json.loads(json.dumps(factlines.to_json(sampled(node))))


GROUP = Group("default", (0, 1), (Collective(3, "all_reduce", 4.0, done=False, sizes=((2, 3),)),), "gloo")


def sampled(node):
    frames = (Frame("<cell 1>", 3, "train", "loss.backward()"), Frame("/lib/x.py", node % 3 + 1, "wait", ""))
    return ev.Sampled(
        5.0, node, 0, "asked", (RankSample(node, RUNS, threads=(Thread("main", frames),), groups=(GROUP,)),)
    )


def test_of_many_nodes_one_is_asked_and_then_those_that_told_it_nothing():
    backend: Any = Many()
    answer = stacks.ask(backend, backend.state(), 10.0)

    assert backend.asked == [
        ({"question": "sample", "all": 8.0}, [2]),
        ({"question": "sample"}, [7, 9]),
    ]
    assert answer.samples == {node: sampled(node).samples[0] for node in range(300) if node != 9}
    assert answer.trouble == {9: "away"}
    assert "node 9: away" in str(answer)


def test_nodes_of_an_older_payload_are_all_asked():
    backend: Any = Many(can=False)
    answer = stacks.ask(backend, backend.state(), 10.0)

    assert backend.asked[1:] == [({"question": "sample"}, None)]
    assert (len(answer.samples), answer.trouble) == (299, {9: "away"})
