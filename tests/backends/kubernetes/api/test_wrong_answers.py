"""A server that isn't a Kubernetes API is reported in one line everywhere, in bounded memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.backends.kubernetes import jobs
from nbtorchjob.backends.kubernetes.api import answers, client, connection
from nbtorchjob.backends.kubernetes.control import selection
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.namespaces import Scope, remember
from nbtorchjob.backends.kubernetes.objects.reading import EVENTS, PODS
from nbtorchjob.frontends.cli import main
from tests.backends.kubernetes import wrong
from tests.backends.kubernetes.recordings import Recording, scenarios

MOST = 100 << 20  # bytes: an upper bound for one page and its retries as smaller pages


@pytest.fixture
def far(tmp_path, monkeypatch):
    """Return a function that serves a wrong answer as a cluster to which jobs were sent."""
    remember(Scope("far", "ml"))

    def serve(name, **more):
        # The defaults are half a minute of tries and a minute for each, and users can't set them.
        monkeypatch.setattr(client, "_PATIENCE_S", 0.1)
        if name == "a byte now and then":
            defaults = connection.Request.__new__.__defaults__ or ()
            monkeypatch.setattr(connection.Request.__new__, "__defaults__", (*defaults[:-1], 0.3))
        return wrong.serving(tmp_path, monkeypatch, name, **more)

    return serve


def one_line(text):
    """Check that an output is one short, printable line; return the line."""
    [line] = text.splitlines()
    assert len(line) < 400
    assert line.isprintable()
    return line


@pytest.mark.parametrize("name", wrong.ANSWERS)
def test_a_wrong_answer_is_one_line_in_a_terminal_and_a_notebook(name, far, capfd, shell):
    with far(name) as sent:
        assert main(["list"]) == 0
        assert "can't be listed: " in one_line(capfd.readouterr().err)
        assert main(["describe", "far/ml/train-2222"]) > 0
        assert one_line(capfd.readouterr().err)
        shell.run_line_magic("load_ext", "nbtorchjob")
        shell.run_cell("%torchjob list")
        assert "can't be listed: " in capfd.readouterr().out
    assert sent[0] < 5 * MOST


@pytest.mark.parametrize("name", [name for name in wrong.ANSWERS if "list" not in name])
def test_one_that_says_what_is_served_is_one_line_too(name, far, capfd):
    with far(name, good={}) as sent:
        assert main(["list"]) == 0
    assert "can't be listed: " in one_line(capfd.readouterr().err)
    assert sent[0] < MOST


def paths_in(obj, path=()):
    """Yield the path of each value in an object, its own first."""
    yield path
    items = obj.items() if isinstance(obj, dict) else enumerate(obj) if isinstance(obj, list) else ()
    for key, value in items:
        yield from paths_in(value, (*path, key))


def changed(obj, path, value):
    """Return a copy of an object with another value at a path."""
    if not path:
        return value
    copy = dict(obj) if isinstance(obj, dict) else list(obj)
    copy[path[0]] = changed(obj[path[0]], path[1:], value)
    return copy


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
STAMP = "2026-11-22T20:00:00Z"
META = {
    "name": "a",
    "uid": "u",
    "resourceVersion": "7",
    "creationTimestamp": STAMP,
    "deletionTimestamp": STAMP,
}
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "u"}
LABELS = {"batch.kubernetes.io/job-completion-index": "0", "volcano.sh/task-index": "0"}
TOLD = {"reason": "Error", "message": "said", "startedAt": STAMP, "finishedAt": STAMP}
STATE = {"running": {"startedAt": STAMP}, "waiting": TOLD, "terminated": {"exitCode": 1, **TOLD}}
CONTAINER = {"name": "node", "restartCount": 1, "state": STATE, "lastState": STATE}
ASKED = {"limits": {"memory": "1Gi"}, "requests": {"cpu": 1}}
CONDITION = {"type": "Failed", "status": "True", "reason": "r", "message": "m", "lastTransitionTime": STAMP}
WHOLE = {**META, "labels": LABELS, "annotations": LABELS, "ownerReferences": [OWNER]}
POD = {
    "metadata": {**WHOLE, "deletionGracePeriodSeconds": 30},
    "spec": {
        "nodeName": "n",
        "restartPolicy": "Always",
        "containers": [{"name": "node", "resources": ASKED}],
    },
    "status": {
        "phase": "Failed",
        "startTime": STAMP,
        "conditions": [CONDITION, {**CONDITION, "type": "PodScheduled", "status": "False"}],
        "containerStatuses": [CONTAINER],
        "initContainerStatuses": [CONTAINER],
    },
}
JOB = {"metadata": WHOLE, "spec": {}, "status": {"conditions": [CONDITION], "state": {"phase": "Failed"}}}
EVENT = {
    "metadata": META,
    "involvedObject": {**OWNER, "kind": "Pod"},
    "reason": "FailedScheduling",
    "message": "0/1 nodes are available",
    "firstTimestamp": STAMP,
    "lastTimestamp": STAMP,
    "eventTime": STAMP,
    "series": {"lastObservedTime": STAMP},
}


@given(st.data(), st.sampled_from(sorted(KINDS)), ANYTHING)
def test_what_comes_through_the_door_can_be_read(data, name, value):
    kind = KINDS[name]
    for api, whole in ((PODS, POD), (kind.api, JOB), (EVENTS, EVENT)):
        odd = changed(whole, data.draw(st.sampled_from(list(paths_in(whole)))), value)
        if answers.wrong(odd, answers.of(api)):
            continue
        if api == kind.api:
            jobs.of_object(kind, odd)
        elif api == PODS:
            jobs.of_pod(kind, odd, kind.node(odd) or 0)
        else:
            troubles = selection.Troubles(kind, "a")
            troubles.know(JOB)
            troubles.know_pod(POD)
            if troubles.may_be_ours(odd):
                troubles.read(odd)


def test_what_real_clusters_say_comes_through(recordings):
    apis = {api.kind: api for api in (PODS, EVENTS, *(kind.api for kind in KINDS.values()))}
    objects = [change["object"] for path in scenarios().values() for change in Recording(path).changes]
    read = [(obj, answers.of(apis[obj["kind"]])) for obj in objects if obj["kind"] in apis]

    assert [answers.wrong(obj, shape) for obj, shape in read] == [""] * len(read)
    assert len(read) > 100
