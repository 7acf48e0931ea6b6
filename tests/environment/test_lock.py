"""What a job could import, as requirements."""

import json

import pytest
from packaging.requirements import Requirement

from nbtorchjob.environment import here, lock
from nbtorchjob.environment.here import environment
from nbtorchjob.state import JobInfo, JobState
from nbtorchjob.state.events import EnvironmentTold
from tests.environment.installed import install


def told(distributions, **more):
    return EnvironmentTold(1000.0, 0, "3.11.7", "x86_64 glibc 2.36", distributions, **more)


def requirements(text):
    """Return what pip reads: each line that is no comment, which has to be a requirement."""
    return [Requirement(line) for line in text.splitlines() if not line.startswith("#")]


def test_a_lock_has_a_head_and_pins_what_there_is():
    state = JobState(JobInfo("fox", created=0.0))

    text = lock.text(state, told({"b": "2.0.post1", "a": "1!1.0rc1"}, installed={"b": "2.1"}), ["notebook x"])

    assert text.splitlines() == [
        "# What local:fox could import, which was submitted on 1970-01-01 00:00:00 UTC.",
        "# Python 3.11.7 on x86_64 glibc 2.36",
        "# notebook x",
        "a==1!1.0rc1",
        "b==2.1",
    ]


def test_a_build_is_pinned_to_its_version():
    assert lock.requirements(told({"torch": "2.13.0+cpu"})) == [
        "# torch==2.13.0+cpu, a build (+cpu) that may have an index of its own",
        "torch==2.13.0",
    ]


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (
            {"url": "https://host/x.git", "vcs_info": {"vcs": "git", "commit_id": "ab"}, "subdirectory": "p"},
            "x @ git+https://host/x.git@ab#subdirectory=p",
        ),
        (
            {"url": "https://me:geheim@host/x.whl", "archive_info": {"hash": f"sha256={'0' * 64}"}},
            f"x @ https://host/x.whl#sha256={'0' * 64}",
        ),
        (
            {"url": "ssh://git@host/x", "vcs_info": {"vcs": "git", "commit_id": "ab"}},
            "x @ git+ssh://git@host/x@ab",
        ),
        ({"url": "https://host/x.whl", "archive_info": {"hashes": {}}}, "x @ https://host/x.whl"),
        (
            {"url": "file:///home/me/my%20x", "dir_info": {"editable": True}},
            "# x==1.0: editable, from /home/me/my x",
        ),
        ({"url": "file:///tmp/x.whl", "archive_info": {}}, "# x==1.0: installed from /tmp/x.whl"),
        (
            {"url": "https://host/x\n--index-url evil"},
            "# x==1.0: installed from somewhere that can't be told",
        ),
        ({}, "# x==1.0: installed from somewhere that can't be told"),
        ([], "# x==1.0: installed from somewhere that can't be told"),
    ],
)
def test_what_no_index_has_is_a_direct_reference_or_a_comment(found, line):
    (text,) = lock.requirements(told({"x": "1.0"}, origins={"x": json.dumps(found)}))

    assert text == line
    assert len(requirements(text)) == (not text.startswith("#"))


def test_what_somebody_else_s_node_tells_installs_nothing_but_that():
    evil = {"x\n--index-url evil": "1", "y": "1\nevil", "-r evil": "1", "z": "1 --hash", "w": "", "ok": "1"}

    text = "\n".join(lock.requirements(told(evil)))

    assert [str(each) for each in requirements(text)] == ["ok==1"]


def test_all_that_this_interpreter_has_is_a_line_that_pip_reads(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "near", "1.0", "near.py", url="file:///home/me", dir_info={"editable": True})
    found = environment()

    text = "\n".join(lock.requirements(told(found.distributions, origins=here.origins())))

    assert {each.name for each in requirements(text)} >= {"torch", "pytest"}
    assert "# near==1.0: editable, from /home/me" in text.splitlines()
