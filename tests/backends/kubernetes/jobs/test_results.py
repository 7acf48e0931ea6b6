"""Questions to the nodes of cluster jobs: a command in each pod connects to its node."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from nbtorchjob import AskError, Elastic, JobEndedError, JobNotFoundError
from nbtorchjob.backends.base import NodeAnswer
from nbtorchjob.backends.kubernetes.kinds import KINDS
from tests.backends.full import cluster_backend
from tests.backends.kubernetes.stage import until
from tests.patience import LIMIT

# A part that answers like a node, or stays silent like one that is stopped.
PART = """
import os, socket, tempfile
from nbtorchjob.runtime.ask import answering, questions
from nbtorchjob.runtime.facts import injected

def who(asked):
    yield {"node": NODE, "said": asked.get("said")}

def big(asked):
    for _ in range(20):
        yield {"data": "x" * 100_000}

def never(asked):
    sign("asked")
    wait("never")
    yield {}

def closes(asked):
    for number in range(3, 64):
        try:
            with socket.socket(fileno=os.dup(number)) as one:
                if one.getsockname() and not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
    yield {}

def chat(asked):
    yield {"heard": asked.hear(60)["say"]}
    data = b""
    while len(data) < asked["size"]:
        data += asked.hear(60)
    yield {"sum": sum(data)}
    try:
        asked.hear(60)
    except ConnectionError:
        sign("left")

folder = tempfile.mkdtemp(prefix="nbtorchjob-")
handlers = {"who": who, "big": big, "never": never, "closes": closes, "chat": chat}
answering.serve(folder, questions.node_key(KEY, injected.run(), NODE), handlers)
begin()
sign(f"ready-{NODE}")
wait("go")
value(1)
"""
ALONE = "begin()\nsign(f'ready-{NODE}')\nwait('go')\nvalue(1)"


def ask(job, question="who", **how):
    fields = {key: how.pop(key) for key in list(how) if key == "said"}
    answers = cluster_backend().ask(job.name, {"question": question, **fields}, **how)
    return sorted(answers, key=lambda answer: answer.node)


def ready(stage, job, nodes=1):
    until(lambda: all((stage.signs / f"ready-{node}").exists() for node in range(nodes)))
    # The statuses of containers, which decide whether a node can be asked, come later.
    until(lambda: len([pod for pod in stage.pods() if pod["status"]["phase"] == "Running"]) == nodes)
    return job


@pytest.mark.parametrize("kind", KINDS)
def test_each_node_answers_for_itself(stage, kind):
    job = ready(stage, stage.submit(PART, launch=Elastic(nnodes=2), kind=kind), 2)

    assert ask(job, said="é") == [NodeAnswer(node, ({"node": node, "said": "é"},)) for node in (0, 1)]
    assert ask(job, nodes=[1, 7]) == [
        NodeAnswer(1, ({"node": 1, "said": None},)),
        NodeAnswer(7, (), "the job has no such node"),
    ]
    (answer,) = ask(job, "big", nodes=[0])
    assert (len(answer.records), answer.trouble) == (20, "")


def test_a_conversation_goes_on_both_ways_and_its_end_is_noticed(stage):
    job, data = ready(stage, stage.submit(PART)), bytes(range(256)) * 8192
    kubernetes = cluster_backend()

    with kubernetes.talk(job.name, 0, {"question": "chat", "size": len(data)}, LIMIT) as talk:
        talk.send({"say": "é"})
        assert talk.hear(LIMIT) == {"heard": "é"}
        talk.send_all(memoryview(data))
        assert talk.hear(LIMIT) == {"sum": sum(data)}
    until((stage.signs / "left").exists)

    with (
        kubernetes.talk(job.name, 0, {"question": "other"}, LIMIT) as talk,
        pytest.raises(AskError, match="it knows no question 'other'") as refused,
    ):
        talk.hear(LIMIT)
    assert (refused.value.said, refused.value.absent) == (True, False)
    with pytest.raises(AskError, match="the job has no such node") as refused:
        kubernetes.talk(job.name, 7, {"question": "who"})
    assert (refused.value.said, refused.value.absent) == (False, True)


def test_a_node_that_does_not_answer_holds_nobody_up(stage):
    job = ready(stage, stage.submit(PART, launch=Elastic(nnodes=2)), 2)
    began = time.monotonic()

    answers = ask(job, "never", timeout=3.0)
    assert [answer.trouble for answer in answers] == ["hasn't answered for 3 s"] * 2
    assert time.monotonic() - began < 60
    assert [answer.trouble for answer in ask(job)] == ["", ""]


def test_what_is_no_node_yet_or_of_an_older_version(stage):
    job = ready(stage, stage.submit(ALONE))

    assert ask(job) == [NodeAnswer(0, (), "it is still starting")]


def test_a_pod_that_waits_says_why(stage):
    stage.cluster.hold(".*")
    try:
        job = stage.submit(PART)
        until(lambda: stage.pods() and "conditions" in stage.pods()[0]["status"])
        (answer,) = ask(job)
    finally:
        stage.cluster.release(".*")
    assert "nvidia.com/gpu" in answer.trouble


def test_whoever_may_not_exec_is_told_what_to_ask_for(stage):
    name = stage.become()
    job = ready(stage, stage.submit(PART))

    (answer,) = ask(job)
    assert answer.trouble.startswith(
        f'exec is forbidden: user "{name}" may not get pods/exec in namespace "{stage.namespace}"'
    )
    rule = {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get"]}
    stage.cluster.allow(name, stage.namespace, [rule])
    (answer,) = ask(job)
    assert answer.trouble.startswith("exec is forbidden: you may get pods/exec, but not create it")
    stage.cluster.allow(name, stage.namespace, [{**rule, "verbs": ["create"]}])
    (answer,) = ask(job)
    assert answer.trouble == ""


def test_a_node_that_closes_its_socket_while_it_is_asked(stage):
    # A killed pod closes its socket, too, if the command in it sees that before its own end.
    job = ready(stage, stage.submit(PART))

    assert ask(job, "closes", timeout=LIMIT) == [NodeAnswer(0, (), "it was ended meanwhile")]


def test_a_pod_that_is_killed_while_it_is_asked(stage):
    job = ready(stage, stage.submit(PART))
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(ask, job, "never", timeout=LIMIT)
        until((stage.signs / "asked").exists)
        stage.cluster.oom_kill(stage.namespace, stage.pod())

        assert future.result() == [NodeAnswer(0, (), "it was ended meanwhile")]


def test_a_connection_that_is_cut(stage):
    job = ready(stage, stage.submit(PART))
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(ask, job, "never", timeout=LIMIT)
        until((stage.signs / "asked").exists)
        assert stage.cluster.cut("/exec$") == 1

        (answer,) = future.result()
    assert answer.trouble == "the connection to it was cut"


def test_what_an_image_lacks_is_said(stage):
    job = stage.submit(image="localhost/busybox:1", pod_patch=stage.patch(["sleep", "1000"]))
    until(lambda: stage.pods() and stage.pods()[0]["status"].get("phase") == "Running")

    (answer,) = ask(job)
    assert answer.trouble.startswith("nothing can be run in its container: ")
    assert 'exec: "python": executable file not found in $PATH' in answer.trouble


def test_a_job_that_is_over_or_is_not_there(stage):
    job = stage.submit("begin()\nvalue(1)")
    job.result(LIMIT)

    with pytest.raises(JobEndedError, match=f"{job.name} has ended"):
        ask(job)
    job.delete()
    with pytest.raises((JobEndedError, JobNotFoundError)):
        ask(job)
