"""Pools on a cluster: standing pods that run jobs, each job as if it had pods of its own."""

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import pytest

from nbtorchjob import api, capture, pools, submission
from nbtorchjob.backends import turns_of
from nbtorchjob.backends.kubernetes.jobs import find
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.errors import (
    JobCancelledError,
    JobEndedError,
    JobFailedError,
    JobNotFoundError,
    NameTakenError,
    SpecError,
    SubmitError,
)
from nbtorchjob.machine import folders, processes
from nbtorchjob.payload import archive
from nbtorchjob.runtime.api.artifacts import artifacts_dir
from nbtorchjob.spec import options, profiles
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.policies import Retry, RunPolicy
from nbtorchjob.state import Phase, turns
from nbtorchjob.state.text import attempts, facts
from tests.backends.kubernetes.stage import until
from tests.backends.local.launch.test_start import look
from tests.backends.local.real import seen
from tests.patience import LIMIT

pytestmark = pytest.mark.torch

IMAGE = "localhost/torch:1"
TWO = Elastic(nnodes=2)


@pytest.fixture(scope="module")
def cluster(crds):
    """Yield a cluster that all tests of the file share."""
    from tests.backends.kubernetes.cluster import Emulator
    from tests.backends.kubernetes.cluster.emulator import KINDS

    with Emulator(kinds=(*KINDS, "kueue")) as emulator:
        yield emulator


@pytest.fixture(scope="module")
def place(cluster, tmp_path_factory):
    """Point this process at the cluster, as a user who has submitted nothing yet; yield a job's options."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(cluster.kubeconfig))
        patch.setenv(folders.STATE, str(tmp_path_factory.mktemp("state")))
        yield {"image": IMAGE, "memory": "1500Mi", "cpu": "400m"}


@pytest.fixture(scope="module")
def pool(place):
    """Yield a pool of two nodes, as plain Jobs."""
    env = {"OF_POOL": "1", "THE_TOKEN": "of the pool"}
    launch = Elastic(nnodes=2, max_restarts=3)  # as a profile may set it
    spec = JobSpec(launch, "kubernetes", cluster=Cluster(**place, kind="indexedjob"), env=env)
    pool = api.pool(spec, name="warm")
    yield pool
    pool.job.delete()


def run(cell, variables=None, **options):
    """Send a cell to the pool; return the job."""
    call = capture.from_cell(cell, variables or {})
    return submission.submit(call, JobSpec(pool="warm", **options))


MEET = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor(float(dist.get_rank() + 1))
dist.all_reduce(total)
print("rank", dist.get_rank(), "of", dist.get_world_size())
float(total) * scale
"""


def test_a_job_runs_on_the_pods_that_stand(pool):
    job = run(MEET, {"scale": 2.0})

    assert job.result(LIMIT) == 6.0
    assert re.findall(r"rank . of .", job.logs(1)) == ["rank 1 of 2"]
    assert job.state.phase is Phase.SUCCEEDED


def test_another_kernel_finds_the_job_and_its_value(pool):
    job = run(MEET, {"scale": 1.0}, all_ranks=False)
    job.wait(LIMIT)
    find.forget()

    again = api.attach(job.name)
    assert again.result(LIMIT) == 3.0
    assert again.logs(0) == "rank 0 of 2\n"


def test_a_rank_that_raises_ends_the_others_and_the_job(pool):
    fails = f"{MEET}\nif dist.get_rank() == 1:\n    raise ValueError('no')\ndist.barrier()"
    job = run(fails, {"scale": 1.0})

    error = job.exception(LIMIT)
    assert isinstance(error, JobFailedError)
    assert "rank 1: ValueError: no" in str(error)
    assert run("1 + 1").result(LIMIT) == 2


NO_ROOM = """
import os, pathlib
next_round = int(os.environ["NBTORCHJOB_ROUND"]) + 1
if os.environ["RANK"] == "1":
    pathlib.Path(os.environ["NBTORCHJOB_FOLDER"], f"round-{next_round}").touch()
"""


def test_a_job_that_one_node_cannot_begin_fails_on_all_and_the_next_one_runs(pool):
    run(NO_ROOM).result(LIMIT)

    assert "FileExistsError" in str(run(MEET, {"scale": 1.0}).exception(LIMIT))
    assert run("1 + 1").result(LIMIT) == 2


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("import os; os._exit(7)", "exited with code 7"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("import sys; sys.exit('enough')", "enough"),
    ],
)
def test_how_a_rank_ended_is_told_of_its_job_alone(pool, end, how):
    assert how in str(run(end).exception(LIMIT))
    assert pool.state.phase is Phase.RUNNING
    assert pool.state.failure is None


def test_jobs_wait_for_each_other_and_can_be_cancelled(pool):
    stuck = run("import time\nprint('on', flush=True)\nwhile True: time.sleep(1)")
    dropped, waits = run("2"), run("3")
    seen(waits, lambda state: state.waits)
    assert "behind job" in waits.state.waits[-1].text

    dropped.cancel()
    seen(stuck, lambda state: state.round > 0)
    stuck.cancel()
    for job in (stuck, dropped):
        with pytest.raises(JobCancelledError):
            job.result(LIMIT)
        assert job.state.phase is Phase.CANCELLED
    assert waits.result(LIMIT) == 3


ONE = Elastic(nnodes=1)
STAYS = """
import os, time, torch, torch.distributed as dist
from nbtorchjob import artifacts_dir
dist.init_process_group("gloo")
(artifacts_dir() / "whose").write_text(name)
print("on as", name, flush=True)
while not os.path.exists(f"{folder}/{name}"):
    time.sleep(0.02)
[name, dist.get_rank(), dist.get_world_size(), os.environ["NBTORCHJOB_NODE"]]
"""


def test_jobs_that_fit_run_side_by_side_each_as_if_it_were_alone(pool, tmp_path):
    def stays(name, **options):
        job = run(STAYS, {"name": name, "folder": str(tmp_path)}, launch=ONE, **options)
        seen(job, lambda state: 0 in state.logs)
        return job

    one, other = stays("one"), stays("other")
    both, third = run("2"), run("3", launch=ONE)
    seen(third, lambda state: state.waits)
    numbers = [int(job.name.partition("#")[2]) for job in (one, other, both, third)]
    runs = [f"job {number} (root) on node {node}" for node, number in enumerate(numbers[:2])]
    text = f"waits behind {', '.join(runs)}, job {numbers[2]} (root); it needs 1 of 2 nodes"
    assert third.state.waits[-1].text == text
    assert attempts.doing_now(pool.state) == f"runs jobs {numbers[0]} and {numbers[1]}, 2 more wait"
    assert [[*job.state.nodes] for job in (one, other)] == [[0], [1]]
    stacks = one.stacks()
    assert (stacks.asked, [*stacks.samples], stacks.trouble) == (True, [0], {})

    one.cancel()
    with pytest.raises(JobCancelledError):
        one.result(LIMIT)
    assert other.logs(0) == "on as other\n"
    (tmp_path / "other").touch()
    assert other.result(LIMIT) == ["other", 0, 1, "1"]
    assert [both.result(LIMIT), third.result(LIMIT)] == [2, 3]
    other.artifacts(tmp_path / "files")
    assert [path.read_text() for path in (tmp_path / "files").rglob("whose")] == ["other"]


def test_what_waited_behind_a_job_begins_once_that_is_withdrawn(pool, tmp_path):
    stays = run(STAYS, {"name": "stays", "folder": str(tmp_path)}, launch=ONE)
    seen(stays, lambda state: 0 in state.logs)
    both, behind = run("2"), run("3", launch=ONE)
    seen(behind, lambda state: state.waits)
    both.cancel()

    assert behind.result(LIMIT) == 3
    assert not stays.done()
    (tmp_path / "stays").touch()
    assert stays.result(LIMIT)


LEAVE = """
import os, pathlib, subprocess, sys, tempfile, torch
os.environ["LEFT"] = "1"
torch.manual_seed(1)
torch.set_default_dtype(torch.float64)
for folder in (pathlib.Path.home(), pathlib.Path(), pathlib.Path(tempfile.gettempdir())):
    (folder / "left" / "deep").mkdir(parents=True, exist_ok=True)
    (folder / "left" / "deep" / "file").write_text("left")
sys.modules["left"] = sys
subprocess.Popen(["sleep", "600"], start_new_session=True).pid
"""

LOOK = """
import os, pathlib, sys, tempfile, torch
files = [*pathlib.Path.home().rglob("*"), *pathlib.Path(tempfile.gettempdir()).glob("*")]
[sorted(map(str, files)), os.environ.get("LEFT"), "left" in sys.modules, str(torch.get_default_dtype())]
"""


def test_nothing_of_a_job_is_left_for_the_next_one(pool):
    before = run(LOOK).result(LIMIT)
    process = run(LEAVE).result(LIMIT)

    assert run(LOOK).result(LIMIT) == before
    assert not os.path.exists(f"/proc/{process}")


FREE = "import torch\ntorch.cuda.mem_get_info()[0]"
TAKE = """
import os, subprocess, sys, torch
if how == "leaves a process":
    takes = "import time, torch; kept = torch.zeros(2**28, device='cuda'); print(flush=True); time.sleep(600)"
    argv = [sys.executable, "-c", takes]
    subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True).stdout.readline()
sys.kept = torch.zeros(2**28, device="cuda")
torch.cuda.synchronize()
if how == "is killed":
    os.kill(os.getpid(), 9)
torch.cuda.mem_get_info()[0]
"""


@pytest.mark.skipif(not processes.gpus(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("how", ["returns", "is killed", "leaves a process"])
def test_nothing_of_a_job_is_left_in_the_memory_of_its_gpu(pool, how):
    free = run(FREE, launch=ONE).result(LIMIT)
    job = run(TAKE, {"how": how}, launch=ONE)
    job.wait(LIMIT)
    if how != "is killed":
        assert job.result() <= free - 2**30
    assert run(FREE, launch=ONE).result(LIMIT) == free


MOUNTS = [["unshare", "--mount", "true"], ["unshare", "--mount", "--map-root-user", "true"]]


@pytest.mark.skipif(
    all(subprocess.call(argv) for argv in MOUNTS), reason="no program may mount anything here"
)
def test_shared_memory_of_others_on_this_machine_stays(pool):
    run("0").wait(LIMIT)  # the nodes have noted the state before the first job
    memory = SharedMemory(create=True, size=1)
    try:
        run("1").wait(LIMIT)
        run("2").wait(LIMIT)  # by now the nodes are back in that state
        assert os.path.exists(f"/dev/shm/{memory.name}")
    finally:
        memory.close()
        memory.unlink()


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_rank_starts_there_as_in_pods_of_its_own(pool, place, nodes):
    def looked(**where):
        call = capture.from_function(look, (), {})
        job = submission.submit(call, JobSpec(**where))
        pod = r"/tmp/emulator-\w+/pods/[\w-]+|nbtorchjob-\w+|own\d-\d|warm-\d"
        view = json.loads(re.sub(pod, "POD", json.dumps(job.result(LIMIT))))
        return view | view.pop("environment")

    run(LEAVE).wait(LIMIT)
    cluster = Cluster(**place, kind="indexedjob")
    launch = Elastic(nnodes=nodes)
    pool_view = looked(pool="warm", launch=launch)
    fresh = looked(backend="kubernetes", cluster=cluster, launch=launch, name=f"own{nodes}")
    assert pool_view.pop("OF_POOL")
    assert pool_view.pop("THE_TOKEN")
    names = pool_view.keys() | fresh.keys()
    assert {n: (pool_view.get(n), fresh.get(n)) for n in names if pool_view.get(n) != fresh.get(n)} == {}


def test_variables_of_the_job_are_laid_over_the_pools(pool):
    cell = "import os\n[os.environ.get(n) for n in ('OF_POOL', 'OWN', 'THE_TOKEN')]"
    job = run(cell, env={"OWN": "2", "THE_TOKEN": "hidden"})

    assert job.result(LIMIT) == ["1", "2", "hidden"]
    assert run(cell).result(LIMIT) == ["1", None, "of the pool"]
    assert "hidden" not in json.dumps(job.info.spec)


def test_variables_take_effect_that_a_fork_can_take_over(pool):
    cell = "import time, torch\n[time.tzname[0], torch.get_num_threads()]"

    assert run(cell, env={"TZ": "ABC-3", "OMP_NUM_THREADS": "1"}).result(LIMIT) == ["ABC", 1]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"launch": Elastic(nnodes=3)}, "--nnodes is 3, and the pool's 2"),
        ({"cluster": Cluster(image="other:1")}, "--image is other:1, and the pool's localhost/torch:1"),
        ({"cluster": Cluster(memory="9Gi")}, "--memory is 9Gi, and the pool's 1500Mi"),
        ({"package": ["einops"]}, "--package is einops, and the pool's not set"),
        ({"env": {"MKL_NUM_THREADS": "3"}}, "--env MKL_NUM_THREADS is read as libraries are loaded"),
        ({"env": {"PYTHONPATH": "/mine"}}, "--env PYTHONPATH is read as libraries are loaded"),
        ({"launch": Elastic(max_restarts=3)}, "--max-restarts 3: the pods are the pool's"),
        ({"retry": Retry(on_demand_last=True)}, "--on-demand-last True: the pods are the pool's"),
        ({"name": "mine"}, "--name mine: jobs in a pool are called warm#1, 2, …"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(pool, asked, why):
    with pytest.raises(SpecError, match=re.escape(why)):
        run("1", **asked)


@pytest.mark.parametrize("nnodes", ["1", "3", "'1:4'"])
def test_a_sites_number_of_nodes_does_not_keep_a_job_from_all_of_its_pool(
    pool, nnodes, tmp_path, monkeypatch
):
    (tmp_path / "site.toml").write_text(f"[defaults]\nnnodes = {nnodes}")
    monkeypatch.setenv("NBTORCHJOB_SITE_CONFIG", str(tmp_path / "site.toml"))
    spec, _ = options.parse("--pool warm", profiles.default())

    assert pools.fitted(spec, pool).launch.max_nodes == 2
    assert pools.fitted(options.parse("--pool warm --nnodes 1", spec)[0], pool).launch.max_nodes == 1


def test_a_job_that_does_not_fit_may_have_pods_of_its_own(pool, place):
    spec = JobSpec(TWO, "kubernetes", cluster=Cluster(**place | {"cpu": "300m"}), pool="warm", or_own=True)
    job = submission.submit(capture.from_cell("6 * 7", {}), spec)
    try:
        assert (job.result(LIMIT), job.info.of_lab) == (42, "")
    finally:
        job.delete()


SQUARE = """
def square(x):
    import time
    from nbtorchjob import report
    report(square=x * x)
    if x == 3:
        time.sleep(600)
    return x * x
"""


def test_a_sweep_runs_in_a_pool_side_by_side_or_one_run_at_a_time(pool):
    spec = JobSpec(ONE, pool="warm")
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(SQUARE, space)
    square = space["square"]
    runs = api.map(square, [{"x": x} for x in (1, 2, 3)], spec=spec, stop_when="square > 4")
    assert [run.name.partition("#")[0] for run in runs] == ["warm"] * 3
    *values, stopped = runs.results(LIMIT, errors="return")
    assert values == [1, 4]
    assert "square > 4 (square=9)" in str(stopped)

    again = api.group(runs.name)
    assert again.results(LIMIT, errors="return")[:2] == [1, 4]
    assert [state.stopped_early for state in again.states()] == [False, False, True]
    assert [row["square"] for row in again.rows()] == [1.0, 4.0, 9.0]

    in_turn = api.map(square, [{"x": x} for x in (4, 5)], spec=replace(spec, name="turns"), at_once=1)
    assert (in_turn.name, in_turn.results(LIMIT)) == ("turns", [16, 25])
    first, second = in_turn.states()
    assert (first.ended or 0.0) < (second.first_start or 0.0)


def test_a_sweep_of_a_name_that_an_ended_one_has_in_any_pool_gets_a_number(pool, place):
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(SQUARE, space)

    def sweep(where, *numbers):
        spec = JobSpec(ONE, pool=where, name="sweep")
        return api.map(space["square"], [{"x": x} for x in numbers], spec=spec)

    second = api.pool(
        JobSpec(Elastic(), "kubernetes", cluster=Cluster(**place, kind="indexedjob")), name="second"
    )
    try:
        ended = []
        for where, numbers in (("warm", (4, 5)), ("second", (6,))):
            runs = sweep(where, *numbers)
            ended.append((runs.name, runs.results(LIMIT)))  # before the next one is sent
        assert ended == [("sweep", [16, 25]), ("sweep-2", [36])]
        assert [(name, api.group(name).results(LIMIT)) for name, _ in ended] == ended
        stays = sweep("warm", 3)
        with pytest.raises(NameTakenError, match="1 run of sweep-3 hasn't ended: %torchjob cancel sweep-3"):
            sweep("second", 7)
        stays.cancel()
    finally:
        second.job.delete()


def test_runs_that_do_not_fit_have_pods_of_their_own_if_they_may(pool):
    with pytest.raises(SpecError, match=re.escape("--hang-after is 7, and the pool's")):
        submission.check(JobSpec(pool="warm", hang_after=7), runs=True)
    plan = submission.check(JobSpec(pool="warm", or_own=True, hang_after=7), runs=True)

    assert (plan.spec.backend, plan.spec.env, plan.pool) == ("local", {}, None)


def test_a_pool_is_looked_for_in_the_namespace_that_is_requested(pool):
    with pytest.raises(JobNotFoundError):
        submission.check(JobSpec(pool="warm", cluster=Cluster(namespace="elsewhere")))
    plan = submission.check(JobSpec(pool="warm", cluster=Cluster(namespace=pool.info.cluster["namespace"])))

    assert plan.pool is not None


def test_this_machine_needs_no_pool():
    with pytest.raises(SpecError, match="this machine has a pool already"):
        api.pool(JobSpec(), name="here")


def test_a_pool_is_listed_as_one_and_is_no_lab(pool):
    assert run("1").result(LIMIT) == 1
    (listed,) = (state for state in api.jobs() if state.info.name == "warm")
    assert listed.info.is_pool
    assert turns.idle_since(listed)
    with pytest.raises(SpecError, match="it is a pool: --pool warm runs a job there"):
        pool.run_cell("1")


def test_a_pool_that_nobody_uses_ends(place):
    spec = JobSpec(Elastic(), "kubernetes", cluster=Cluster(**place, kind="indexedjob"))
    short = api.pool(spec, name="short", idle=0.5)
    try:
        assert short.job.exception(LIMIT) is None
        ends = short.state.lab_ends
        assert ends is not None
        assert ends.why == "idle"
        with pytest.raises(JobEndedError, match="the pool short has ended"):
            submission.submit(capture.from_cell("1", {}), JobSpec(pool="short"))
    finally:
        short.job.delete()


def test_artifacts_come_home_with_their_own_job(pool, tmp_path):
    cell = "import os\n(artifacts_dir() / f'{name}-{os.environ[\"RANK\"]}').write_text(name)"
    jobs = [run(cell, {"artifacts_dir": artifacts_dir, "name": name}) for name in ("one", "two")]
    for job in jobs:
        job.wait(LIMIT)

        job.artifacts(tmp_path / job.name)

    files = [sorted(path.name for path in (tmp_path / job.name).rglob("*-*")) for job in jobs]
    assert files == [["one-0", "one-1"], ["two-0", "two-1"]]


def test_a_deadline_ends_the_job_and_not_the_pool(pool):
    policy = RunPolicy(active_deadline_seconds=1)
    late = run("import time\ntime.sleep(600)", launch=Elastic(run_policy=policy))

    assert "deadline" in str(late.exception(LIMIT))
    assert late.state.phase is Phase.FAILED
    assert run("1", launch=Elastic(run_policy=policy)).result(LIMIT) == 1


def test_another_user_of_the_namespace_is_refused(pool, monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_USER", "somebody-else")

    assert [state.info.name for state in api.jobs() if state.info.name == "warm"] == []
    with pytest.raises(SpecError, match="one of yours; this is another user's"):
        run("1")


def test_a_job_that_another_version_packed_is_refused(pool, monkeypatch):
    monkeypatch.setattr(archive, "_parts", lambda call, spec: frozenset({"pool"}))

    with pytest.raises(SubmitError, match="warm: it runs another version of nbtorchjob"):
        run("1")


STEPS = """
import time
from nbtorchjob import report, swap_point
import rates_of_job
def loss(): return rates_of_job.rate
step, most = 0, 1 << 60
while step < most:
    report(loss=loss(), step=step)
    step += 1
    time.sleep(0.02)
    swap_point()
loss()
"""


def test_local_modules_come_with_a_job_and_with_a_swap_and_go_with_the_job(pool, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in (("rates_of_job", "rate = 1.0"), ("rates_of_swap", "rate = 2.0")):
        (tmp_path / f"{name}.py").write_text(text)
    job = submission.submit(capture.from_cell(STEPS, {}, root=tmp_path), JobSpec(pool="warm"))
    seen(job, lambda state: {0, 1} <= state.series.keys())
    job.swap("import rates_of_swap\ndef loss(): return rates_of_swap.rate")
    job.swap(most=1)

    assert job.result(LIMIT) == 2.0
    cell = "from importlib.util import find_spec\n[find_spec(f'rates_of_{name}') for name in ('job', 'swap')]"
    assert run(cell).result(LIMIT) == [None, None]


READ = """
from pathlib import Path
from nbtorchjob import data_dir
files = sorted(path for path in Path().rglob("*.y*") if path.is_file())
[{str(path): path.read_text() for path in files}, (data_dir("words") / "en").read_text()]
"""


SAVE = """
import os
from nbtorchjob import RecoverableError, attempt, checkpoint_dir
found = [path.read_text() for path in checkpoint_dir().iterdir()]
if os.environ["RANK"] == "0":
    (checkpoint_dir() / "step").write_text(f"{name} {attempt()}")
    if attempt() == 1: raise RecoverableError("again")
found
"""


def test_a_pool_has_files_data_and_checkpoints_and_a_job_files_of_its_own(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path, text in (("configs/a.yaml", "first"), ("words/en", "a b")):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(text)
    place = place | {"storage": f"file://{tmp_path}/store", "checkpoints": f"file://{tmp_path}/saved"}
    cluster = Cluster(**place, kind="indexedjob")
    launch = Elastic(nproc_per_node=2)
    spec = JobSpec(launch, "kubernetes", cluster=cluster, ship=["configs"], data={"words": "./words"})
    stocked = api.pool(spec, name="stocked")

    def read(*ship):
        spec = JobSpec(pool="stocked", ship=ship, all_ranks=True)
        first, second = submission.submit(capture.from_cell(READ, {}), spec).results(LIMIT)
        assert first == second
        return first

    try:
        assert read() == [{"configs/a.yaml": "first"}, "a b"]
        (tmp_path / "configs/a.yaml").write_text("second")
        (tmp_path / "own.yml").write_text("of the job")
        assert read("own.yml") == [{"configs/a.yaml": "first", "own.yml": "of the job"}, "a b"]
        assert read("configs") == [{"configs/a.yaml": "second"}, "a b"]
        assert read() == [{"configs/a.yaml": "first"}, "a b"]
        differs = "--data is more=./words, and the pool's words=./words"
        with pytest.raises(SpecError, match=re.escape(differs)):
            submission.check(JobSpec(pool="stocked", data={"more": "./words"}))
        for name in ("one", "other"):
            spec = JobSpec(pool="stocked", retry=Retry(retries=1, backoff=0))
            job = submission.submit(capture.from_cell(SAVE, {"name": name}), spec)
            assert job.result(LIMIT) == [f"{name} 1"]
        assert sorted(path.read_text() for path in (tmp_path / "saved").rglob("step")) == ["one 2", "other 2"]
        assert stocked.state.tries == 1
    finally:
        stocked.job.delete()


LOST = """
import time
from nbtorchjob import attempt
print('on', flush=True)
if attempt() == 1: time.sleep(600)
attempt()
"""
PARENT = "import os\nint(open(f'/proc/{os.getppid()}/stat').read().rpartition(')')[2].split()[1])"


def test_a_job_that_waits_outlives_the_ranks_of_its_pool_and_one_that_runs_has_budgets(pool):
    for retry in (None, Retry(retries=1, backoff=0)):
        template = run(PARENT).result(LIMIT)
        ran, waits = run(LOST, retry=retry), run("2")
        seen(ran, lambda state: 0 in state.logs)
        os.kill(template, signal.SIGKILL)

        assert waits.result(LIMIT) == 2
        if retry is None:
            assert turns.POOL_GONE[1:] in str(ran.exception(LIMIT))
        else:
            assert ran.result(LIMIT) == 2
            assert [attempt.number for attempt in ran.state.attempts] == [1, 2]
        assert [job.name for job in (api.attach(ran.name), api.attach(waits.name))] == [ran.name, waits.name]


KERNEL = """
import sys
from nbtorchjob import Retry, capture, submission
from nbtorchjob.spec.jobspec import JobSpec
for cell, retries in ((sys.argv[1], 1), ("2", 0)):
    retry = Retry(retries=retries, backoff=0) if retries else None
    job = submission.submit(capture.from_cell(cell, {}), JobSpec(pool="warm", retry=retry))
    print(job.name, flush=True)
job.wait()
"""


def lose_pods(pool, cluster):
    """Delete all pods of a pool, and their logs with them, and wait for their replacements."""
    path = f"/api/v1/namespaces/{pool.info.cluster['namespace']}/pods"
    for pod in cluster.objects(path):
        if pod["metadata"]["name"].startswith("warm-"):
            name = pod["metadata"]["name"]
            cluster.request("DELETE", f"{path}/{name}?gracePeriodSeconds=0")
    seen(pool.job, lambda state: state.turns and state.turns[-1].base < state.round)


def elsewhere(pool, folder):
    """Return the environment of a machine that has sent nothing yet."""
    variables = {"NBTORCHJOB_BACKEND": "kubernetes", "NBTORCHJOB_NAMESPACE": pool.info.cluster["namespace"]}
    return {**os.environ, **variables, folders.STATE: str(folder)}


SENDS = """
import sys
from nbtorchjob import capture, submission
from nbtorchjob.spec.jobspec import JobSpec
job = submission.submit(capture.from_cell(sys.argv[1], {}), JobSpec(pool="warm"))
print(job.name, flush=True)
job.wait()
"""


def test_a_kernel_elsewhere_gives_no_job_the_number_of_another(pool, cluster, tmp_path):
    before = run("'before'")
    assert before.result(LIMIT) == "before"
    lose_pods(pool, cluster)
    command = [sys.executable, "-c", SENDS, "'elsewhere'"]
    process = subprocess.run(command, env=elsewhere(pool, tmp_path), stdout=subprocess.PIPE, check=True)
    name = process.stdout.decode().strip()

    assert name != before.name
    assert (api.attach(name).result(LIMIT), api.attach(before.name).result(LIMIT)) == ("elsewhere", "before")


def test_no_number_is_given_twice_though_somebody_removes_what_they_are_taken_from(pool, cluster):
    before = run("'before'")
    path = f"/apis/batch/v1/namespaces/{pool.info.cluster['namespace']}/jobs/{pool.name}"
    cluster.request("PATCH", path, {"metadata": {"annotations": {labelling.NUMBER: None}}})
    after = run("'after'")

    assert after.name != before.name
    assert (before.result(LIMIT), after.result(LIMIT)) == ("before", "after")
    assert api.attach(after.name).result(LIMIT) == "after"


LOOKS = """
import json, sys
from nbtorchjob import api
job = api.attach(sys.argv[1])
job.wait()
attempts = [[attempt.number, attempt.failure and attempt.failure.reason.line]
            for attempt in job.state.attempts]
budgets = [budget.used for budget in job.state.budgets]
print(json.dumps([job.state.phase.value, attempts, budgets, job.info.created]))
"""


def test_a_machine_elsewhere_knows_what_a_jobs_budgets_have_paid_for(pool, cluster, tmp_path):
    job = run(LOST, retry=Retry(preemptions=2, backoff=0))
    seen(job, lambda state: 0 in state.logs)
    lose_pods(pool, cluster)
    assert job.result(LIMIT) == 2
    command = [sys.executable, "-c", LOOKS, job.name]
    remote = subprocess.run(command, env=elsewhere(pool, tmp_path), stdout=subprocess.PIPE, check=True)

    local = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    assert json.loads(remote.stdout) == json.loads(local.stdout)
    assert [spent.used for spent in job.state.budgets] == [0, 1]


def payloads(pool, *names):
    """Return the payloads that are kept for sending these jobs again."""
    kept = (folders.state_dir() / "pools" / pool.info.run).glob("*/payload")
    return [path for path in kept if json.loads((path.parent / "info.json").read_text())["name"] in names]


def forget_number(pool, name):
    """Make a job look as if a version that doesn't number jobs had sent it."""
    [payload] = payloads(pool, name)
    record = json.loads(payload.with_name("sent.json").read_text())
    del record["question"]["number"]
    payload.with_name("sent.json").write_text(json.dumps(record))


@pytest.mark.parametrize("follows", [True, False])
def test_another_kernel_goes_on_with_what_a_killed_one_has_sent(pool, follows):
    template = run(PARENT).result(LIMIT)
    command = [sys.executable, "-c", KERNEL, LOST]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as kernel:
        assert kernel.stdout is not None
        try:
            ran, waits = (kernel.stdout.readline().strip() for _ in range(2))
            seen(api.attach(ran), lambda state: 0 in state.logs)
        finally:
            kernel.kill()
    find.forget()
    turns_of(pool.info)._sent.clear()
    if not follows:
        forget_number(pool, waits)
        os.kill(template, signal.SIGKILL)
        seen(pool.job, lambda state: state.turns and state.turns[-1].base < state.round)
    jobs = [api.attach(name) for name in (ran, waits)]
    if follows:
        seen(jobs[1], lambda state: state.waits)
        os.kill(template, signal.SIGKILL)

    assert [job.result(LIMIT) for job in jobs] == [2, 2]
    assert [attempt.number for attempt in jobs[0].state.attempts] == [1, 2]
    assert not payloads(pool, ran, waits)
    turns_of(pool.info)._sent.clear()
    budgets = [[spent.used for spent in api.attach(job.name).state.budgets] for job in jobs]
    assert budgets == [[1, 0], []]


SERVER = ("jupyter_server", "--no-browser", "--allow-root", "--port=0", "--ServerApp.port_retries=0")


@pytest.mark.parametrize("tender", [("nbtorchjob", "tend"), SERVER], ids=["tend", "a Jupyter server"])
def test_a_tender_on_this_machine_sends_again_what_a_killed_kernel_has_sent(pool, tender, tmp_path):
    template = run(PARENT).result(LIMIT)
    with subprocess.Popen([sys.executable, "-c", KERNEL, LOST], stdout=subprocess.PIPE, text=True) as kernel:
        assert kernel.stdout is not None
        names = [kernel.stdout.readline().strip() for _ in range(2)]
        until(lambda: turns.running(pool.state))
        kernel.kill()
    count = len(pool.state.turns)
    env = {**os.environ, "JUPYTER_CONFIG_DIR": str(tmp_path)}
    command = [sys.executable, "-m", *tender]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as process:
        os.kill(template, signal.SIGKILL)
        until(lambda: len(pool.state.turns) >= count + 2)
        process.terminate()
        _, stderr = process.communicate(timeout=LIMIT)

    again = [(f"warm#{turn.number}", turn.attempt) for turn in pool.state.turns[count:]]
    assert again == [(names[0], 2), (names[1], 1)]
    for name, attempt in again if tender is not SERVER else ():
        assert f"default/{name}: sent to its pool again, as attempt {attempt}" in stderr
    assert [api.attach(name).result(LIMIT) for name in names] == [2, 2]


COMES = """
import os, time
from nbtorchjob import attempt
print("on", flush=True)
if lost and attempt() == 1: time.sleep(600)
with open(path, "a") as file:
    if os.environ["RANK"] == "0": print(name, file=file)
"""


def test_jobs_that_a_pool_has_lost_begin_again_in_the_order_of_their_numbers(pool, tmp_path):
    path = str(tmp_path / "began")
    template = run(PARENT).result(LIMIT)
    first = run(COMES, {"path": path, "name": "first", "lost": True}, retry=Retry(retries=1, backoff=0))
    seen(first, lambda state: 0 in state.logs)
    cell = f"path, name, lost = {path!r}, 'second', False{COMES}"
    with subprocess.Popen([sys.executable, "-c", SENDS, cell], stdout=subprocess.PIPE) as kernel:
        assert kernel.stdout is not None
        assert kernel.stdout.readline()
        third = run(COMES, {"path": path, "name": "third", "lost": False})
        os.kill(template, signal.SIGKILL)
        assert first.wait(LIMIT)
        assert third.wait(LIMIT)

    assert (tmp_path / "began").read_text().split() == ["first", "second", "third"]


TRIES = """
from nbtorchjob import RecoverableError, attempt, checkpoint_dir
if attempt() < 3: raise RecoverableError(attempt())
attempt()
"""


def test_a_job_is_tried_again_as_its_budget_has_it(pool):
    job = run(TRIES, retry=Retry(retries=2, backoff=0))
    fails = run(TRIES, retry=Retry(retries=1, backoff=0))

    assert job.result(LIMIT) == 3
    assert [spent.used for spent in job.state.budgets] == [2, 0]
    assert "RecoverableError: 2" in str(fails.exception(LIMIT))
    assert [spent.used for spent in fails.state.budgets] == [1, 0]


def test_a_job_that_waits_for_its_next_attempt_can_be_cancelled(pool):
    job = run(TRIES, retry=Retry(retries=2, backoff=600))
    seen(job, lambda state: state.next)
    job.cancel()

    with pytest.raises(JobCancelledError):
        job.result(LIMIT)


SPOIL = """
import glob, os, tempfile
for folder in glob.glob(tempfile.gettempdir() + "/torchinductor_*"):
    os.rmdir(folder)
"""


def test_a_node_whose_image_a_job_has_changed_is_replaced_once_no_other_job_runs(pool, tmp_path):
    other = run(STAYS, {"name": "other", "folder": str(tmp_path)}, launch=ONE)
    seen(other, lambda state: 0 in state.logs)
    run(SPOIL, launch=ONE).wait(LIMIT)
    seen(pool.job, lambda state: any("has to be replaced" in notice.text for notice in state.notices))

    waits = run("2 + 2", launch=ONE)
    (tmp_path / "other").touch()
    assert other.result(LIMIT)[0] == "other"
    assert waits.result(LIMIT) == 4
    assert pool.state.phase is Phase.RUNNING


def queue_for_one(cluster, namespace):
    """Make a queue with room for one pod, and a priority class above all others."""
    room = {"cpu": "500m", "memory": "2Gi"}
    quota = [{"name": name, "nominalQuota": amount} for name, amount in room.items()]
    groups = [{"coveredResources": [*room], "flavors": [{"name": "any", "resources": quota}]}]
    whole = {"resourceGroups": groups, "preemption": {"withinClusterQueue": "LowerPriority"}}
    for kind, name, content in (
        ("ClusterQueue", "whole", {"spec": whole}),
        ("LocalQueue", "team", {"spec": {"clusterQueue": "whole"}}),
        ("WorkloadPriorityClass", "high", {"value": 9}),
    ):
        meta = {"name": name, **({"namespace": namespace} if kind == "LocalQueue" else {})}
        body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": meta, **content}
        cluster.request("POST", cluster.collection(body), body)


def test_a_pool_in_a_queue_says_so_and_goes_on_when_it_is_admitted(pool, cluster, place):
    queue_for_one(cluster, pool.info.cluster["namespace"])

    def own(cell, name, **more):
        options = Cluster(**place, kind="indexedjob", queue="team", **more)
        spec = JobSpec(Elastic(), "kubernetes", cluster=options, name=name)
        return submission.submit(capture.from_cell(cell, {}), spec)

    first = own("import time; time.sleep(600)", "first")
    seen(first, lambda state: state.round >= 0)
    spec = JobSpec(Elastic(), "kubernetes", cluster=Cluster(**place, kind="indexedjob", queue="team"))
    queued = api.pool(spec, name="queued")
    messages: list[object] = []
    sub = submission.prepare(
        capture.from_cell(LOST, {}),
        submission.check(JobSpec(pool="queued", retry=Retry(preemptions=1, backoff=0))),
    )
    try:
        with ThreadPoolExecutor() as beside:
            sending = beside.submit(submission.send, sub, None, messages.append)
            until(lambda: any("which is queued in team" in str(text) for text in messages))
            assert "QUEUED" in [facts.phase(state) for state in api.jobs() if state.name == "queued"]
            first.cancel()
            job = sending.result(LIMIT)
        seen(job, lambda state: 0 in state.logs)
        urgent = own("1", "urgent", workload_priority="high")
        seen(job, lambda state: facts.phase(state) == "QUEUED" or "queued in team" in str(state.waits))

        assert urgent.result(LIMIT) == 1
        assert job.result(LIMIT) == 2
        assert [spent.used for spent in job.state.budgets] == [0, 1]
    finally:
        queued.job.delete()


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob", "volcano"])
def test_any_kind_can_be_a_pool(place, kind):
    other = api.pool(JobSpec(TWO, "kubernetes", cluster=Cluster(**place, kind=kind)), name=f"of-{kind}")
    try:
        job = submission.submit(capture.from_cell(MEET, {"scale": 1.0}), JobSpec(pool=other.name))
        assert (job.result(LIMIT), job.info.cluster["kind"]) == (3.0, kind)
        other.end()
        assert other.job.exception(LIMIT) is None
    finally:
        other.job.delete()
