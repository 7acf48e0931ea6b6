"""Packages that a local job asks for: installed once, and imported in place of the kernel's own."""

import pytest

from nbtorchjob import JobFailedError, JobSpec, capture, submission
from nbtorchjob.backends import backend
from nbtorchjob.errors import SpecError
from nbtorchjob.machine import folders
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.policies import Retry
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.failure import Cause
from nbtorchjob.state.text import lifetime
from tests.environment.built import project, wheel

pytestmark = pytest.mark.torch


@pytest.fixture
def index(folder, monkeypatch):
    """Return the folder in which pip finds packages."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder / "index"))
    return folder / "index"


def run(text, **asked):
    return submission.submit(capture.from_cell(text, {"__name__": "__main__"}), JobSpec(**asked))


BLOCK = """\
# /// script
# dependencies = ["nbtj_fresh<2"]
# ///
import nbtj_fresh, nbtj_mine, nbtj_listed
[nbtj_fresh.version, nbtj_mine.version, nbtj_listed.version]
"""


def test_ranks_import_what_an_option_a_file_and_a_block_ask_for_and_the_next_job_waits_for_nothing(
    folder, index
):
    wheel(index, "nbtj_fresh", "1.5")
    wheel(index, "nbtj_fresh", "2.0")
    wheel(index, "nbtj_listed")
    listed = folder / "requirements.txt"
    listed.write_text("nbtj_listed\n")
    own_project = project(folder / "mine", "nbtj_mine", "3.0")
    options = {
        "package": [str(own_project), "like-here"],
        "requirements": [str(listed)],
        "launch": Elastic(2, nproc_per_node=2),
        "all_ranks": True,
    }

    first = run(BLOCK, **options)

    assert first.results() == [["1.5", "3.0", "1.0"]] * 4
    for path in index.iterdir():
        path.unlink()
    again = run(BLOCK, **options)
    assert again.results() == [["1.5", "3.0", "1.0"]] * 4
    environment = backend("local").snapshot(again.info.address).importable
    assert environment is not None
    assert (environment.installed["nbtj-fresh"], "torch" in environment.distributions) == ("1.5", True)
    install = again.state.installs[0]
    assert isinstance(install, ev.Installed)
    assert (install.by, install.packages) == ("", ("nbtj-fresh 1.5", "nbtj-listed 1.0", "nbtj-mine 3.0"))
    assert "installing 3 packages from an earlier job" in dict(lifetime.steps(again.state))


def test_what_the_pool_has_imported_is_replaced_for_the_job_alone(index):
    wheel(index, "platformdirs", "99.0")
    text = "import platformdirs\nplatformdirs.version"

    assert run(text, package=["platformdirs==99.0"]).result() == "99.0"
    assert run(text).result() != "99.0"


def test_packages_that_torch_can_not_do_with_are_told_of(index):
    wheel(index, "numpy", "99.0")

    with pytest.raises(JobFailedError, match="module 'numpy' has no attribute"):
        run("1", package=["numpy==99.0"]).result()


def test_a_job_whose_packages_there_are_none_of_fails_once_and_says_why(index):
    index.mkdir()
    before = {*folders.cache_dir().glob("packages/*/")}
    job = run("1", package=["nbtj-none==3"], retry=Retry(3))

    with pytest.raises(JobFailedError, match="No matching distribution found for nbtj-none==3"):
        job.result()

    failure = job.state.failure
    assert failure is not None
    assert (failure.reason.cause, failure.reason.line) == (Cause.CONFIG, "its packages can't be installed")
    assert len(job.state.nodes[0].lives) == 1
    assert {*folders.cache_dir().glob("packages/*/")} == before


def test_what_can_not_be_asked_for_is_refused_before_anything_is_sent():
    with pytest.raises(SpecError, match=r"^package: got 'peft=0\.18'"):
        run("1", package=["peft=0.18"])
