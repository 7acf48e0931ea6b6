"""What users, cloud and operators do to jobs, on whatever cluster the kubeconfig leads to.

A case is a function that fails where something isn't as it should be. It touches nothing outside of its
site's namespace. ``NOT_TRIED`` names what can't be done so, and why.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

from nbtorchjob import api, capture, submission
from nbtorchjob.backends.kubernetes.payload import secrets
from nbtorchjob.errors import JobEndedError, NameTakenError
from nbtorchjob.spec.config import Elastic, RunPolicy
from nbtorchjob.spec.policies import Retry
from nbtorchjob.state import Phase
from tests.cluster.site import Site

Case = Callable[[Site], None]
CASES: dict[str, Case] = {}
NOT_TRIED = {
    "drain by cordon": "hosts are in no namespace; an eviction is what a drain does to a pod",
    "an API outage during a lab's turn": "others use the API server",
    "the tender's Deployment": "its admission policy and role are in no namespace",
    "Kueue's preemption": "a ClusterQueue is in no namespace",
    "expired tokens": "who expires tokens may not be the kubeconfig's user",
    "images that are pulled slowly": "a registry of one's own is in no namespace",
}


def case(title: str) -> Callable[[Case], Case]:
    """Register a case by what it tries."""

    def register(run: Case) -> Case:
        CASES[title] = run
        return run

    return register


STAYS = """
import signal, time
print("begun", flush=True)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
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


@case("a name used again while its former job's pod ends")
def again(site: Site) -> None:
    """Delete a job that ignores SIGTERM, and submit other code under its name at once."""
    for kind in site.kinds:
        name = f"again-{kind}"
        former = site.submit(STAYS, name=name, kind=kind)
        site.begun(former)
        former.delete()
        job = site.submit("'new'", name=name, kind=kind)
        assert (job.name, job.result(site.patience)) == (name, "new"), kind
        job.delete()


@case("a name used again by a job of another kind")
def across(site: Site) -> None:
    """Have the former job's pod end while a job of another kind has its name."""
    for before, after in zip(site.kinds, site.kinds[1:], strict=False):
        former = site.submit(STAYS, name="across", kind=before)
        site.begun(former)
        former.delete()
        job = site.submit("'new'", name="across", kind=after)
        assert job.result(site.patience) == "new", (before, after)
        job.delete()


@case("a lab that is kept again under its name")
def lab_again(site: Site) -> None:
    """Keep a lab, delete it, and keep another one of its name at once."""
    for value in (1, 2):
        lab = api.keep(site.spec(name="bench"))
        assert lab.run_cell(f"x = {value}\nx").result(site.patience) == value
        lab.job.delete()


@case("an exported job that is applied while the former one ends")
def exported(site: Site) -> None:
    """Export a job, delete it, and create what was exported at once."""
    job = site.submit("print('ran')\n6 * 7")
    assert job.result(site.patience) == 42
    bodies = site.exported(job)
    job.delete()
    site.until(lambda: not site.objects(bodies[-1]), job)
    for body in bodies:
        site.create(body)
    applied = api.attach(job.info.address)
    assert applied.result(site.patience) == 42
    applied.delete()
    for body in bodies[:-1]:
        site.remove(body)


@case("an eviction, with leaving() and another attempt")
def evicted(site: Site) -> None:
    """Evict a pod as a drain does; its ranks leave, and the next attempt gives the value."""
    cell = f"if attempt() == 1:\n{_indented(LEAVES)}\nattempt()"
    job = site.submit(cell, retry=Retry(preemptions=1, backoff=0))
    site.begun(job)
    job.subscribe(lambda state: None)
    site.evict(job)
    assert job.result(site.patience) == 2
    job.delete()


@case("leaving() on suspend")
def suspended(site: Site) -> None:
    """Suspend a job: its ranks are told to leave."""
    job = site.submit(LEAVES)
    site.begun(job)
    job.subscribe(lambda state: None)  # what ranks say last is gone with their pods
    job.suspend()
    site.until(lambda: "left" in job.logs(0), job)
    site.until(lambda: job.state.suspended, job)
    job.delete()


@case("a pod that is killed for good")
def killed(site: Site) -> None:
    """Delete a pod without a grace period: the job fails, or goes on where it may."""
    job = site.submit(STAYS)
    site.begun(job)
    job.subscribe(lambda state: None)
    before = site.pods(job)
    site.kill(job)
    site.until(lambda: job.done() or (site.pods(job) and site.pods(job) != before), job)
    again = site.submit("1")
    assert again.result(site.patience) == 1
    for each in (job, again):
        each.delete()


TURN = """
import sys
from nbtorchjob import api
lab = api.lab(sys.argv[1])
lab.run_cell("import time\\nprint('begun', flush=True)\\ntime.sleep(5)\\n'survived'")
print("sent", flush=True)
import time
time.sleep(600)
"""


@case("a kernel that is killed within a turn")
def kernel_killed(site: Site) -> None:
    """Send a turn from another kernel, kill that, and take the value here."""
    lab = api.keep(site.spec(name="turns"))
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


@case("doctor --probe")
def probe(site: Site) -> None:
    """Ask the image what it has, by a job."""
    api.probe(site.spec())


@case("display() and plt.show()")
def displays(site: Site) -> None:
    """Show something on rank 0: it is there as a display."""
    cell = "from IPython.display import HTML, display\ndisplay(HTML('<b>shown</b>'))\n1"
    job = site.submit(f"try:\n{_indented(cell)}\nexcept ImportError:\n    pass\n1")
    assert job.result(site.patience) == 1
    job.delete()


@case("a group that is deleted while it runs")
def group(site: Site) -> None:
    """Delete all runs of a group: nothing is left, their shared payload neither."""
    call = capture.from_cell("lr", {}, given={"lr": 0})
    spec = site.spec(name=f"group-{os.getpid()}")
    sub = submission.prepare(call, submission.check(spec))
    runs = submission.send_runs(sub, [{"lr": lr} for lr in range(3)])
    for job in runs:
        job.delete()
    site.until(lambda: not site.left(str(spec.name)), job)


@case("memory that runs out")
def memory(site: Site) -> None:
    """Take more memory than the limit: the failure says so."""
    job = site.submit("held = [bytearray(64 << 20) for _ in range(64)]\nlen(held)", memory="700Mi")
    job.wait(site.patience)
    found = job.state.failure
    assert job.state.phase is Phase.FAILED
    assert found is not None
    assert "memory" in found.reason.line, found
    job.delete()


@case("a time to live")
def lives(site: Site) -> None:
    """Have an ended job removed by the cluster or by us; its value stays here."""
    job = site.submit("'kept'", launch=Elastic(run_policy=RunPolicy(ttl_seconds_after_finished=1)))
    assert job.result(site.patience) == "kept"
    site.until(lambda: not [s for s in api.jobs() if s.info.name == job.name], job)
    assert job.result(site.patience) == "kept"


@case("an image that isn't there")
def image(site: Site) -> None:
    """Wait for an image: the reason is said."""
    job = site.submit("1", image="localhost/nothing-here:1")
    site.until(lambda: any("image" in wait.text for wait in job.state.waiting), job)
    job.delete()


@case("two users in one namespace")
def users(site: Site) -> None:
    """Have two users use one name: the second is refused, and lists none of the first one's."""
    job = site.submit(STAYS, name="shared")
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


@case("Secrets at their size limit")
def sizes(site: Site) -> None:
    """Send payloads just below and above one Secret, and close to what the API takes."""
    for size in (secrets.SECRET_BYTES - 120_000, secrets.SECRET_BYTES, secrets.LIMIT_BYTES - 400_000):
        data = os.urandom(size)
        job = site.submit("len(data)", {"data": data})
        assert job.result(site.patience) == size
        job.delete()


@case("a job that has ended, asked once more")
def ended(site: Site) -> None:
    """Ask the nodes of an ended job: it says that it has ended."""
    job = site.submit("1")
    assert job.result(site.patience) == 1
    try:
        job.profile(0.1)
    except JobEndedError:
        pass
    else:
        raise AssertionError("an ended job was profiled")
    job.delete()


def _indented(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.strip().splitlines())
