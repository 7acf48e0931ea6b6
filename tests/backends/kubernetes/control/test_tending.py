"""A tender looks after a job that nobody follows: it does everything that a follower would do."""

import contextlib
import errno
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from nbtorchjob import api, capture, submission
from nbtorchjob.backends import backend
from nbtorchjob.backends.base import TenderStatus
from nbtorchjob.backends.kubernetes import backend as kubernetes
from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.cache import JobCache
from nbtorchjob.backends.kubernetes.control import service
from nbtorchjob.backends.kubernetes.control.follow import Follower
from nbtorchjob.backends.kubernetes.control.service import Background, Service
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.namespaces import Scope
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.objects.reading import SECRETS
from nbtorchjob.backends.kubernetes.session import session
from nbtorchjob.backends.kubernetes.submit.attempts import begin as begin_attempt
from nbtorchjob.capture.identity import user
from nbtorchjob.machine import loop
from nbtorchjob.machine.folders import state_dir
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.policies import CleanPodPolicy, Retry, RunPolicy
from nbtorchjob.state import Budget, JobInfo, Next, Phase
from tests.backends.full import cluster_backend
from tests.backends.kubernetes.mortal import Kernel, elsewhere, made
from tests.backends.kubernetes.stage import collection, until
from tests.patience import LIMIT

AGAIN = "begin()\nif ATTEMPT == 1: fail(recoverable=True)\nvalue(ATTEMPT)"
STAYS = "begin()\nwait('never') if ATTEMPT == 1 else wait('go')\nvalue(ATTEMPT)"
ALONE = """
begin()
os.close(os.open(SIGNS / "busy", os.O_CREAT | os.O_EXCL))
wait("go")
os.unlink(SIGNS / "busy")
value(1)
"""
OURS = Retry(retries=2, preemptions=2, backoff=0)
LEASES = "apis/coordination.k8s.io/v1/{}/leases"


@pytest.fixture
def attach(stage, monkeypatch, tmp_path):
    """Return a function that attaches to a job from another machine."""
    return lambda job: elsewhere(stage, job, monkeypatch, tmp_path)


@contextlib.contextmanager
def looked_after(stage):
    """Tend the stage's jobs inside the block."""
    tending = cluster_backend().tend("the test", [stage.namespace])
    assert tending is not None
    yield
    tending.stop()


@pytest.fixture
def tender(stage):
    """Tend the stage's jobs during the test."""
    with looked_after(stage):
        yield


def attempts(stage, job, count):
    """Wait until the job has `count` attempts, each made once."""
    names = [job.name, *(f"{job.name}-a{number}" for number in range(2, count + 1))]
    until(lambda: made(stage)[0] == names)


def ended(stage, job):
    """Wait until a list shows the job's end; return the listed state."""
    return until(
        lambda: next((state for state in api.jobs() if state.name == job.name and state.ended), None)
    )


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob", "volcano", "indexedjob"])
def test_an_attempt_that_failed_is_followed_by_the_next_with_nobody_there(stage, tender, attach, kind):
    job = stage.submit(AGAIN, kind=kind, retry=OURS)
    attempts(stage, job, 2)

    later = attach(job)
    assert later.result(LIMIT) == 2
    assert [attempt.budget for attempt in later.state.attempts] == [Budget.FAILURES, None]


def test_it_is_told_who_looks_after_a_job_and_cautioned_only_where_nobody_does(stage, attach, monkeypatch):
    job = stage.submit("begin()\nwait('never')", kind="pytorchjob", retry=OURS)
    spec = stage.spec(kind="pytorchjob", retry=OURS)
    assert api.tended(job.info) == TenderStatus()
    assert any("keep a session attached" in caution for caution in submission.cautions(spec))
    with looked_after(stage):
        keeper = until(lambda: (reader := api.tended(job.info)) and reader.who and reader)
        assert keeper.who.startswith("the test on ")
        assert job.info.created - 60 < keeper.since <= keeper.beat
        monkeypatch.setattr(kubernetes, "_LATELY_S", -1.0)
        assert not any("keep a session attached" in caution for caution in submission.cautions(spec))
    assert api.tended(job.info) == TenderStatus()
    job.wait(0)
    until(lambda: "follows it" in (api.tended(job.info) or TenderStatus()).who)
    assert api.tended(stage.submit("begin()\nvalue(1)").info) is None  # nothing of it is left for us to do
    job.cancel()


@pytest.mark.parametrize("kind", ["indexedjob", "pytorchjob", "trainjob"])
def test_the_next_run_of_a_group_is_started_but_none_that_its_user_suspended(stage, tender, attach, kind):
    call, rows = capture.from_cell("n", {}, run_values={"n": 0}), [{"n": number} for number in range(4)]
    spec = stage.spec(name="sweep", kind=kind, pod_patch=stage.acting(ALONE))
    runs = submission.send_runs(submission.prepare(call, submission.check(spec)), rows, at_once=1)
    runs[1].suspend()  # before its turn

    stage.sign("go")
    assert [ended(stage, runs[number]).phase for number in (0, 2, 3)] == [Phase.SUCCEEDED] * 3
    assert attach(runs[1]).state.suspended
    runs[1].resume()
    assert attach(runs[1]).result(LIMIT) == 1


def test_a_full_disk_holds_up_no_next_attempt(stage, tender, monkeypatch):
    def full(cache, name, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    job = stage.submit(f"begin()\nif ATTEMPT == 1: wait('go')\n{AGAIN}", retry=OURS)
    monkeypatch.setattr(JobCache, "_write", full)
    stage.sign("go")
    attempts(stage, job, 2)


def test_an_evicted_job_goes_on_and_is_charged_for_a_preemption(stage, tender, attach):
    job = stage.submit(STAYS, retry=OURS)
    until(lambda: (stage.signs / "life-0-0").exists())
    stage.cluster.evict(stage.namespace, stage.pod())
    attempts(stage, job, 2)
    stage.sign("go")

    later = attach(job)
    assert later.result(LIMIT) == 2
    assert [attempt.budget for attempt in later.state.attempts] == [Budget.PREEMPTIONS, None]


def test_what_no_operator_does_at_a_jobs_end_is_done(stage, tender):
    # A PyTorchJob keeps the first attempt, which owns the later ones; an Indexed Job keeps its ended pods.
    policy = RunPolicy(clean_pod_policy=CleanPodPolicy.ALL, ttl_seconds_after_finished=1)
    tidy = stage.submit("begin()\nvalue(1)", launch=Elastic(run_policy=RunPolicy(CleanPodPolicy.ALL)))
    stage.submit("begin()\nvalue(1)", kind="pytorchjob", retry=OURS, launch=Elastic(run_policy=policy))

    until(lambda: made(stage)[0] == [tidy.name])
    until(lambda: ended(stage, tidy) and not stage.pods())


def test_a_job_that_cant_start_or_ends_too_late_is_ended(stage, tender):
    stage.cluster.hold("^held-1-")  # one of two nodes runs
    wait = "begin() if NODE else wait('never')"
    held = stage.submit(wait, name="held", launch=Elastic(2, run_policy=RunPolicy(start_within="1s")))
    part = "begin()\nwait('never')"
    late = stage.submit(part, kind="volcano", launch=Elastic(run_policy=RunPolicy(active_deadline_seconds=2)))

    assert [ended(stage, job).phase for job in (held, late)] == [Phase.FAILED, Phase.FAILED]
    until(lambda: all(pod["status"].get("phase") == "Failed" for pod in stage.pods()))


@pytest.mark.parametrize("may", [True, False], ids=["may", "may not"])
def test_a_late_job_whose_log_is_known_here_is_ended_or_left_alone_for_a_while(stage, monkeypatch, may):
    policy = RunPolicy(active_deadline_seconds=1000)
    job = stage.submit("begin()\nwait('never')", kind="volcano", launch=Elastic(run_policy=policy))
    with Kernel(stage, job):
        logs = state_dir() / "kubernetes"
        until(lambda: any(b"WorkersStarted" in log.read_bytes() for log in logs.glob("*/*/log-*")))
    if not may:
        stage.become(("patch", "jobs"))
    visits, stream = [], Follower.stream

    def visited(follower):
        visits.append(follower)
        return stream(follower)

    monkeypatch.setattr(Follower, "stream", visited)
    monkeypatch.setattr(Client, "now", lambda client: time.time() + 2000)
    with looked_after(stage):
        if may:
            assert ended(stage, job).phase is Phase.FAILED
            return
        until(lambda: visits)
        time.sleep(1.0)
        assert len(visits) < 5


def test_a_job_without_trouble_costs_no_request(stage, tender):
    job = stage.submit("begin()\nwait('never')")
    until(lambda: (stage.signs / "life-0-0").exists())
    until(lambda: backend("kubernetes").jobs()[0].phase is Phase.RUNNING)
    paths = [path for path in stage.cluster.open_watches if stage.namespace in path]

    assert not [path for path in paths if "/log" in path]
    watched = sorted(path.partition("?")[0].rpartition("/")[2] for path in paths)
    assert watched == ["jobs", "jobs", "pods", "pytorchjobs", "trainjobs"]
    job.cancel()


def holder(stage):
    """Return the identity of the stage's tender, from its Lease, in a list."""
    return [item["spec"]["holderIdentity"] for item in stage.objects(LEASES)]


class Program:
    """``nbtorchjob tend`` in a process of its own."""

    def __init__(self, stage, *more):
        words = [sys.executable, "-m", "nbtorchjob", "tend", "--namespace", stage.namespace, *more]
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        first = self.process.stderr.readline()
        assert "health and metrics at " in first
        self.where = first.strip().rpartition(" at ")[2]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def said(self, path):
        """Request a path; return the status code and the body."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self.where)
            connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            head, _, body = b"".join(iter(lambda: connection.recv(4096), b"")).partition(b"\r\n\r\n")
        return int(head.split()[1]), body.decode()

    def place(self, stage):
        """Return the health of the stage's namespace."""
        return json.loads(self.said("/healthz")[1])["namespaces"].get(stage.namespace, {})


def test_the_command_says_what_it_does_how_it_is_and_leaves_in_order(stage):
    job = stage.submit(AGAIN, name="again", retry=OURS)
    with Program(stage) as program:
        attempts(stage, job, 2)
        until(lambda: ended(stage, job) and program.place(stage)["visits"] == 0)
        assert program.said("/healthz")[0] == 200
        assert 'what="began an attempt"} 1' in program.said("/metrics")[1]
        assert program.said("/etc/passwd")[0] == 404
        assert f"(process {program.process.pid})" in holder(stage)[0]
        program.process.send_signal(signal.SIGTERM)
        _, stderr = program.process.communicate(timeout=LIMIT)

    assert program.process.returncode == 0
    assert holder(stage) == [""]
    assert not os.path.exists(program.where)
    assert (
        f"{stage.namespace}/again: began an attempt: number 2; number 1 ended: ValueError (failures" in stderr
    )


def test_each_failure_of_a_container_that_is_started_again_is_looked_into(stage):
    job = stage.submit("begin()\nwait(f'go-{LIFE}')\nfail(recoverable=LIFE < 2)", kind="trainjob")
    with Program(stage) as program:
        for life in range(3):
            until((stage.signs / f"life-0-{life}").exists)
            until(lambda: program.place(stage).get("visits") == 0)
            stage.sign(f"go-{life}")

        assert ended(stage, job).phase is Phase.FAILED  # its operator would restart it forever


@pytest.mark.parametrize("other", [False, True])
def test_an_attempt_that_somebody_else_has_made_is_no_deed(stage, caplog, other):
    caplog.set_level(logging.INFO, "nbtorchjob.tending")
    job = stage.submit(f"begin()\nif ATTEMPT == 1: wait('go')\n{AGAIN}", retry=OURS)
    scope = Scope(job.info.cluster["context"], stage.namespace)

    async def begin():
        following = Next(2, 0.0, Budget.FAILURES)
        await begin_attempt(await session(None), scope, KINDS["indexedjob"], job.info, following, None, "")

    if other:
        stage.cluster.meanwhile("POST", f"{stage.namespace}/jobs$", lambda: loop.run(begin()))
    stage.sign("go")
    assert job.result(LIMIT) == 2
    deeds = [record.getMessage() for record in caplog.records if "began an attempt" in record.getMessage()]
    assert len(deeds) == 1 - other


def test_of_two_tenders_one_watches_and_the_other_takes_over_when_it_dies(stage, monkeypatch):
    monkeypatch.setattr(service, "BEAT_S", 0.05)
    job = stage.submit("begin()\nif ATTEMPT == 1: wait('go'); fail(recoverable=True)\nvalue(1)", retry=OURS)
    with Program(stage) as program:
        until(lambda: program.place(stage).get("jobs") == 1)
        tender = Service(lambda: [Scope("", stage.namespace)], "another")
        other = Background(tender)
        until(lambda: tender.figures()["namespaces"])
        program.process.kill()
    assert not any(namespace["tending"] for namespace in tender.figures()["namespaces"].values())
    monkeypatch.setattr(service, "HOLD_S", 0.1)
    until(lambda: [who for who in holder(stage) if who.startswith("another on ")])
    stage.sign("go")
    attempts(stage, job, 2)
    other.stop()
    assert holder(stage) == [""]


def test_without_permission_for_leases_jobs_are_looked_after_all_the_same(stage):
    stage.become()
    job = stage.submit(AGAIN, retry=OURS)
    with looked_after(stage):
        attempts(stage, job, 2)
    assert holder(stage) == []


@pytest.fixture(params=[-3600.0, 86400.0], ids=["an hour back", "a day ahead"])
def wrong(request, monkeypatch):
    """Make the clock wrong for the tender, and leave it right for the cluster, which runs here, too."""
    now = time.time

    def told():
        caller = sys._getframe(1).f_globals["__name__"]
        wrong_here = ("nbtorchjob.backends.kubernetes.", "nbtorchjob.submission")
        return now() + (request.param if caller.startswith(wrong_here) else 0.0)

    monkeypatch.setattr(time, "time", told)
    return request.param


def test_a_clock_that_is_wrong_ends_and_removes_no_job_and_holds_none_up(stage, wrong):
    short, long = (
        Elastic(run_policy=RunPolicy(ttl_seconds_after_finished=s, active_deadline_seconds=s))
        for s in (2, 3600)
    )
    goes_on = stage.submit("begin(); wait('go'); value(1)", kind="volcano", launch=long)
    late = stage.submit("begin(); wait('never')", kind="volcano", launch=short)
    again = stage.submit(AGAIN, retry=OURS)
    stays, goes = (stage.submit("value(1)", kind="trainjob", launch=launch) for launch in (long, short))
    with looked_after(stage):
        until(lambda: f"{again.name}-a2" in names(stage, "indexedjob"))
        until(lambda: goes.name not in names(stage, "trainjob"))
        until(lambda: late.name not in names(stage, "volcano"))

    assert stays.name in names(stage, "trainjob")
    assert goes_on.name in names(stage, "volcano")
    secret = {"name": "young", "labels": labelling.labels(JobInfo("young", "kubernetes"), user())}
    path = f"/{collection(SECRETS).format(f'namespaces/{stage.namespace}')}"
    stage.cluster.request("POST", path, {"apiVersion": "v1", "kind": "Secret", "metadata": secret})
    assert all(left.state is not None for _, left in api.leftovers())  # its job may still follow
    stage.sign("go")
    assert goes_on.result(LIMIT) == 1


def names(stage, kind):
    return [obj["metadata"]["name"] for obj in stage.objects(collection(KINDS[kind].api))]
