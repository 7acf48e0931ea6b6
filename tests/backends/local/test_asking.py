"""Questions to the nodes of jobs on this machine."""

import os
import signal
import sys
import time
from pathlib import Path

import cloudpickle
import pytest

import nbtorchjob
from nbtorchjob import AskError, Elastic, JobEndedError, JobNotFoundError
from nbtorchjob.backends.base import NodeAnswer
from nbtorchjob.backends.local.backend import LocalBackend
from nbtorchjob.runtime.ask import answering, questions
from tests.backends.kubernetes.stage import until
from tests.backends.local.real import folder_of, seen
from tests.patience import LIMIT

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

KEY = b"k" * 32


def wait(path):
    while not os.path.exists(path):
        time.sleep(0.01)


@pytest.fixture
def acted(act):
    """Return a function that makes a job with some nodes that answer with their numbers."""

    def make(nodes, answer=()):
        job = act(nodes=nodes)
        job.folder.key.write_bytes(KEY)
        for node in range(nodes):
            job.folder.emit("NodeStarted", node=node, host="here", pid=os.getpid())
        for node in answer:
            job.folder.node(node).mkdir()
            own = questions.node_key(KEY, job.folder.info().run, node)
            answering.serve(str(job.folder.node(node)), own, {"who": who(node)})
        return job

    return make


def who(node):
    return lambda question: [{"node": node}]


def ask(here, job, question="who", **how):
    return sorted(here.ask(job.name, {"question": question}, **how), key=lambda answer: answer.node)


def sampled(answers):
    records = [record for answer in answers for record in answer.records]
    return [
        (record["event"], record["node"], [sample["rank"] for sample in record["samples"]])
        for record in records
    ]


@pytest.mark.torch
def test_the_nodes_of_a_job_are_asked_and_one_that_is_stopped_holds_nobody_up(folder):
    job = nbtorchjob.submit(wait, str(folder / "go"), spec=Elastic(nnodes=2))
    state = seen(job, lambda state: len(state.members) == 2)
    stopped = state.nodes[1].pid

    assert ask(LocalBackend(), job) == [NodeAnswer(n, (), "it knows no question 'who'") for n in (0, 1)]
    assert until(lambda: sampled(ask(LocalBackend(), job, "sample")) == [("Sampled", n, [n]) for n in (0, 1)])
    os.kill(stopped, signal.SIGSTOP)
    try:
        until(lambda: ") T " in Path(f"/proc/{stopped}/stat").read_text())
        began = time.monotonic()
        answers = ask(LocalBackend(), job, timeout=1.0)
        assert time.monotonic() - began < 10
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert [answer.trouble for answer in answers] == [
        "it knows no question 'who'",
        "hasn't answered for 1 s",
    ]

    (folder / "go").touch()
    job.result()
    with pytest.raises(JobEndedError, match=f"{job.name} has ended"):
        ask(LocalBackend(), job)
    assert not (folder_of(job).node(0) / "agent.log").read_text()


def test_each_node_answers_for_itself(acted, here):
    job = acted(3, answer=(0, 1, 2))

    assert ask(here, job) == [NodeAnswer(node, ({"node": node},)) for node in range(3)]
    assert ask(here, job, nodes=[1]) == [NodeAnswer(1, ({"node": 1},))]


def test_why_a_node_does_not_answer_is_said(acted, here):
    job = acted(4, answer=(0,))
    job.begin(ranks=(1,), node=1)
    job.folder.emit("NodeExited", node=3, code=1)

    assert [(answer.node, answer.trouble) for answer in ask(here, job, nodes=[0, 1, 2, 3, 9])] == [
        (0, ""),
        (1, "it runs an older version of nbtorchjob, which can't be asked"),
        (2, "it is still starting"),
        (3, "it has ended"),
        (9, "the job has no such node"),
    ]


def test_a_job_that_has_not_begun_or_is_over_or_is_not_there(act, here):
    job = act()
    job.folder.key.write_bytes(KEY)

    assert ask(here, job) == [NodeAnswer(0, (), "it hasn't started")]
    job.lose()
    with pytest.raises(JobEndedError):
        ask(here, job)
    with pytest.raises(JobNotFoundError):
        list(here.ask("nobody", {"question": "who"}))


def test_a_question_may_be_too_long(acted, here):
    job = acted(1, answer=(0,))

    (answer,) = here.ask(job.name, {"question": "who", "with": "x" * questions.QUESTION_BYTES})
    assert answer.trouble.startswith("the question is too long: ")


def test_a_node_that_another_jobs_key_is_used_for_is_not_believed(acted, here):
    job = acted(1, answer=(0,))
    job.folder.key.write_bytes(b"other" * 8)

    (answer,) = ask(here, job)
    assert answer.trouble == "the answer isn't from a node of this job: it isn't signed with this job's key"


def test_who_talks_to_a_node_is_told_why_it_can_not(acted):
    job, backend = acted(2, answer=[0]), LocalBackend()

    with backend.talk(job.name, 0, {"question": "who"}) as talk:
        assert talk.hear(LIMIT) == {"node": 0}
        assert talk.hear(LIMIT) is None
    for node, why in ((1, "it is still starting"), (7, "the job has no such node")):
        with pytest.raises(AskError, match=why) as refused:
            backend.talk(job.name, node, {"question": "who"})
        assert refused.value.absent
