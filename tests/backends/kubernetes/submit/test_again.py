"""Ended jobs of a cluster, run once more: the payload, the name and the refusals."""

import errno
import os
import signal
import threading

import pytest
import yaml
from fsspec.implementations.local import LocalFileOpener, LocalFileSystem

from nbtorchjob import JobCancelledError, JobNotFoundError, SpecError, SubmitError, api, capture, submission
from nbtorchjob.backends.kubernetes.objects import labelling, reading
from nbtorchjob.backends.kubernetes.payload import package, stores
from nbtorchjob.state import Origin
from tests.backends.full import cluster_backend
from tests.backends.kubernetes.stage import running, until
from tests.patience import LIMIT

SECRETS, JOBS = "api/v1/{}/secrets", "apis/batch/v1/{}/jobs"
DONE = "begin(); log('said\\n'); value(42)"
WAIT = "begin(); wait('go'); value(42)"


def ended(stage, part=DONE, **asked):
    job = stage.submit(part, **asked)
    job.result(LIMIT)
    return job


def with_data(stage, data, **asked):
    """Return an ended job with these bytes in its payload; its pods leave them unread."""
    patch = stage.patch(["python", "-c", ""])
    job = stage.submit(cell="len(data)", variables={"data": data}, pod_patch=patch, **asked)
    assert job.wait(LIMIT)
    return job


def payload(stage, job):
    """Return a job's payload in its Secrets, as bytes by key, without the key that names the run."""
    contents: dict[str, bytes] = {}
    for secret in stage.objects(SECRETS):
        if secret["metadata"]["name"].startswith(f"{job.name}-payload"):
            contents |= {key: package.value(secret, key) for key in secret["data"] if key != package.RUN}
    return contents


def refused(stage, job, error=SubmitError, *, resume=False):
    """Check that a retry is refused in one line and makes nothing; return the line."""
    before = set(stage.left())
    with pytest.raises(error) as caught:
        job.retry(resume=resume)
    until(lambda: set(stage.left()) <= before)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_same_payload_runs_as_a_job_of_the_same_kind(stage):
    job = ended(stage, kind="trainjob")

    again = job.retry()

    assert again.result(LIMIT) == 42
    assert again.name != job.name
    assert again.info.created > job.info.created
    assert again.info.cluster == job.info.cluster
    assert payload(stage, again) == payload(stage, job)
    assert {job.info.name for job in api.jobs()} == {job.name, again.name}


SAVES = """
import os
folder = os.environ["NBTORCHJOB_CHECKPOINTS"].removeprefix("file://")
saved = os.path.join(folder, "count")
count = len(open(saved).read()) if os.path.exists(saved) else 0
os.makedirs(folder, exist_ok=True)
with open(saved, "a") as file:
    file.write("x")
begin()
tell("FilesSeen", node=0, what="checkpoint")
value(count)
"""


def test_a_job_that_resumes_begins_with_a_copy_of_the_checkpoints(stage, tmp_path):
    job = ended(stage, SAVES, checkpoints=f"file://{tmp_path}/kept")
    assert job.result(LIMIT) == 0
    assert job.state.resumable

    assert [job.retry(resume=True).result(LIMIT) for _ in range(2)] == [1, 1]
    assert job.retry().result(LIMIT) == 0


def test_nothing_is_left_of_a_copy_of_checkpoints_whose_job_can_not_be_sent(stage, tmp_path, monkeypatch):
    kept = tmp_path / "kept"
    job = ended(stage, SAVES, checkpoints=f"file://{kept}")
    before = [*kept.iterdir()]
    (before[0] / "later").write_text("x")

    def fails(files, source, target):
        if source.endswith("later"):
            assert len([*kept.glob("*/count")]) == 2
            raise OSError(errno.ENOSPC, "No space left on device")
        copy(files, source, target)

    copy = LocalFileSystem.cp_file
    with monkeypatch.context() as patch:
        patch.setattr(LocalFileSystem, "cp_file", fails)
        assert "No space left" in refused(stage, job, resume=True)
    assert [*kept.iterdir()] == before
    stage.become(("create", "jobs"))
    assert "may not create jobs.batch" in refused(stage, job, resume=True)
    assert [*kept.iterdir()] == before


def test_an_interrupt_ends_the_copying_of_checkpoints_and_nothing_is_left(stage, tmp_path, monkeypatch):
    kept = tmp_path / "kept"
    job = ended(stage, SAVES, checkpoints=f"file://{kept}")
    before = [*kept.iterdir()]
    (before[0] / "later").write_text("x")
    stopped, copied = [], []

    def resumed(spec, old, new, stops):
        stopped.append(stops)
        return resume(spec, old, new, stops)

    def copies(files, source, target):
        copied.append(source)
        copy(files, source, target)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        until(stopped[0])

    resume, copy = stores.resumed, LocalFileSystem.cp_file
    monkeypatch.setattr(stores, "resumed", resumed)
    monkeypatch.setattr(LocalFileSystem, "cp_file", copies)
    with pytest.raises(KeyboardInterrupt, match="Interrupted"):
        job.retry(resume=True)
    assert len(copied) == 1
    assert [*kept.iterdir()] == before


@pytest.fixture
def big(monkeypatch):
    """Make each payload too big for the API."""
    monkeypatch.setattr(package, "LIMIT_BYTES", 10)


def test_an_interrupt_ends_the_storing_of_a_payload_and_nothing_is_left(stage, tmp_path, monkeypatch, big):
    store, stopped = tmp_path / "store", []

    def put(data, url, stops):
        stopped.append(stops)
        put_all(data, url)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        until(stops)

    put_all = stores.put
    monkeypatch.setattr(stores, "put", put)
    with pytest.raises(KeyboardInterrupt, match="Interrupted"):
        stage.submit(storage=f"file://{store}")
    until(lambda: not [*store.iterdir()])
    assert len(stopped) == 1
    assert stage.left() == []


def test_a_payload_that_the_store_has_no_room_for_leaves_nothing(stage, tmp_path, monkeypatch, big):
    def full(file, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(LocalFileOpener, "write", full)
    with pytest.raises(SubmitError, match="No space left"):
        stage.submit(storage=f"file://{tmp_path}/store")
    assert [*(tmp_path / "store").iterdir()] == []


def test_a_job_resumes_only_once_no_pod_of_it_may_save_any_more(stage, tmp_path):
    part = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SAVES.replace("value(", "wait('go'); value(")
    spec = stage.spec(pod_patch=stage.acting(part, grace=60), checkpoints=f"file://{tmp_path}/kept")
    job = running(submission.submit(capture.from_cell("1", {}), spec))
    job.cancel()

    assert refused(stage, job, resume=True) == (
        f"{job.name} still has pods that run, and may save checkpoints: try again once they have ended"
    )
    stage.sign("go")
    until(lambda: all(map(reading.ended, stage.pods())))  # a pod that ends by itself may stay
    assert job.retry(resume=True).result(LIMIT) == 1


def test_each_time_it_is_another_job_though_one_of_the_same_call_runs(stage):
    job = ended(stage, "begin()\nif LIFE: wait('go')\nvalue(LIFE)")

    runs = [job.retry(), job.retry()]
    met = stage.submit("begin()\nif LIFE: wait('go')\nvalue(LIFE)")

    assert len({job.name, *(run.name for run in runs)}) == 3
    assert met.name in {run.name for run in runs}  # a cell that is run again attaches to its running job
    stage.sign("go")
    assert all(run.wait(LIMIT) for run in runs)


def test_what_is_written_down_of_it_stays_and_a_given_name_is_numbered(stage):
    call = capture.from_cell("x + 1", {"x": 1})
    spec = stage.spec(name="given", pod_patch=stage.acting(DONE), label={"team": "a"})
    job = submission.submit(call, spec, Origin("/home/me/train.ipynb", "cell-7"))
    job.result(LIMIT)

    second, third = job.retry(), job.retry()

    assert [second.name, third.name] == ["given-2", "given-3"]
    assert second.wait(LIMIT)
    assert second.retry().name == "given-4"
    info = api.attach("given-3").info
    same = ("label", "sources", "ships", "spec", "notebook", "cell", "nodes", "call", "retry_owner")
    assert [getattr(info, name) for name in same] == [getattr(job.info, name) for name in same]


def test_what_its_spec_left_open_is_as_it_was_picked_then(stage):
    spec = stage.spec(kind=None, pod_patch=stage.acting(DONE))
    job = submission.submit(capture.from_cell("1", {}), spec)
    job.result(LIMIT)

    again = job.retry()

    assert again.info.cluster == job.info.cluster
    assert again.info.jobspec == job.info.jobspec
    assert again.info.jobspec.cluster.kind is None


def test_a_machine_that_never_saw_the_job_can_run_it_again(stage, tmp_path, monkeypatch):
    job = ended(stage)
    monkeypatch.setenv("NBTORCHJOB_STATE_DIR", str(tmp_path / "other"))

    again = api.retry(job.info.address)

    assert again.result(LIMIT) == 42
    assert again.info.sources == job.info.sources


def test_a_payload_in_parts_is_put_together_again(stage):
    data = os.urandom(2 * package.SECRET_BYTES)
    job = with_data(stage, data)

    again = job.retry()
    assert again.wait(LIMIT)

    assert {"part-000", "part-001", "part-002"} <= payload(stage, again).keys()
    assert payload(stage, again) == payload(stage, job)


def test_a_part_that_is_gone_is_told(stage):
    job = with_data(stage, os.urandom(2 * package.SECRET_BYTES))

    for part in ("-3", "-1", ""):
        stage.delete(SECRETS, f"{package.first_name(job.info)}{part}")
        assert (
            refused(stage, job) == f"the payload of {job.name} is gone from the cluster: run its cell again"
        )


def test_a_payload_in_a_store_gets_a_place_of_its_own(stage, folder):
    data = os.urandom(package.LIMIT_BYTES + 1)
    job = with_data(stage, data, storage=str(folder))
    [stored] = folder.glob(f"{job.name}.*/*.pyz")
    before = stored.read_bytes()
    stored.write_bytes(before[:-1] + b"?")
    assert refused(stage, job).endswith("isn't what was stored there: run the job's cell again")
    assert [*folder.glob("*/*.pyz")] == [stored]
    stored.write_bytes(before)

    again = job.retry()
    assert again.wait(LIMIT)
    job.delete()

    [copied] = folder.glob(f"{again.name}.*/*.pyz")
    assert copied.read_bytes() == before
    assert not [*folder.glob(f"{job.name}.*")]
    copied.unlink()
    assert refused(stage, again).endswith(".pyz is gone: run the job's cell again")


def test_a_job_that_runs_has_to_end_first(stage):
    job = running(stage.submit(WAIT))
    message = f"{job.name} hasn't ended: cancel it first, %torchjob cancel {job.name}"

    assert refused(stage, job) == message
    job.suspend()
    until(lambda: job.state.suspended)
    assert refused(stage, job) == message

    job.cancel()
    assert isinstance(job.exception(LIMIT), JobCancelledError)
    again = job.retry()
    stage.sign("go")
    assert again.result(LIMIT) == 42


def test_a_job_that_only_this_machine_remembers_says_to_run_its_cell(stage):
    job = ended(stage)
    stage.delete(JOBS, job.name)
    until(lambda: not stage.left())

    assert refused(stage, job) == f"the payload of {job.name} is gone from the cluster: run its cell again"
    with pytest.raises(JobNotFoundError):
        api.retry("train-2222")


def test_who_may_not_is_told_and_leaves_nothing(stage):
    job = ended(stage)
    stage.become(("create", "jobs"))

    assert "may not create jobs.batch" in refused(stage, job)


def test_what_the_site_has_limited_since_is_refused(stage, tmp_path):
    job = ended(stage)
    site = tmp_path / "system/nbtorchjob/nbtorchjob.toml"
    site.parent.mkdir(parents=True)
    site.write_text("[defaults]\nnproc-per-node = 1\n[limits]\nnproc-per-node = 0\n")

    assert "limits it" in refused(stage, job, SpecError)


def test_its_manifests_are_shown_to_who_may_not_read_secrets(stage):
    job = running(stage.submit(WAIT))
    stage.become(("get", "secrets"), ("list", "secrets"))

    text = cluster_backend().manifests(job.info.address)

    assert [obj["kind"] for obj in yaml.safe_load_all(text)] == ["Service", "Job"]
    assert text.startswith(
        f"# Its Secrets, which hold the payload and the job's key: %torchjob export {job.name}"
    )


def test_a_network_policy_belongs_to_its_job_and_is_in_what_is_exported(stage, folder):
    path = "apis/networking.k8s.io/v1/{}/networkpolicies"
    open_one = ended(stage, DONE, name="open")
    assert stage.objects(path) == []
    job = running(stage.submit(WAIT, network_policy=True, name="closed"))
    [policy] = stage.objects(path)
    [owner] = policy["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Job", job.name)
    pod = next(pod for pod in stage.pods() if pod["metadata"]["labels"][labelling.JOB] == job.name)
    chosen = policy["spec"]["podSelector"]["matchLabels"]
    assert chosen.items() <= pod["metadata"]["labels"].items()
    for run in (job, open_one):
        files = run.export(folder / run.name)
        bodies = [yaml.safe_load(file.read_text()) for file in files if file.suffix == ".yaml"]
        [exported] = [body for body in bodies if body["kind"] == "NetworkPolicy"]
        assert exported["spec"]["podSelector"]["matchLabels"][labelling.JOB] == run.name
    shown = cluster_backend().manifests(job.info.address)
    assert "NetworkPolicy" in [obj["kind"] for obj in yaml.safe_load_all(shown)]
    stage.sign("go")
    job.delete()
    until(lambda: stage.objects(path) == [])


def test_who_may_make_no_network_policy_makes_no_job_either(stage):
    stage.become()
    assert "networkpolicies" in str(stage.refused(SubmitError, DONE, network_policy=True))
    assert api.leftovers() == []


def test_a_big_cell_that_is_run_again_leaves_the_payload_of_its_running_job_alone(stage, folder):
    data = os.urandom(package.LIMIT_BYTES + 1)
    patch = stage.patch(["sleep", "60"])
    options = {"cell": "len(data)", "variables": {"data": data}, "pod_patch": patch, "storage": str(folder)}
    job = stage.submit(**options)
    [before] = folder.rglob("*.pyz")
    timestamp = before.stat().st_mtime_ns

    assert stage.submit(**options).name == job.name
    assert list(folder.rglob("*.pyz")) == [before]
    assert before.stat().st_mtime_ns == timestamp
