"""A user's actions on a cluster, run against any cluster.

The cluster is that of NBTORCHJOB_TEST_KUBECONFIG, or else the emulator. The image, NBTORCHJOB_TEST_IMAGE,
needs this Python's minor version and torch. Tests skip a kind that the cluster lacks, and name it.
"""

import contextlib
import gzip
import io
import json
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from nbtorchjob import api, capture, submission
from nbtorchjob.backends.kubernetes.jobs import find
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.lifecycle import TELLING
from nbtorchjob.backends.kubernetes.objects.reading import (
    NAMESPACES,
    PODS,
    POLICIES,
    SECRETS,
    SERVICES,
    Target,
)
from nbtorchjob.backends.kubernetes.session import session
from nbtorchjob.backends.kubernetes.submit import attempts
from nbtorchjob.capture.shipped import SMALL
from nbtorchjob.errors import (
    CaptureError,
    JobCancelledError,
    JobFailedError,
    JobNotFoundError,
    NameTakenError,
    ResultError,
    SpecError,
    SubmitError,
)
from nbtorchjob.machine import folders, loop
from nbtorchjob.runtime.api.artifacts import artifacts_dir
from nbtorchjob.runtime.api.report import report
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic, PyTorch, Worker
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.policies import RunPolicy
from nbtorchjob.state import Phase, turns
from nbtorchjob.state.facts.events import Fetched, Installed
from nbtorchjob.state.failure import Cause
from tests.backends.full import cluster_backend
from tests.backends.local.real import seen
from tests.environment.built import project, wheel
from tests.patience import LIMIT

pytestmark = pytest.mark.torch

KUBECONFIG = os.environ.get("NBTORCHJOB_TEST_KUBECONFIG")
IMAGE = os.environ.get("NBTORCHJOB_TEST_IMAGE", "localhost/torch:1")
END_S = float(os.environ.get("NBTORCHJOB_TEST_PATIENCE_S", "300"))  # an image may have to be pulled

MEET = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor(float(dist.get_rank() + 1))
dist.all_reduce(total)
print("rank", dist.get_rank(), "of", dist.get_world_size())
report(total=float(total))
dist.barrier()
"""


@pytest.fixture(scope="module")
def cluster():
    """Yield the kubeconfig of a cluster that lasts as long as the tests."""
    if KUBECONFIG:
        yield KUBECONFIG
        return
    from tests.backends.kubernetes.cluster import Emulator

    with Emulator() as emulator:
        yield str(emulator.kubeconfig)


@pytest.fixture(scope="module")
def namespace(cluster):
    """Yield a namespace for these tests alone."""
    name = f"nbtorchjob-test-{secrets.token_hex(3)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", cluster)
        on_cluster(lambda client: client.create(NAMESPACES, None, body))
        yield name
        on_cluster(lambda client: client.delete(Target(NAMESPACES, None, name)))


@pytest.fixture
def options(cluster, namespace, tmp_path, monkeypatch):
    """Return the options of a job in that namespace, for a user who has submitted nothing yet."""
    monkeypatch.setenv("KUBECONFIG", cluster)
    monkeypatch.setenv(folders.STATE, str(tmp_path / "state"))
    return {"namespace": namespace, "image": IMAGE, "memory": "1500Mi", "cpu": "400m"}


@pytest.fixture(params=KINDS)
def kind(request, cluster, monkeypatch):
    """Return a kind; skip kinds that the cluster doesn't serve."""
    monkeypatch.setenv("KUBECONFIG", cluster)
    if request.param not in served():
        pytest.skip(f"this cluster has no {request.param}")
    return request.param


@pytest.fixture
def any_kind(cluster, monkeypatch):
    """Return one kind, for behavior that all kinds share."""
    monkeypatch.setenv("KUBECONFIG", cluster)
    return next(kind for kind in reversed([*KINDS]) if kind in served())


def on_cluster(ask):
    async def asked():
        return await ask((await session(None)).client)

    return loop.start(asked()).result(LIMIT)


def served():
    async def ask():
        cluster_session = await session(None)
        kinds = [kind.name for kind in await cluster_session.kinds()]
        return [kind for kind in kinds if await fit(cluster_session.client, KINDS[kind].runtimes)]

    async def fit(client, runtimes):
        # Without a runtime for torch a TrainJob can't be made.
        return runtimes is None or runtimes.default.name in await attempts.names(client, runtimes, "default")

    return loop.start(ask()).result(LIMIT)


def submit(cell, variables, launch, options, **cluster):
    spec = JobSpec(launch, "kubernetes", cluster=Cluster(**{**options, **cluster}))
    call = capture.from_cell(cell, {"report": report, **variables})
    return submission.submit(call, spec)


@contextlib.contextmanager
def submitted(*args, **kwargs):
    job = submit(*args, **kwargs)
    try:
        yield job
    finally:
        job.delete()


def until(condition, seconds=END_S):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it didn't come to that"
        time.sleep(0.1)


@pytest.fixture
def gate(tmp_path):
    """Return a path that a cell waits for; if pods don't share our files, it waits some seconds instead."""
    return tmp_path / "gate"


# A cell that runs until the test creates the gate, so that the test can act on the job before.
HOLD = """
import os, time
print("begun", flush=True)
end = time.time() + seconds
while time.time() < end and not os.path.exists(gate):
    time.sleep(0.05)
"""


def held(gate):
    """Return the variables of a cell that begins with ``HOLD``."""
    return {"gate": str(gate), "seconds": 10 if KUBECONFIG else END_S}


def left_of(name, namespace):
    """Return the names of a job's objects that still exist."""
    names = []
    for api_ in (SECRETS, SERVICES, PODS):
        listing = on_cluster(lambda client, a=api_: client.list(a, namespace))
        names += [
            item["metadata"]["name"] for item in listing.items if item["metadata"]["name"].startswith(name)
        ]
    return names


def zipped(job):
    """Return the files in the archive of a job's logs."""
    with zipfile.ZipFile(io.BytesIO(b"".join(job.archive()))) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_a_cell_runs_on_two_nodes_of_two_ranks_and_its_value_comes_back(kind, options):
    cell = MEET + (
        "import sys\nprint('met', file=sys.stderr)\n"
        "{'total': float(total), 'weights': torch.full((3,), scale), 'kind': 'plain'}"
    )
    with submitted(cell, {"scale": 2.5}, Elastic(nnodes=2, nproc_per_node=2), options, kind=kind) as job:
        value = job.result(END_S)
        state = job.state
        assert value["total"] == 10.0
        assert value["weights"].tolist() == [2.5] * 3
        assert state.phase is Phase.SUCCEEDED
        assert sorted(rank for node in state.nodes.values() for rank in node.ranks) == [0, 1, 2, 3]
        assert [job.logs(rank) for rank in range(4)] == [f"rank {rank} of 4\nmet\n" for rank in range(4)]
        assert (job.logs(3, stream="stdout"), job.logs(3, stream="stderr")) == ("rank 3 of 4\n", "met\n")
        for index, node in state.nodes.items():
            lines = job.lines(node=index, stream="stderr")
            assert sorted(line.rank for line in lines) == sorted(node.ranks)
        assert zipped(job)[f"{job.name}/rank-3.log"] == b"rank 3 of 4\nmet\n"
        assert state.series[0].points[-1].metrics == {"total": 10.0}


def test_the_first_failing_ranks_exception_comes_back(any_kind, options):
    cell = MEET + "if dist.get_rank() == 2:\n    raise ValueError('too bad')\ndist.barrier()"
    with submitted(cell, {}, Elastic(nnodes=2, nproc_per_node=2), options, kind=any_kind) as job:
        failed = job.exception(END_S)
        failure = job.state.failure
        assert job.state.phase is Phase.FAILED
        assert (failure.rank, failure.reason.cause) == (2, Cause.USER)
        assert "ValueError: too bad" in str(failed)
        assert "raise ValueError('too bad')" in str(failed)


def test_a_cancelled_job_keeps_its_record_and_a_deleted_one_nothing(any_kind, options):
    cell = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
    job = submit(cell, {}, Elastic(nnodes=2), options, kind=any_kind)
    until(lambda: "begun" in job.logs(0))
    job.cancel()
    job.cancel()
    with pytest.raises(JobCancelledError):
        job.result(END_S)
    assert job.state.phase is Phase.CANCELLED
    assert job.logs(0) == "begun\n"
    assert [state.phase for state in api.jobs() if state.info.name == job.name] == [Phase.CANCELLED]
    job.delete()
    job.delete()
    with pytest.raises(JobNotFoundError):
        api.attach(job.name)
    until(lambda: not left_of(job.name, options["namespace"]))


# Volcano suspends by a Command and its plugins set the rendezvous address anew; other kinds have a field.
@pytest.mark.parametrize("kind", ["volcano", "indexedjob"], indirect=True)
def test_a_suspended_job_goes_on_when_it_is_resumed(kind, options, gate):
    with submitted(f"{HOLD}\n7", held(gate), Elastic(nnodes=2), options, kind=kind) as job:
        until(lambda: "begun" in job.logs(0))
        job.suspend()
        until(lambda: job.state.suspended)
        assert not job.done()
        gate.touch()
        job.resume()
        assert job.result(END_S) == 7


def test_a_master_and_its_workers_run(options):
    kinds = [kind for kind in ("pytorchjob",) if kind in served()]
    if not kinds:
        pytest.skip("this cluster has no pytorchjob")
    cell = MEET + "dist.get_world_size()"
    with submitted(cell, {}, PyTorch(worker=Worker(replicas=1)), options, kind=kinds[0]) as job:
        assert job.result(END_S) == 2


KERNEL = """
import json, sys
from nbtorchjob import api, submission
job = api.attach(sys.argv[1])
value = job.result(300)
found = {"value": value, "log": job.logs(0), "label": job.info.label, "sources": len(job.info.sources)}
print(json.dumps(found))
"""


def test_a_new_kernel_has_everything_again(any_kind, options, tmp_path, gate):
    cell = f"{HOLD}\n{{'x': x}}"
    with submitted(cell, {"x": 5, **held(gate)}, Elastic(nnodes=2), options, kind=any_kind) as job:
        until(lambda: "begun" in job.logs(0))
        # As on another machine: its state folder records only where the cluster is.
        fresh = tmp_path / "fresh"
        shutil.copytree(
            folders.state_dir(),
            fresh,
            ignore=lambda _, names: [n for n in names if n != "kubernetes" and n != "scopes.json"],
        )
        env = {
            **os.environ,
            folders.STATE: str(fresh),
            "NBTORCHJOB_BACKEND": "kubernetes",
            "NBTORCHJOB_NAMESPACE": options["namespace"],
        }
        gate.touch()
        ran = subprocess.run(
            [sys.executable, "-c", KERNEL, job.name], env=env, capture_output=True, text=True, check=True
        )
        assert json.loads(ran.stdout) == {"value": {"x": 5}, "log": "begun\n", "label": "cell", "sources": 1}


def test_a_cell_that_is_run_again_finds_its_running_job(any_kind, options, gate):
    cell, held_by = f"{HOLD}\nx", held(gate)
    with submitted(cell, {"x": 1, **held_by}, Elastic(), options, kind=any_kind) as first:
        again = submit(cell, {"x": 1, **held_by}, Elastic(), options, kind=any_kind)
        assert again.name == first.name
        with submitted(cell, {"x": 2, **held_by}, Elastic(), options, kind=any_kind) as other:
            assert other.name != first.name
            gate.touch()
            assert (first.result(END_S), again.result(END_S), other.result(END_S)) == (1, 1, 2)
        # A call runs again once its job has ended.
        with submitted(cell, {"x": 1, **held_by}, Elastic(), options, kind=any_kind) as third:
            assert third.name != first.name


def test_progress_bars_and_odd_bytes_come_as_they_were_written(any_kind, options):
    cell = (
        "import sys\n"
        "for i in range(3):\n"
        "    sys.stdout.write(f'\\r{i}%'); sys.stdout.flush()\n"
        "sys.stdout.write('\\r\\ndone\\x00\\x1b[1m ü ' + 'x' * 20000 + '\\n')\n"
        "sys.stdout.write('no newline')"
    )
    with submitted(cell, {}, Elastic(), options, kind=any_kind) as job:
        assert job.result(END_S) is not False
        expected = "\r0%\r1%\r2%\r\ndone\x00\x1b[1m ü " + "x" * 20000 + "\nno newline"
        assert job.logs(0) == expected


def test_a_payload_above_one_secret_arrives_and_its_node_is_asked(any_kind, options, gate, tmp_path):
    torch = pytest.importorskip("torch")
    data = torch.arange(700_000)  # 5.6 MB
    cell = f"{HOLD}\nint(data.sum())"
    with submitted(cell, {"data": data, **held(gate)}, Elastic(), options, kind=any_kind) as job:
        until(lambda: "begun" in job.logs(0))
        (answer,) = cluster_backend().ask(job.name, {"question": "sample"}, timeout=END_S)
        assert answer.trouble == ""
        assert [record["event"] for record in answer.records] == ["Sampled"]
        profile = job.profile(0.2, folder=tmp_path)
        assert "traceEvents" in json.loads(gzip.decompress(profile.path.read_bytes()))
        assert "time.sleep(0.05)" in profile.spent.lines[0][0]
        gate.touch()
        assert job.result(END_S) == int(data.sum())
        assert len([name for name in left_of(job.name, options["namespace"]) if "payload" in name]) > 5


def test_a_payload_too_big_for_the_api_names_the_biggest_captures(any_kind, options):
    torch = pytest.importorskip("torch")
    data, small = torch.zeros(5_000_000), torch.zeros(10)
    with pytest.raises(SubmitError, match=r"20 MB.*biggest in it: data .*--storage"):
        submit("data + small", {"data": data, "small": small}, Elastic(), options, kind=any_kind)
    assert api.jobs() == []


def test_a_value_of_megabytes_comes_by_the_log_and_a_bigger_one_asks_for_a_store(any_kind, options):
    cell = "import torch\ntorch.arange(count)"
    with submitted(cell, {"count": 450_000}, Elastic(), options, kind=any_kind) as job:
        assert int(job.result(END_S)[-1]) == 449_999
    with (
        submitted(cell, {"count": 900_000}, Elastic(), options, kind=any_kind) as job,
        pytest.raises(ResultError, match="--storage"),
    ):
        job.result(END_S)


def test_what_is_too_big_for_the_api_goes_through_the_store_and_is_deleted_with_the_job(
    any_kind, options, tmp_path
):
    torch = pytest.importorskip("torch")
    if KUBECONFIG:
        pytest.skip("needs a path that pods and tests share")
    store, data = tmp_path / "store", torch.arange(2_500_000)  # 20 MB
    with submitted("data * 2", {"data": data}, Elastic(), options, kind=any_kind, storage=str(store)) as job:
        assert torch.equal(job.result(END_S), data * 2)
        assert len(list(store.glob(f"{job.name}.*/*.pyz"))) == 1
    assert list(store.iterdir()) == []


def test_packages_are_installed_on_each_node_and_from_the_store_without_an_index(any_kind, options, tmp_path):
    if KUBECONFIG:
        pytest.skip("needs a path that pods and tests share")
    index, store = tmp_path / "index", tmp_path / "store"
    wheel(index, "nbtj_fresh", "1.0", "nbtj_below")
    wheel(index, "nbtj_below")
    source = project(tmp_path / "mine", "nbtj_mine", "2.0")
    cell = "import nbtj_fresh, nbtj_below, nbtj_mine\n[nbtj_fresh.version, nbtj_mine.version]"
    spec = JobSpec(
        Elastic(nnodes=2),
        "kubernetes",
        cluster=Cluster(**options, kind=any_kind, storage=str(store)),
        env={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)},
        package=["nbtj_fresh", str(source)],
        all_ranks=True,
    )
    by = []
    for _ in range(2):
        job = submission.submit(capture.from_cell(cell, {}), spec)
        assert job.results(END_S) == [["1.0", "2.0"]] * 2
        by.append([install.by for install in job.state.installs.values() if isinstance(install, Installed)])
        assert job.state.environment is not None
        assert set(job.state.environment.installed) == {"nbtj-fresh", "nbtj-below", "nbtj-mine"}
        job.delete()
        shutil.rmtree(index, ignore_errors=True)
    assert by == [["pip"] * 2, [""] * 2]


SHIPPED = """
import os
from pathlib import Path
files = {str(path): path.stat().st_mode & 0o777 for path in Path().rglob("*") if path.is_file()}
files, Path("configs/lr").read_text(), Path("big").stat().st_size, os.getcwd()
"""


def test_shipped_files_lie_where_ranks_work(any_kind, options, tmp_path, monkeypatch):
    if KUBECONFIG:
        pytest.skip("needs a path that pods and tests share")
    work, store = tmp_path / "work", tmp_path / "store"
    (work / "configs").mkdir(parents=True)
    (work / "configs" / "lr").write_text("1")
    (work / "configs" / "run").touch(0o755)
    (work / "big").write_bytes(bytes(SMALL + 1))
    monkeypatch.chdir(work)
    cluster = Cluster(**options, kind=any_kind, storage=str(store))
    spec = JobSpec(
        Elastic(nnodes=2, nproc_per_node=2), "kubernetes", ship=["configs", "big"], cluster=cluster
    )
    job = submission.submit(capture.from_cell(SHIPPED, {}), spec)
    expected = {"configs/lr": 0o444, "configs/run": 0o555, "big": 0o444}
    assert job.result(END_S)[:3] == (expected, "1", SMALL + 1)
    (stored,) = (path for path in (store / "_shipped").iterdir() if path.is_file())
    when = stored.stat().st_mtime_ns

    (work / "configs" / "lr").write_text("2")
    again = job.retry()
    assert again.result(END_S)[:3] == (expected, "1", SMALL + 1)

    # If an image's working folder has a file of that name, the image's file stays.
    monkeypatch.chdir(work)
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "big").write_text("the image's")
    (tmp_path / "image" / "data").write_text("the image's")
    folder = (
        f"{{spec: {{containers: [{{name: {KINDS[any_kind].container}, workingDir: {tmp_path}/image}}]}}}}"
    )
    patched_spec = replace(spec, cluster=replace(cluster, pod_patch=folder))
    third = submission.submit(capture.from_cell(SHIPPED, {}), patched_spec)
    files, lr, size, where = third.result(END_S)
    assert (files.keys(), lr, size) == ({*expected, "data"}, "2", SMALL + 1)
    assert f"ranks work in {where}: {tmp_path}/image has a different big" in third.state.notices[0].text
    assert (tmp_path / "image" / "big").read_text() == "the image's"
    assert stored.stat().st_mtime_ns == when
    for run in (job, again, third):
        run.delete()
    assert [path.name for path in store.iterdir()] == ["_shipped"]
    assert [*(store / "_shipped" / "uses").iterdir()] == []


LEAVE = """
import os
node = int(os.environ["NBTORCHJOB_NODE"])  # of which any may have rank 0
(artifacts_dir() / "runs").mkdir()
(artifacts_dir() / "runs" / f"events-{node}").write_bytes(bytes(size))
(artifacts_dir() / "loss").write_text(f"{node}")
"""


@pytest.mark.parametrize("stored", [False, True])
def test_what_ranks_leave_comes_home_by_the_log_or_the_store_and_stays_here(
    stored, any_kind, options, tmp_path
):
    if KUBECONFIG and stored:
        pytest.skip("needs a path that pods and tests share")
    variables = {"artifacts_dir": artifacts_dir, "size": 5_000_000 if stored else 1_000_000}
    where = {"storage": str(tmp_path / "store")} if stored else {}
    job = submit(LEAVE, variables, Elastic(nnodes=2), options, kind=any_kind, **where)
    job.wait(END_S)
    for backend_, left in api.leftovers():
        if left.name == job.name:
            backend_.clear(left)
    until(lambda: not left_of(job.name, options["namespace"]))
    assert not stored or list((tmp_path / "store").iterdir()) == []

    artifacts = job.artifacts(tmp_path / "home")

    size = variables["size"]
    sizes = {"loss": 1, "node-1/loss": 1, "runs/events-0": size, "runs/events-1": size}
    assert {artifact.path: artifact.size for artifact in artifacts} == sizes
    assert (tmp_path / "home" / "node-1" / "loss").read_text() == "1"
    job.delete()
    with pytest.raises(JobNotFoundError):
        job.artifacts()


def test_what_an_image_prints_before_python_runs_is_told(any_kind, options):
    if KUBECONFIG:
        pytest.skip("needs an image without torch")
    with submitted(
        "1",
        {},
        Elastic(),
        options,
        kind=any_kind,
        pod_patch=json.dumps(
            {"spec": {"containers": [{"command": ["sh", "-c", "echo no such thing; exit 3"]}]}}
        ),
    ) as job:
        if any_kind == "trainjob":
            pytest.skip("a TrainJob's command can't be patched")
        assert "no such thing" in str(job.exception(END_S))


def test_an_image_that_isnt_there_is_waited_for_with_the_reason(any_kind, options):
    with submitted("1", {}, Elastic(), options, kind=any_kind, image="localhost/nothing-here:1") as job:
        until(lambda: any("image" in wait.text for wait in job.state.waiting))
        assert job.state.phase is Phase.PENDING


def test_more_than_the_cluster_has_is_waited_for_with_the_reason(any_kind, options):
    with submitted("1", {}, Elastic(), {**options, "cpu": "900"}, kind=any_kind) as job:
        # If pods are made only once all of them fit, the reason names the gang.
        words = ("cpu", "gang")
        until(lambda: any(word in wait.text for wait in job.state.waiting for word in words))


def test_a_dry_run_shows_the_manifests_without_the_payload_and_sends_nothing(kind, options):
    spec = JobSpec(Elastic(nnodes=2), "kubernetes", cluster=Cluster(**options, kind=kind))
    text = submission.dry_run(capture.from_function(str, ("the secret text",)), spec)
    manifests = text[text.index("apiVersion") : text.index("# ships:")]
    assert "kind: Secret" in manifests
    assert "the secret text" not in manifests
    assert "checked by the server" in manifests
    assert api.jobs() == []


def test_what_a_kind_cannot_do_is_refused_with_the_kind_that_can(options):
    with pytest.raises(SpecError, match=r"1:2.*--kind pytorchjob"):
        submit("1", {}, Elastic(nnodes="1:2"), options, kind="trainjob")
    with pytest.raises(SpecError, match=r"backoff_limit.*--retries"):
        submit("1", {}, Elastic(run_policy=RunPolicy(backoff_limit=1)), options, kind="trainjob")


def test_a_missing_namespace_leaves_nothing(any_kind, options):
    with pytest.raises(SubmitError, match="namespace"):
        submit("1", {}, Elastic(), {**options, "namespace": "nobody-made-this"}, kind=any_kind)


def test_a_name_of_another_running_call_is_refused(any_kind, options):
    spec = JobSpec(
        Elastic(),
        "kubernetes",
        name=f"taken-{secrets.token_hex(3)}",
        cluster=Cluster(**options, kind=any_kind),
    )
    job = submission.submit(capture.from_cell("1", {}), spec)
    try:
        with pytest.raises(NameTakenError, match="--name"):
            submission.submit(capture.from_cell("2", {}), spec)
    finally:
        job.delete()


# The server adds most fields to an Indexed Job, and would refuse them; a TrainJob's pods come of a runtime.
@pytest.mark.parametrize("kind", ["trainjob", "indexedjob"], indirect=True)
def test_an_exported_job_runs_without_the_notebook(kind, options, tmp_path):
    import yaml

    with submitted("print('again')\nx + 1", {"x": 41}, Elastic(nnodes=2), options, kind=kind) as job:
        assert job.result(END_S) == 42
        files = job.export(tmp_path / "out")
        name, state = job.name, job.state
    until(lambda: not left_of(name, options["namespace"]))
    for path in (path for path in files if path.suffix == ".yaml"):
        body = yaml.safe_load(path.read_text())
        resource = BESIDE.get(body["kind"]) or KINDS[state.info.cluster["kind"]].api
        on_cluster(lambda client, t=resource, b=body: client.create(t, options["namespace"], b))
    again = api.attach(name)
    try:
        assert again.result(END_S) == 42
        assert any("x + 1" in path.read_text() for path in files if path.suffix == ".py")
    finally:
        again.delete()
        for path in (path for path in files if path.suffix == ".yaml"):
            body = yaml.safe_load(path.read_text())
            if (api_ := BESIDE.get(body["kind"])) is not None:
                target = Target(api_, options["namespace"], body["metadata"]["name"])
                on_cluster(lambda client, t=target: client.delete(t))


# The kinds of objects that an export contains beside the job.
BESIDE = {"Secret": SECRETS, "Service": SERVICES, "NetworkPolicy": POLICIES}


def test_gc_lists_ended_jobs_and_brings_their_values_home_before_it_removes_them(any_kind, options):
    job = submit("{'kept': 1}", {}, Elastic(), options, kind=any_kind)
    job.wait(END_S)
    leftovers = [(backend_, left) for backend_, left in api.leftovers() if left.name == job.name]
    assert [left.description.split()[0] for _, left in leftovers] == ["succeeded"]
    for backend_, left in leftovers:
        backend_.clear(left)
    until(lambda: not left_of(job.name, options["namespace"]))
    assert job.result(END_S) == {"kept": 1}


def test_jobs_of_others_are_listed_only_when_asked_for(any_kind, options, monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_USER", "somebody-else")
    with submitted("1", {}, Elastic(), options, kind=any_kind) as job:
        monkeypatch.setenv("JUPYTERHUB_USER", "me")
        assert job.name not in [state.info.name for state in api.jobs()]
        assert job.name in [state.info.name for state in api.jobs(everyone=True)]


def test_watches_are_a_constant_however_many_jobs_are_followed(any_kind, options, gate):
    with contextlib.ExitStack() as jobs:
        running = [
            jobs.enter_context(
                submitted(f"{HOLD}\nx", {"x": n, **held(gate)}, Elastic(), options, kind=any_kind)
            )
            for n in range(3)
        ]
        states = [job.state for job in running]
        assert len(states) == 3

        async def count():
            return (await session(None)).reflector(options["namespace"]).watches

        until(lambda: loop.start(count()).result(END_S) == 2 + len(TELLING))  # objects, pods, events
        gate.touch()
        assert [job.result(END_S) for job in running] == [0, 1, 2]


TRAIN = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    loss = model(inputs[dist.get_rank() :: dist.get_world_size()]).square().mean()
    loss.backward()
    optimizer.step()
model.module.weight.detach()
"""


@pytest.fixture
def training():
    """Return variables for ``TRAIN``, and its value on this machine, from the pool that all tests share."""
    torch = pytest.importorskip("torch")
    variables = {"inputs": torch.linspace(-1, 1, 256).reshape(32, 8)}
    job = submission.submit(capture.from_cell(TRAIN, variables), JobSpec(Elastic(nnodes=2)))
    return variables, job.result(END_S)


def test_a_training_cell_gives_the_same_value_as_on_this_machine(training, any_kind, options):
    variables, reference = training
    with submitted(TRAIN, variables, Elastic(nnodes=2), options, kind=any_kind) as job:
        assert job.result(END_S).tolist() == [pytest.approx(reference.tolist()[0])]


def test_a_labs_ranks_stay_and_another_kernel_finds_it(kind, options):
    spec = JobSpec(Elastic(nnodes=2), "kubernetes", cluster=Cluster(**options, kind=kind), name="lab")
    lab = api.keep(spec, idle="1h")
    try:
        assert lab.run_cell("there = 41\nthere").result(END_S) == 41
        find.forget()  # as a kernel that knows only the name
        again = api.lab("lab")
        assert (again.info.lab, again.info.cluster["kind"]) == (3600, kind)
        assert again.run_cell("there += 1\nthere").result(END_S) == 42
        assert again.run_cell("there + 1", rank=1).result(END_S) == 43
        (listed,) = (state for state in api.jobs() if state.info.name == "lab")
        assert turns.idle_since(listed)
        again.end()
        assert again.job.exception(END_S) is None
    finally:
        lab.job.delete()


def test_a_lab_that_was_suspended_goes_on_with_ranks_that_are_empty(any_kind, options):
    spec = JobSpec(Elastic(), "kubernetes", cluster=Cluster(**options, kind=any_kind), name="paused")
    lab = api.keep(spec)
    try:
        assert lab.run_cell("there = 41\nthere").result(END_S) == 41
        lab.job.suspend()
        seen(lab.job, lambda state: state.suspended)
        lab.job.resume()
        with pytest.raises(CaptureError, match="before the ranks restarted"):
            lab.run_cell("there")
        with pytest.warns(UserWarning, match="began anew"):
            job = lab.run_cell("there = 1\nthere")
        assert job.result(END_S) == 1
        assert lab.run_cell("there").result(END_S) == 1
    finally:
        lab.job.delete()


DATA = """
from nbtorchjob import data_dir
web, sent = data_dir("web"), data_dir("sent")
(web / "blob.bin").read_bytes() == b"blob", (sent / "a" / "one.txt").read_text(), str(web)
"""


def test_data_is_fetched_once_a_host_before_ranks_start(any_kind, options, tmp_path, monkeypatch):
    if KUBECONFIG:
        pytest.skip("needs a path and an address that pods and tests share")
    (tmp_path / "big" / "a").mkdir(parents=True)
    (tmp_path / "big" / "a" / "one.txt").write_text("one")
    for name in ("cache", "store"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    with Files() as server:
        cluster = Cluster(
            **options,
            kind=any_kind,
            storage=str(tmp_path / "store"),
            mount=[f"type=bind,src={tmp_path}/cache,dst={tmp_path}/cache"],
            data_cache=f"{tmp_path}/cache",
        )
        spec = JobSpec(
            Elastic(nnodes=2),
            "kubernetes",
            cluster=cluster,
            data={"web": server.url("blob.bin"), "sent": "./big"},
            all_ranks=True,
        )
        job = submission.submit(capture.from_cell(DATA, {}), spec)
        (right, text, web), second = job.results(END_S)
        assert (right, text, second[:2]) == (True, "one", (True, "one"))
        assert web.startswith(f"{tmp_path}/cache/")
        assert server.whole == 1
        facts = [fact for fact in job.state.fetches.values() if isinstance(fact, Fetched)]
        assert sorted(fact.kept for fact in facts if fact.name == "web") == [False, True]
        assert {fact.place for fact in facts} == {f"{tmp_path}/cache of its host"}
        job.delete()

        missing = replace(spec, data={"web": server.url("none.bin")})
        failed = submission.submit(capture.from_cell(DATA, {}), missing)
        with pytest.raises(JobFailedError, match=r"--data web: nothing exists at .*/none\.bin \(404\)"):
            failed.result(END_S)
        failed.delete()


class Files(ThreadingHTTPServer):
    """A server of one file that counts the requests for all of it."""

    def __init__(self):
        self.whole = 0
        super().__init__(("127.0.0.1", 0), _Get)

    def url(self, path):
        return f"http://127.0.0.1:{self.server_port}/{path}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class _Get(BaseHTTPRequestHandler):
    def do_GET(self):
        is_blob = self.path == "/blob.bin"
        assert isinstance(self.server, Files)
        self.server.whole += is_blob and "Range" not in self.headers
        self.send_response(200 if is_blob else 404)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", "4" if is_blob else "0")
        self.end_headers()
        self.wfile.write(b"blob" if is_blob else b"")

    def log_message(self, *_):
        return
