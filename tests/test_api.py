"""Submitting from Python: specs, the decorator, the dry run, attaching, and names."""

import dataclasses
import os
import pickle
import re
import sys

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nbtorchjob
from nbtorchjob import (
    CaptureError,
    Elastic,
    JobNotFoundError,
    JobSpec,
    Master,
    PyTorch,
    Retry,
    RunPolicy,
    SpecError,
    Worker,
    api,
    capture,
    submission,
    torchjob,
)
from nbtorchjob.backends import naming
from nbtorchjob.backends.local import directory
from nbtorchjob.backends.local.backend import LocalBackend
from nbtorchjob.commands import running
from nbtorchjob.commands.front import RunRequest
from nbtorchjob.environment import images, interpreter
from nbtorchjob.environment.images import JobImage as AskedImage
from nbtorchjob.errors import LackingError
from nbtorchjob.frontends.cli.terminal import Terminal
from nbtorchjob.machine import folders
from nbtorchjob.runtime.facts import injected
from nbtorchjob.spec import options, profiles
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.options import CellOptions
from nbtorchjob.state import Origin
from nbtorchjob.state.facts.events import EnvironmentTold
from tests.backends.local.acted import Acted
from tests.environment.built import project, wheel
from tests.environment.installed import install
from tests.patience import LIMIT

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def empty(folder, monkeypatch):
    """Return a state folder without jobs; a job started in it would start a pool of its own."""
    monkeypatch.setenv(folders.STATE, str(folder))
    return folder


def nothing_started(folder):
    return not (folder / "jobs").exists() or not list((folder / "jobs").iterdir())


def world():
    return int(os.environ["WORLD_SIZE"])


@torchjob(Elastic(nproc_per_node=2))
def train(scale, *, offset=0):
    """Train."""
    return scale * world() + offset


@torchjob
def factorial(n):
    return n * factorial(n - 1) if n else 1


class Model:
    def __init__(self, scale):
        self.scale = scale

    @torchjob
    def fit(self, value):
        return self.scaled(value)

    @torchjob
    def scaled(self, value):
        return self.scale * value


@pytest.mark.torch
@pytest.mark.parametrize(
    ("spec", "ranks"),
    [
        (None, 1),
        (Elastic(nproc_per_node=2), 2),
        (PyTorch(worker=Worker(replicas=1)), 2),
        (JobSpec(Elastic(nproc_per_node=2)), 2),
    ],
    ids=["nothing", "Elastic", "PyTorch", "JobSpec"],
)
def test_a_launch_config_alone_is_a_spec(spec, ranks):
    assert nbtorchjob.submit(world, spec=spec).result(LIMIT) == ranks


@pytest.mark.torch
def test_what_an_operator_has_set_in_the_notebooks_pod_is_not_for_its_jobs(monkeypatch):
    for name, value in {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "4", injected.STREAM: "1"}.items():
        monkeypatch.setenv(name, value)

    assert nbtorchjob.submit(world, spec=Elastic(nnodes=2)).result(LIMIT) == 2


@pytest.mark.torch
def test_a_decorated_function_runs_as_a_job_and_gives_its_value():
    assert train(10) == 20
    assert vars(train)["__name__"] == "train"
    assert train.__doc__ == "Train."


@pytest.mark.torch
def test_a_decorated_function_can_be_submitted():
    job = train.submit(10, offset=1)

    assert job.state.info.label == "train(10, offset=1)"
    assert job.result(LIMIT) == 21


@pytest.mark.torch
def test_a_decorated_function_is_the_plain_function_on_a_rank():
    def twice():
        return train(1), train(2)

    assert nbtorchjob.submit(twice).result(LIMIT) == (1, 2)
    assert nbtorchjob.submit(train, 3).result(LIMIT) == 3
    assert factorial(3) == 6
    assert torchjob()(world)() == 1


@pytest.mark.torch
def test_a_decorated_method_runs_as_a_job_with_its_object():
    job = Model(3).fit.submit(2)

    assert job.state.info.label == "Model.fit(2)"
    assert job.result(LIMIT) == 6


def test_a_wrong_decorator_is_told_where_it_stands():
    with pytest.raises(SpecError, match="launch"):
        torchjob("two nodes")  # type: ignore[call-overload]
    with pytest.raises(SpecError, match="launch"):
        torchjob(Elastic)


@pytest.mark.torch
def test_a_job_is_named_after_what_runs():
    job = nbtorchjob.submit(world)

    assert job.name.startswith("world-")
    assert nbtorchjob.attach(job.name).result(LIMIT) == 1


def test_a_dry_run_lists_what_ships_and_starts_nothing(empty):
    text = nbtorchjob.dry_run(train.fn, 10, offset=[0] * 1000, spec=Elastic(nnodes="1:2", nproc_per_node=2))

    call, backend, ships, *rows = text.splitlines()
    assert (call, ships) == ("# train(10, offset=list)", "# ships:")
    assert "1 to 2 node(s) × 2 rank(s)" in backend
    assert {"train", "args[0]", "offset"} <= {row.split()[1] for row in rows}
    assert nothing_started(empty)


def test_a_dry_run_refuses_what_submit_refuses(empty):
    with pytest.raises(SpecError, match="backoff_limit"):
        nbtorchjob.dry_run(world, spec=Elastic(run_policy=RunPolicy(backoff_limit=1)))


def test_what_can_not_be_honoured_here_is_refused_before_anything_is_sent(empty):
    with pytest.raises(SpecError, match="use --retries"):
        nbtorchjob.submit(world, spec=Elastic(run_policy=RunPolicy(backoff_limit=1)))
    with pytest.raises(CaptureError, match="can't be called"):
        nbtorchjob.submit(3)  # type: ignore[call-overload]
    assert nothing_started(empty)


def test_there_is_no_image_to_ask_here(empty):
    with pytest.raises(SpecError, match="probe: got 'local', but it must be a backend with images"):
        api.probe()


def test_what_an_image_is_known_to_have_is_held_against_what_is_asked(empty):
    versions = {"torch": "2.13.0+cpu", "numpy": "1.0"}
    images.learn(
        AskedImage("", "train:1"), "", EnvironmentTold(1.0, 0, interpreter.environment().python, "", versions)
    )
    call = capture.from_cell("import numpy", {})

    def said(line):
        spec, _ = options.parse(f"--backend kubernetes {line}", JobSpec())
        return submission.prepare(call, submission.check(spec)).notes

    assert said("--image other:1 --gpu 1") == ()
    (differs,) = said("--image train:1")
    assert re.fullmatch(r"the image has numpy 1\.0 \(here [\d.]+\)", differs)
    assert said("--image train:1 --package numpy") == ()
    workers = PyTorch(worker=Worker(1, image="train:1"))
    mixed = submission.check(JobSpec(workers, backend="kubernetes", cluster=Cluster(image="other:1")))
    assert submission.prepare(call, mixed).notes == (differs.replace("image", "image train:1"),)
    assert said("--image train:1 --gpu 1") == (differs, "the image has torch 2.13.0+cpu, which uses no GPU")


def test_code_goes_with_its_source_unless_each_image_is_known_to_have_this_python(empty):
    def known(image, python):
        images.learn(AskedImage("", image), "", EnvironmentTold(1.0, 0, python, "", {"torch": "2.13.0"}))

    def prepared(cell, image, names):
        spec = JobSpec(backend="kubernetes", cluster=Cluster(image=image))
        return submission.prepare(capture.from_cell(cell, names), submission.check(spec))

    names = {"__name__": "__main__"}
    exec("def made(): return 1", names)
    known("same:1", interpreter.environment().python)
    known("old:1", "3.9.18")
    known("new:1", "3.99.0")

    assert [prepared("1", image, {}).call.sourced for image in ("same:1", "new:1", "unknown:1")] == [
        False,
        True,
        True,
    ]
    assert prepared("1", "new:1", {}).notes == (
        f"the image has Python 3.99 (here {interpreter.environment().minor})",
    )
    assert prepared("made()", "same:1", names).notes == ()
    with pytest.raises(
        LackingError, match=r"has Python 3.99.0 and .*, and made \(line 1 of <string>\) has no source"
    ):
        prepared("made()", "new:1", names)
    with pytest.raises(
        LackingError, match=r"line 3 of <torchjob cell> isn't Python 3.9's: .*: use an image with Pyth"
    ):
        prepared("match 1:\n    case 1: 2", "old:1", {})


@pytest.mark.parametrize(
    ("tag", "refused"),
    [
        ("manylinux_2_34_x86_64", "2.34"),
        ("manylinux_2_17_x86_64.manylinux2014_x86_64", ""),
        ("linux_x86_64", ""),
    ],
)
def test_a_wheel_that_needs_a_newer_c_library_than_the_image_has_isnt_sent(empty, folder, tag, refused):
    python = f"cp3{sys.version_info[1]}-cp3{sys.version_info[1]}"
    path = wheel(folder, "mylib", tag=f"{python}-{tag}")
    platform = f"{interpreter.environment().machine} glibc 2.31"
    fact = EnvironmentTold(1.0, 0, interpreter.environment().python, platform, {"torch": "2.13.0"})
    images.learn(AskedImage("", "train:1"), "", fact)
    spec = JobSpec(backend="kubernetes", package=[str(path)], cluster=Cluster(image="train:1"))
    plan, call = submission.check(spec), capture.from_cell("1", {})

    if not refused:
        assert submission.prepare(call, plan).notes == ()
        return
    text = "the image train:1 has glibc 2.31, but mylib 1.0, sent with the job, needs 2.34: use a newer image"
    with pytest.raises(LackingError, match=re.escape(text)):
        submission.prepare(call, plan)


def test_a_project_brings_what_its_build_is_named(empty, folder, monkeypatch):
    repo = project(folder / "repo-of-mine", "mylib")
    pyproject = repo / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().partition("[project]")[0])
    monkeypatch.syspath_prepend(folder / "site")
    install(folder / "site", "mylib", "1.0", "mylib.py")
    fact = EnvironmentTold(1.0, 0, interpreter.environment().python, "", {"torch": "2.13.0"})
    images.learn(AskedImage("", "train:1"), "", fact)
    call = capture.from_cell("import mylib", {})
    spec = JobSpec(backend="kubernetes", cluster=Cluster(image="train:1"))

    with pytest.raises(LackingError, match=r"lacks mylib 1\.0"):
        submission.prepare(call, submission.check(spec))
    spec = dataclasses.replace(spec, package=[str(repo)])
    assert submission.prepare(call, submission.check(spec)).notes == ()
    assert "would be refused" not in submission.dry_run(call, spec)


@pytest.mark.torch
def test_more_ranks_than_cores_are_warned_of():
    cores = os.cpu_count() or 1
    crowded, warning = Elastic(nproc_per_node=cores + 1), f"more than this machine's {cores} cores"

    assert warning in nbtorchjob.dry_run(world, spec=crowded)
    assert warning not in nbtorchjob.dry_run(world, spec=Elastic(nproc_per_node=cores))
    with pytest.warns(UserWarning, match=warning):
        job = nbtorchjob.submit(world, spec=crowded)
    assert job.exception(LIMIT) is None


def test_what_nobody_preempts_has_no_last_attempt_elsewhere():
    spec = JobSpec(retry=Retry(2, on_demand_last=True))

    assert "on_demand_last does nothing on this machine" in nbtorchjob.dry_run(world, spec=spec)


@pytest.mark.torch
def test_a_made_up_name_that_is_taken_is_made_up_anew(monkeypatch):
    # By chance, two equal names come once in half a million.
    made_up = iter(["twin-2222", "twin-2222", "twin-3333"])
    monkeypatch.setattr(naming, "generate", lambda label: next(made_up))

    assert [nbtorchjob.submit(world).name for _ in range(2)] == ["twin-2222", "twin-3333"]


def test_a_job_is_found_by_its_name_as_it_was_asked_for(empty):
    acted = Acted("l-1")
    for name in ("l-1", "L_1", "local:L 1"):
        assert api.attach(name).name == "l-1"
    with pytest.raises(SpecError, match="a lab, started with --keep NAME"):
        api.lab("L_1")
    acted.remove()
    acted = Acted("local")
    assert api.attach("local").name == "local"
    acted.remove()


def test_attaching_where_there_is_no_job_says_so(empty):
    with pytest.raises(JobNotFoundError) as caught:
        nbtorchjob.attach("train-2222")

    assert str(caught.value) == "there is no job named 'train-2222'; there are no jobs. See %torchjob list"


def test_attaching_to_a_group_as_to_a_job_names_one_of_its_runs(empty):
    runs = [Acted(f"sweep-r{number}", group="sweep", number=number) for number in (1, 2)]
    for name in ("sweep", "Sweep"):
        with pytest.raises(JobNotFoundError) as caught:
            nbtorchjob.attach(name)

        assert str(caught.value) == (
            f"{name!r} is a group of runs, not one job: name one of them, such as sweep-r1"
        )
    for acted in runs:
        acted.remove()


@pytest.mark.torch
def test_a_job_that_another_kernel_is_deleting_is_not_listed():
    nbtorchjob.submit(world, spec=JobSpec(name="still-there")).result(LIMIT)
    (directory.jobs_dir() / "half-gone").mkdir()
    try:
        listed = {state.info.name for state in nbtorchjob.jobs()}
    finally:
        (directory.jobs_dir() / "half-gone").rmdir()

    assert "still-there" in listed
    assert "half-gone" not in listed


@pytest.mark.parametrize("name", ["", ".", "..", "A/b", "../jobs"])
def test_a_name_is_not_a_path(name):
    with pytest.raises(JobNotFoundError):
        nbtorchjob.attach(name)


@settings(deadline=None)
@given(label=st.text())
def test_every_generated_name_is_a_valid_one(label):
    assert JobSpec(name=naming.generate(label)).name


@settings(deadline=None)
@given(words=st.from_regex(r"[a-z][a-z0-9_]{0,60}", fullmatch=True))
def test_a_generated_name_says_what_runs_and_is_new_each_time(words):
    name, other = naming.generate(f"{words}(lr=0.1)"), naming.generate(f"{words}(lr=0.1)")
    stem = words.replace("_", "-")

    assert name.partition("-")[0] == stem.partition("-")[0][:24]
    assert name != other


def test_generated_names_are_short_enough_for_every_kind_of_job():
    assert len(naming.generate("x" * 200)) <= 40
    assert naming.generate("训练(model)").startswith("job-")


@pytest.mark.parametrize(
    ("notebook", "cell", "title"),
    [
        ("", "Cell In[12]", "cell"),
        ("/home/ann/01-Digits on MNIST.ipynb", "Cell In[12]", "digits-on-mnist-12"),
        ("/home/ann/digits.ipynb", "Cell", "digits"),
        ("/home/ann/a-very-long-name-of-a-notebook.ipynb", "Cell In[1234]", "a-very-long-name-of-1234"),
        ("/home/ann/训练.ipynb", "Cell In[3]", "job-3"),
    ],
)
def test_a_cells_job_is_named_after_its_notebook_and_number(notebook, cell, title):
    assert naming.title("cell", notebook, cell) == title
    assert naming.title("train(lr=0.1)", notebook, cell) == "train(lr=0.1)"
    assert JobSpec(name=naming.generate(title)).name


def test_a_submitted_cell_has_that_name_and_repeated_its_stem():
    call = capture.from_cell("1", {})
    origin = Origin("/home/ann/digits.ipynb", "c0ffee", {call.filename: "Cell In[12]"})

    name = submission.describe(call, JobSpec(), origin).name
    assert re.fullmatch(r"digits-12-[a-z0-9]{4}", name)
    assert next(naming.again(naming.stem(name), None)).startswith("digits-12-")


CELL = RunRequest(capture.from_cell("1", {}), JobSpec(), CellOptions(detach=True), Origin())
FRONT = Terminal()


@pytest.mark.parametrize(
    "send",
    [
        lambda: api.submit(str),
        lambda: api.torchjob()(str).submit(),
        lambda: submission.submit(capture.from_cell("1", {}), JobSpec()),
        lambda: api.dry_run(str),
        lambda: running.submit(CELL, FRONT),
    ],
    ids=["submit", "torchjob", "a captured call", "dry_run", "a cell"],
)
def test_a_spec_is_filled_and_checked_once_a_submission(send, monkeypatch):
    done = []

    def counted(step, work):
        def counting(spec):
            done.append(step)
            return work(spec)

        return counting

    backend = LocalBackend()
    monkeypatch.setattr(backend, "submit", lambda call, spec, info: info)
    monkeypatch.setattr(backend, "check", counted("checked", backend.check))
    monkeypatch.setattr(profiles, "admitted", counted("admitted", profiles.admitted))
    monkeypatch.setattr(submission, "backend", lambda name: backend)

    send()

    assert done == ["admitted", "checked"]


def test_a_pickled_job_attaches_again_and_is_refused_on_ranks(empty):
    acted = Acted("acted-job")
    job = api.attach("acted-job", trust=True)
    again = pickle.loads(pickle.dumps(job))

    assert (again.info, again.trust) == (job.info, True)
    with pytest.raises(CaptureError, match="'job'"):
        capture.from_cell("job.name", {"job": job})
    acted.remove()
    with pytest.raises(JobNotFoundError):
        pickle.loads(pickle.dumps(job))


@pytest.mark.parametrize(
    "role",
    [{"image": "torch"}, {"requests": {"cpu": "1"}}, {"limits": {"cpu": "1"}}, {"restart_policy": "Never"}],
)
def test_what_a_role_asks_of_its_pods_is_refused_where_there_are_none(empty, role):
    (field,) = role
    for launch in (PyTorch(Master(**role), Worker(1)), PyTorch(worker=Worker(1, **role))):
        with pytest.raises(SpecError, match=f"{field} can't be given to a .* on the local backend"):
            nbtorchjob.submit(world, spec=launch)
    assert nothing_started(empty)
