"""Reports of what an image lacks: by its first node before a rank starts, later before anything is sent."""

from dataclasses import replace

import pytest

from nbtorchjob import api, capture, submission
from nbtorchjob.backends import backend
from nbtorchjob.errors import JobFailedError, LackingError
from nbtorchjob.machine import folders
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic, Master, PyTorch, Worker
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state.failure import Cause
from tests.backends.full import cluster_backend
from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.cluster.images import PYTHON, TORCH
from tests.environment import planted
from tests.environment.built import wheel
from tests.environment.index import Index
from tests.environment.installed import install
from tests.patience import LIMIT

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def cluster(crds):
    """Yield a cluster with operators only for roles and runtimes."""
    with Emulator(kinds=("indexedjob", "pytorchjob", "trainjob")) as emulator:
        yield emulator


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return a folder of distributions that this process has and no image does."""
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tmp_path / "site"


@pytest.fixture
def spec(cluster, tmp_path, monkeypatch):
    """Return the spec of a job for a user who has submitted nothing yet."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.setenv(folders.STATE, str(tmp_path / "state"))
    install(tmp_path / "image", "right-pad", "1.0", "right_pad.py")
    options = Cluster(namespace="default", image=TORCH, kind="indexedjob", memory="1500Mi", cpu="400m")
    return JobSpec(backend="kubernetes", env={"PYTHONPATH": str(tmp_path / "image")}, cluster=options)


def test_the_first_job_is_refused_by_its_node_and_the_next_one_here(site, spec):
    install(site, "left-pad", "1.0", "left_pad.py")
    install(site, "right-pad", "99.0", "right_pad.py")
    call = capture.from_cell("import left_pad\ntry:\n    import right_pad\nexcept ImportError: pass", {})

    assert submission.prepare(call, submission.check(spec)).notes == ()
    job = submission.submit(call, spec)
    with pytest.raises(
        JobFailedError, match=r"this image lacks left-pad 1\.0, .* add --package left-pad==1\.0,"
    ):
        job.result()
    assert [failure.reason.cause for failure in (job.state.failure,) if failure] == [Cause.CONFIG]
    assert job.state.world_size == 0

    environment, (contents,) = job.state.environment, cluster_backend().image_contents(spec)
    assert environment is not None
    assert contents.environment.distributions == environment.distributions
    assert contents.digest == job.state.image != ""
    assert environment.distributions["right-pad"] == "1.0"

    with pytest.raises(
        LackingError, match=rf"the image {TORCH} lacks left-pad 1\.0.*doctor --probe inspects"
    ):
        submission.submit(capture.from_cell("import left_pad", {}), spec)
    assert len(backend("kubernetes").jobs()) == 1
    call = capture.from_cell("if 1 > 2:\n    import left_pad, right_pad", {})
    note = "the image lacks left-pad 1.0 and has right-pad 1.0 (here 99.0)"
    assert submission.prepare(call, submission.check(spec)).notes == (note,)
    with pytest.raises(LackingError, match="left-pad"):
        submission.prepare(call, submission.check(replace(spec, strict=True)))


def test_a_probe_asks_an_image_and_leaves_nothing(site, spec, cluster):
    install(site, "left-pad", "1.0", "left_pad.py")
    before = [finding.text for finding in api.doctor(spec) if TORCH in finding.text]
    assert "only --probe starts it to check" in before[0]

    api.probe(replace(spec, launch=Elastic(4, 8), cluster=replace(spec.cluster, gpu=8)))

    assert not [name for name in backend("kubernetes").names() if name.startswith("doctor")]
    (contents,) = cluster_backend().image_contents(spec)
    (answer, table) = api.doctor(spec, capture.from_cell("import left_pad, yaml", {}).needs)[-2:]
    assert answer.text.startswith(f"the image {TORCH} has Python {contents.environment.python}, torch ")
    assert table.text == "what is imported here: the image lacks left-pad 1.0"
    assert [line.split()[-1] for line in table.remedy.splitlines()] == ["verdict", "lacks", "same"]


def test_an_image_without_torch_is_known_after_a_probe(spec):
    bare = replace(spec, env={}, cluster=replace(spec.cluster, image=PYTHON))

    api.probe(bare)

    with pytest.raises(LackingError, match=rf"the image {PYTHON} has no torch; use one with torch"):
        submission.submit(capture.from_cell("1", {}), bare)
    (problem,) = [finding for finding in api.doctor(bare) if PYTHON in finding.text]
    assert not problem.good
    assert "no torch and 0 other packages" in problem.text


# The versions that the image keeps, in cases that count as no difference.
STAYS = {
    "the same": "1.2.0",
    "another build": "1.2.0+cu126",
    "extra": "1.2.0",
    "its name spelled otherwise": "1.0",
    "a file of Debian's": None,
    "compiled only": "1.0",
}


def test_like_here_mends_each_difference_from_a_private_index(site, spec, tmp_path):
    expected, installed = {}, set()
    for case, local_packages, packages, imported in planted.apart():
        planted.plant(site, *local_packages)
        planted.plant(tmp_path / "image", *packages)
        for name, version, *modules in local_packages:
            wheel(tmp_path / "index", name, version.partition("+")[0], modules=modules)
        (need,) = capture.from_cell(f"import {imported}", {}).needs
        expected[need.module] = STAYS.get(case, need.version)
        installed.update([] if case in STAYS else [need.distribution])
    names = ", ".join(expected)
    cell = f"import {names}\n[getattr(module, 'version', None) for module in ({names})]"
    yanked = [path.name for path in (tmp_path / "index").iterdir()]
    with Index(tmp_path / "index", login="me:secret", yanked=yanked) as index:
        own = {**spec.env, "PIP_INDEX_URL": index.url("me:secret")}
        job = submission.submit(
            capture.from_cell(cell, {}), replace(spec, package=["like-here"], env=own, strict=True)
        )
        versions = job.result()

    assert dict(zip(expected, versions, strict=True)) == expected
    environment = job.state.environment
    assert environment is not None
    assert {*environment.installed} == installed
    assert "secret" not in job.logs()


def test_the_images_of_workers_and_of_a_runtime_are_known_once_their_first_nodes_have_told(spec, cluster):
    roles = PyTorch(Master(image=TORCH), Worker(1, image=PYTHON))
    mixed = replace(spec, launch=roles, env={}, cluster=replace(spec.cluster, kind="pytorchjob", image=None))
    job = submission.submit(capture.from_cell("1", {}), mixed)

    assert "has no torch" in str(job.exception(LIMIT))
    assert [image.image for image in cluster_backend().image_contents(mixed)] == [TORCH, PYTHON]
    assert job.state.environments[1].distributions == {}
    with pytest.raises(LackingError, match=rf"the image {PYTHON} has no torch"):
        submission.submit(capture.from_cell("1", {}), mixed)

    own = replace(spec, env={}, cluster=replace(spec.cluster, kind="trainjob", image=None))
    assert submission.submit(capture.from_cell("1", {}), own).result(LIMIT) == 1
    (contents,) = cluster_backend().image_contents(own)
    assert (contents.image, "torch" in contents.environment.distributions) == (
        "of the runtime by default",
        True,
    )
