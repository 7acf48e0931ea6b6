"""Cases: what users, the cloud and operators do to jobs, on the cluster of the kubeconfig.

A case fails if a job doesn't behave as it should, and raises ``NotHere`` if the cluster can't run the case.
It touches nothing outside of its site's namespace, unless the cluster is ours alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nbtorchjob import Leaving, api, capture, leaving, submission
from nbtorchjob.backends.kubernetes import deployment
from nbtorchjob.backends.kubernetes.payload import package
from nbtorchjob.errors import JobEndedError, NameTakenError, NotFoundError, UnauthorizedError
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.policies import Retry, RunPolicy
from nbtorchjob.state import Budget, Phase
from tests.backends.full import cluster_backend
from tests.backends.kubernetes.cluster.refusals import Refusal
from tests.cluster.site import NotHere, Site

Run = Callable[[Site, str], None]


@dataclass(frozen=True)
class Case:
    """A check of a kind of job; ``once``: one kind stands for all."""

    title: str
    run: Run
    once: bool

    def kinds(self, site: Site) -> list[str]:
        """Return the kinds of jobs that the case checks."""
        return site.kinds[:1] if self.once else site.kinds


CASES: dict[str, Case] = {}


def case(title: str, *, once: bool = False) -> Callable[[Run], Run]:
    """Register a case under its title."""

    def register(run: Run) -> Run:
        CASES[title] = Case(title, run, once)
        return run

    return register


def _indented(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.strip().splitlines())


STAYS = """
import signal, time
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
print("begun", flush=True)
time.sleep(600)
"""
LEAVES = """
import time
print("begun", flush=True)
while not leaving():
    time.sleep(0.05)
print("left", flush=True)
raise Leaving
"""
# The first attempt doesn't end by itself; the value is the number of the attempt that does.
STAYS_ONCE, LEAVES_ONCE = (f"if attempt() == 1:\n{_indented(cell)}\nattempt()" for cell in (STAYS, LEAVES))
ONCE_MORE = Retry(preemptions=1, backoff=0)


# Names.


@case("a name used again while its former job's pod ends")
def again(site: Site, kind: str) -> None:
    """Delete a job that ignores SIGTERM, and submit other code under its name at once."""
    former = site.stubborn(STAYS, name=f"again-{kind}", kind=kind)
    former.delete()
    job = site.submit("'new'", name=former.name, kind=kind)
    assert (job.name, job.result(site.patience)) == (former.name, "new")
    job.delete()


@case("a name used again by a job of another kind")
def across(site: Site, kind: str) -> None:
    """Submit a job of another kind under the name of a former job while its pod ends."""
    others = [other for other in site.kinds if other != kind]
    if not others:
        raise NotHere("needs two kinds of jobs")
    former = site.stubborn(STAYS, name=f"across-{kind}", kind=kind)
    former.delete()
    job = site.submit("'new'", name=former.name, kind=others[0])
    assert job.result(site.patience) == "new"
    job.delete()


@case("a lab that is kept again under its name")
def lab_again(site: Site, kind: str) -> None:
    """Keep a lab, delete it, and keep another one under its name at once."""
    for value in (1, 2):
        lab = api.keep(site.spec(name=f"bench-{kind}", kind=kind))
        assert lab.run_cell(f"x = {value}\nx").result(site.patience) == value
        lab.job.delete()


@case("an exported job that is applied while the former one ends")
def exported(site: Site, kind: str) -> None:
    """Export a job, delete it, and create the exported objects at once."""
    job = site.submit("print('ran')\n6 * 7", kind=kind)
    assert job.result(site.patience) == 42
    bodies = site.exported(job)
    job.delete()
    site.until(lambda: job.name not in site.jobs(kind), job)
    for body in bodies:
        site.create(body)
    applied = api.attach(job.info.address)
    assert applied.result(site.patience) == 42
    applied.delete()
    for body in bodies[:-1]:
        site.remove(body)


@case("two users in one namespace", once=True)
def users(site: Site, kind: str) -> None:
    """Use one name as two users: the second is refused, and doesn't list the first one's job."""
    job = site.submit(STAYS, name="shared", grace=1)
    site.environment(JUPYTERHUB_USER="somebody-else")
    try:
        try:
            site.submit("2", name="shared")
        except NameTakenError:
            pass
        else:
            raise AssertionError("a name that another user's running job has was given again")
        assert "shared" not in [state.info.name for state in api.jobs()]
    finally:
        site.environment(JUPYTERHUB_USER=None)
    job.delete()


# Disruptions of running jobs.


@case("an eviction, with leaving() and another attempt")
def evicted(site: Site, kind: str) -> None:
    """Evict a pod; its ranks leave, and the next attempt returns the value."""
    job = site.submit(LEAVES_ONCE, retry=ONCE_MORE, kind=kind)
    site.begun(job)
    site.evict(job)
    assert job.result(site.patience) == 2
    assert job.state.attempts[0].budget is Budget.PREEMPTIONS
    job.delete()


@case("a drain: a cordon, and then an eviction")
def drained(site: Site, kind: str) -> None:
    """Cordon a pod's host and evict the pod: the next attempt runs as soon as a host has room for it."""
    job = site.submit(LEAVES_ONCE, retry=ONCE_MORE, kind=kind)
    site.begun(job)
    former = site.pods(job)
    with site.cordoned(job):
        site.evict(job)
        site.until(lambda: {*site.pods(job)} - {*former} or job.state.tries == 2, job)
    assert job.result(site.patience) == 2
    assert job.state.attempts[0].budget is Budget.PREEMPTIONS
    job.delete()


@case("leaving() on suspend")
def suspended(site: Site, kind: str) -> None:
    """Suspend a job: its ranks get the notice to leave, and the job runs again when it is resumed."""
    job = site.submit(LEAVES, kind=kind)
    site.begun(job)
    try:
        job.suspend()
    except NotFoundError as exc:
        raise NotHere(f"{exc}".partition(":")[0]) from exc
    site.until(lambda: "left" in job.logs(0), job)
    site.until(lambda: job.state.suspended and job.state.all_over, job)
    job.resume()
    site.begun(job, times=2)
    job.delete()


@case("a pod that is killed for good")
def killed(site: Site, kind: str) -> None:
    """Delete a pod without a grace period: the next attempt returns the value, and the pod's name is free."""
    job = site.submit(STAYS_ONCE, retry=ONCE_MORE, kind=kind)
    site.begun(job)
    site.kill(job)
    assert job.result(site.patience) == 2
    assert job.state.attempts[0].budget is Budget.PREEMPTIONS
    job.delete()


@case("a group that is deleted while it runs")
def group(site: Site, kind: str) -> None:
    """Delete all runs of a group: nothing is left, not even their shared payload."""
    call = capture.from_cell(f"lr\n{LEAVES}", {"leaving": leaving, "Leaving": Leaving}, run_values={"lr": 0})
    spec = site.spec(name=f"group-{kind}", kind=kind, cpu="100m", memory="700Mi")
    sub = submission.prepare(call, submission.check(spec))
    runs = submission.send_runs(sub, [{"lr": lr} for lr in range(3)])
    site.begun(runs[0])
    for job in runs:
        job.delete()
    site.until(lambda: not site.left(str(spec.name)), runs[0])


@case("memory that runs out")
def memory(site: Site, kind: str) -> None:
    """Take more memory than the limit: the failure names memory as its reason."""
    _run_out(site, kind)


@case("a time to live")
def lives(site: Site, kind: str) -> None:
    """Let the cluster or us remove an ended job; its value stays here."""
    _live_shortly(site, kind)


def _run_out(site: Site, kind: str, **asked: Any) -> None:
    cell = "print('begun', flush=True)\nheld = [bytearray(64 << 20) for _ in range(64)]\nlen(held)"
    if site.emulator is None:
        job = site.submit(cell, memory="700Mi", kind=kind, **asked)
    else:  # the emulator's pods have no limits
        job = site.stubborn(STAYS, kind=kind, **asked)
        while not job.wait(0.5):  # a JobSet restarts the container a few times: kill it each time
            with suppress(Refusal):  # the pod may be gone by then
                site.emulator.oom_kill(site.namespace, *site.pods(job))
    assert job.wait(site.patience)
    failure = job.state.failure
    assert job.state.phase is Phase.FAILED
    assert failure is not None
    assert "memory" in failure.reason.line, failure
    job.delete()


def _live_shortly(site: Site, kind: str, **asked: Any) -> None:
    policy = Elastic(run_policy=RunPolicy(ttl_seconds_after_finished=1))
    job = site.submit("'kept'", launch=policy, kind=kind, **asked)
    assert job.result(site.patience) == "kept"
    site.until(lambda: job.name not in site.jobs(kind), job)
    assert job.result(site.patience) == "kept"


# In queues of Kueue.


def _queue(site: Site, kind: str) -> str:
    if kind == "volcano":
        raise NotHere("Volcano has queues of its own")
    return site.queue(cpu="1")


# A job that Kueue admits again counts its attempts from 1: the same pods are created again.
LEAVES_SOON = """
import time
print("begun", flush=True)
end = time.monotonic() + 15
while time.monotonic() < end:
    if leaving():
        raise Leaving
    time.sleep(0.05)
"stayed"
"""


@case("a preemption by Kueue")
def preempted(site: Site, kind: str) -> None:
    """Let a job of higher priority take the quota: the first job leaves, waits, and runs again."""
    queue = _queue(site, kind)
    job = site.submit(LEAVES_SOON, retry=ONCE_MORE, kind=kind, queue=queue, cpu="900m")
    site.begun(job)
    urgent = site.submit("'urgent'", kind=kind, queue=queue, cpu="900m", workload_priority=queue)
    assert urgent.result(site.patience) == "urgent"
    assert job.result(site.patience) == "stayed"
    assert job.state.attempts[0].budget is Budget.PREEMPTIONS
    for run in (job, urgent):
        run.delete()


@case("memory that runs out, in a queue of Kueue's")
def queued_memory(site: Site, kind: str) -> None:
    """Let a job run out of memory: its quota is free for the next job."""
    queue = _queue(site, kind)
    _run_out(site, kind, queue=queue, cpu="900m")
    after = site.submit("1", kind=kind, queue=queue, cpu="900m")
    assert after.result(site.patience) == 1
    after.delete()


@case("a time to live, in a queue of Kueue's")
def queued_lives(site: Site, kind: str) -> None:
    """Let the cluster or us remove a queued job after its end."""
    _live_shortly(site, kind, queue=_queue(site, kind), cpu="900m")


# The cluster, and the connection to it.

TURN = """
import sys
from nbtorchjob import api
lab = api.lab(sys.argv[1])
lab.run_cell("import time\\nprint('begun', flush=True)\\ntime.sleep(5)\\n'survived'")
print("sent", flush=True)
import time
time.sleep(600)
"""


OUTLIVES = """
import time
print("begun", flush=True)
time.sleep(4)
print("end")
"survived"
"""


@case("a kernel that is killed within a turn")
def kernel_killed(site: Site, kind: str) -> None:
    """Send a turn from another kernel, kill that kernel, and take the value here."""
    lab = api.keep(site.spec(name=f"turns-{kind}", kind=kind))
    assert lab.run_cell("1").result(site.patience) == 1
    kernel = subprocess.Popen([sys.executable, "-c", TURN, lab.info.address], stdout=subprocess.PIPE)
    try:
        assert kernel.stdout is not None
        assert kernel.stdout.readline() == b"sent\n"
    finally:
        kernel.kill()
        kernel.communicate()
    turn = lab.newest
    assert turn.result(site.patience) == "survived"
    assert lab.run_cell("2").result(site.patience) == 2
    lab.job.delete()


@case("an outage of the API during a lab's turn", once=True)
def outage(site: Site, kind: str) -> None:
    """Cut the connection to the API until a turn has ended: its value arrives, and the lab goes on."""
    with site.behind_a_door() as door:
        lab = api.keep(site.spec(name="outage", kind=kind))
        assert lab.run_cell("1").result(site.patience) == 1
        turn = lab.run_cell(OUTLIVES)
        site.begun(turn)
        door.shut()
        time.sleep(6)
        door.open()
        assert turn.result(site.patience) == "survived"
        assert turn.logs(0) == "begun\nend\n"
        assert lab.run_cell("2").result(site.patience) == 2
        lab.job.delete()


FOLLOWED = """
import time
print("begun", flush=True)
time.sleep(20)
"followed"
"""


@case("a token that expires while a job is followed", once=True)
def expired(site: Site, kind: str) -> None:
    """Let a token expire: requests then fail with a hint to log in, and with a new token the job goes on."""
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder) / "token"
        name, issuer = site.account()
        _, next_issuer = site.account()
        token.write_text(issuer())
        with site.logged_in(token):
            job = site.submit(FOLLOWED, kind=kind)
            site.begun(job)
            site.expire(name)
            site.until(lambda: _refused(site), job)
            token.write_text(next_issuer())
            assert job.result(site.patience) == "followed"
            job.delete()


def _refused(site: Site) -> bool:
    try:
        site.submit("1").delete()  # a real server accepts an invalid token for some seconds
    except UnauthorizedError as exc:
        return "log in again" in str(exc)
    return False


@case("an image that is pulled slowly", once=True)
def pulled_slowly(site: Site, kind: str) -> None:
    """Wait for a pull: the job's state names the image, and then the job runs."""
    emulator = site.needs_emulator("needs a registry that is slow when it is told to")
    emulator.hold_pulls(site.image)
    pulling = f'pulling image "{site.image}"'
    job = site.submit("1", kind=kind)
    job.wait(0)
    try:
        site.until(lambda: any(pulling in wait.text for wait in job.state.waiting), job)
    finally:
        emulator.finish_pulls(site.image)
    assert job.result(site.patience) == 1
    job.delete()


@case("an image that isn't there")
def image(site: Site, kind: str) -> None:
    """Wait for a missing image: the job's state gives the reason."""
    job = site.submit("1", image="localhost/nothing-here:1", kind=kind)
    site.until(lambda: any("image" in wait.text for wait in job.state.waiting), job)
    job.delete()


@case("a tender that is a Deployment", once=True)
def tender(site: Site, kind: str) -> None:
    """Apply a tender's manifests: it starts the next attempt of a job that no other process tends."""
    if site.emulator is not None:
        raise NotHere("needs pods that reach the API server: see test_deployment.py")
    site.needs_to_be_alone("its admission policy and one of its roles are in no namespace")
    for body in yaml.safe_load_all(cluster_backend().tenders([site.namespace], site.image)):
        if site.minor >= 30 or not body["kind"].startswith("ValidatingAdmission"):
            site.create(body)
    job = site.submit(LEAVES_ONCE, retry=Retry(retries=1, preemptions=1, backoff=0), kind=kind)
    while "begun" not in job.logs(0):  # without following the job
        time.sleep(0.5)
    site.until(lambda: any(deployment.NAME in who for who in site.held_leases()), job)
    site.evict(job)
    assert api.attach(job.info.address).result(site.patience) == 2
    job.delete()


# The inputs and outputs of jobs.


@case("doctor --probe", once=True)
def probe(site: Site, kind: str) -> None:
    """Probe the image with a job: the doctor then reports its torch, and the job is gone."""
    spec = site.spec(kind=kind)
    api.probe(spec)
    findings = {finding.text: finding.good for finding in api.doctor(spec) if "torch" in finding.text}
    assert True in findings.values(), findings
    assert not [name for name in site.jobs(kind) if "probe" in name]


SHOWS = """
import builtins
class Shown:
    def _repr_html_(self):
        return "<b>shown</b>"
builtins.display(Shown())  # as IPython has it, also where the image has no IPython
try:
    import matplotlib
except ImportError:
    drawn = False
else:
    matplotlib.use("agg")
    from matplotlib import pyplot as plt
    plt.plot([1, 2])
    plt.show()
    drawn = True
drawn
"""


@case("display() and plt.show()", once=True)
def displays(site: Site, kind: str) -> None:
    """Display something on rank 0: the job's state has it, and a figure if the image has matplotlib."""
    job = site.submit(SHOWS, kind=kind)
    drawn = job.result(site.patience)
    shown = [display.data for display in job.state.displays]
    assert shown[0].get("text/html") == "<b>shown</b>", shown
    assert ["image/png" in bundle for bundle in shown[1:]] == [True] * drawn, shown
    job.delete()


@case("Secrets at their size limit", once=True)
def sizes(site: Site, kind: str) -> None:
    """Send payloads just below and above one Secret, and close to the API's limit."""
    for size in (package.SECRET_BYTES - 120_000, package.SECRET_BYTES, package.LIMIT_BYTES - 400_000):
        data = os.urandom(size)
        job = site.submit("len(data)", {"data": data}, kind=kind)
        assert job.result(site.patience) == size
        job.delete()


@case("a job that has ended, asked once more", once=True)
def ended(site: Site, kind: str) -> None:
    """Profile an ended job: the error states that the job has ended."""
    job = site.submit("1", kind=kind)
    assert job.result(site.patience) == 1
    try:
        job.profile(0.1)
    except JobEndedError:
        pass
    else:
        raise AssertionError("an ended job was profiled")
    job.delete()
