"""How the verbs that act on a job use their options."""

import re
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nbtorchjob.backends.downloads import Artifact
from nbtorchjob.commands import verbs
from nbtorchjob.commands.table import VERBS
from nbtorchjob.errors import AskError, LineError, SpecError
from nbtorchjob.labs import Lab
from nbtorchjob.spec import options, profiles
from nbtorchjob.state import JobInfo, JobState, Phase, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.text.stacks import MemoryProfile


class Profiled:
    """A fake job that records the profiles asked of it."""

    name = "job"

    def __init__(self):
        self.asked = []

    def profile(self, *how):
        self.asked.append(("profile", *how))
        return MemoryProfile(0, Path("file"), 3.0, 7, ())

    def profile_memory(self, *how):
        self.asked.append(("memory", *how))
        return self.profile()


@pytest.mark.parametrize(
    ("words", "asked", "aside"),
    [
        ([], ("profile", 3.0, 0, "."), "Profiling rank 0 of job for 3 s …"),
        (
            ["job", "--seconds", "0.5", "--rank=1", "--memory", "--folder", "there"],
            ("memory", 0.5, 1, "there"),
            "Profiling memory of rank 1 of job for 0.5 s …",
        ),
    ],
)
def test_a_profile_says_first_how_long_it_takes(words, asked, aside, folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "there").mkdir()
    job: Any = Profiled()
    verb = VERBS["profile"]
    assert verb.answers is not None

    first, answer = verb.answers(verb.parse(words), lambda name: job)

    assert (first.text, first.aside) == (aside, True)
    assert job.asked[0] == asked
    assert answer.data["events"] == 7
    assert "7 events of its allocator" in answer.text


def test_the_seconds_of_a_profile_are_a_number():
    verb, job = VERBS["profile"], Profiled()
    handle: Any = job
    assert verb.answers is not None

    with pytest.raises(LineError, match="--seconds expects a number, got 'x'"):
        [*verb.answers(verb.parse(["--seconds", "x"]), lambda name: handle)]
    assert job.asked == []


def test_a_profile_that_could_not_be_written_is_refused_before_anything_is_said_or_done(folder):
    verb, job = VERBS["profile"], Profiled()
    handle: Any = job
    assert verb.answers is not None
    for wrong in ("missing", "file"):
        (folder / "file").touch()
        with pytest.raises(SpecError, match="a folder that exists"):
            next(iter(verb.answers(verb.parse(["--folder", str(folder / wrong)]), lambda name: handle)))
    assert job.asked == []


class Left:
    """A fake job with artifacts."""

    name = "job"

    def __init__(self, *artifacts, phase=Phase.SUCCEEDED):
        self.found = artifacts
        self.state = SimpleNamespace(phase=phase)

    def artifacts(self, folder=None, *, attempt=None):
        self.asked = (folder, attempt)
        return self.found


@pytest.mark.parametrize(
    ("words", "asked", "text"),
    [
        (
            ["job"],
            (None, None),
            "2 artifacts of attempt 3, 1.2 kB; %torchjob artifacts job FOLDER copies them",
        ),
        (["job", "home", "--attempt", "3"], ("home", 3), "2 artifacts of attempt 3, 1.2 kB, copied to home"),
    ],
)
def test_artifacts_are_listed_and_copied_into_a_folder_if_one_is_named(words, asked, text):
    job: Any = Left(Artifact("loss", 1000, 0, 3), Artifact("node-1/loss", 200, 1, 3))
    verb = VERBS["artifacts"]
    assert verb.answers is not None

    listed, aside = verb.answers(verb.parse(words), lambda name: job)

    assert job.asked == asked
    assert listed.text.splitlines() == ["1.0 kB  node 0  loss", "200 B   node 1  node-1/loss"]
    assert listed.data["artifacts"][1] == {"path": "node-1/loss", "size": 200, "node": 1, "attempt": 3}
    assert (aside.text, aside.aside) == (text, True)


@pytest.mark.parametrize(
    ("phase", "text"),
    [
        (Phase.SUCCEEDED, "job has no artifacts"),
        (Phase.RUNNING, "job has no artifacts yet: they are uploaded when a node ends"),
    ],
)
def test_a_job_without_artifacts_says_so(phase, text):
    job: Any = Left(phase=phase)
    verb = VERBS["artifacts"]
    assert verb.answers is not None
    assert [answer.text for answer in verb.answers(verb.parse(["job"]), lambda name: job)] == [text]


def test_a_sync_says_once_why_something_is_missing_meanwhile():
    troubles = ["", "the cluster is away", "", "the cluster is away", ""]
    sync: Any = SimpleNamespace(copied=7, trouble="", stop=lambda: None)

    def wait(seconds):
        sync.trouble = troubles.pop(0)
        return not troubles

    sync.wait = wait
    job: Any = SimpleNamespace(name="job", sync=lambda folder, path: sync)
    verb = VERBS["files"]
    assert verb.answers is not None

    first, meanwhile, last = verb.answers(verb.parse(["job", "--sync", "there"]), lambda name: job)
    assert first.text == "Keeping there in step with job until it ends …"
    assert (meanwhile.text, meanwhile.aside) == ("the cluster is away", True)
    assert (last.text, last.good) == ("there: 7 B copied", True)


SPOT = """\
[profiles.spot]
backend = "kubernetes"
gpu = 4
spot-selector = {"cloud.google.com/gke-spot" = "true"}
mount = ["type=volume,src=data,dst=/data"]
"""


@pytest.mark.parametrize("line", ["-p spot {}", "{} --profile=spot -- -p none", "{}"])
@pytest.mark.parametrize(
    "option", ["--preemptible", "--checkpoints /data/x", "--nproc-per-node gpu", "--data d=pvc://claim/x"]
)
def test_a_line_is_judged_with_its_profile_alone(line, option, folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "nbtorchjob.toml").write_text(SPOT)
    if "spot" not in line:
        monkeypatch.setenv("NBTORCHJOB_PROFILE", "spot")

    spec, _ = verbs.parse(line.format(option))

    assert spec == options.parse(option, profiles.load("spot"))[0]


def test_a_lines_last_profile_counts(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "nbtorchjob.toml").write_text("[profiles.two]\nnnodes = 2\n")

    assert verbs.parse("-p none -p two")[0].launch.max_nodes == 2
    with pytest.raises(SpecError, match="--profile: got '-x', but it must be a name"):
        verbs.parse("--profile=-x")


@pytest.mark.parametrize(
    ("began", "why"),
    [
        (False, "lab hasn't started: %torchjob cancel lab ends it"),
        (
            True,
            "lab is restarting: %torchjob end lab ends it once it has ranks, %torchjob cancel lab at once",
        ),
    ],
)
def test_a_lab_without_ranks_says_how_it_can_be_ended(began, why, monkeypatch):
    info = JobInfo("lab", nodes=(1, 1), lab=60.0)
    facts: list[ev.Event] = [ev.NodeStarted(1.0, 0, "host", 10, pod="p")]
    if began:
        facts += [ev.WorkersStarted(2.0, 0, 0, 1, (0,), 1, pod="p"), ev.NodeExited(3.0, 0, 137, pod="p")]
    monkeypatch.setattr(Lab, "state", reduce(apply, facts, JobState(info)))
    backend: Any = SimpleNamespace(info=lambda name: info)
    change = VERBS["end"].change
    assert change is not None

    with pytest.raises(AskError, match=f"^{re.escape(why)}$"):
        change(backend, "lab")
