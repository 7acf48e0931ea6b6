"""The status that git reports for a folder, and the handling of a git that reports none."""

import os
import shutil
import subprocess
import sys
import threading

import pytest

from nbtorchjob.environment import git
from nbtorchjob.environment.git import Checkout, Looker
from tests.patience import LIMIT

COMMIT = "a" * 40


def run(*words, folder):
    names = ("-c", "user.name=me", "-c", "user.email=me@here", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    """Return the folder of a checkout with one commit, and a folder in it that git doesn't track."""
    folder = tmp_path / "checkout"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.py").write_text("1\n")
    run("init", "-q", "-b", "main", folder=folder)
    run("add", ".", folder=folder)
    run("commit", "-q", "-m", "first", folder=folder)
    return folder


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Return a function that puts a shell script in git's place."""

    def made(script):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / "git").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "git").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    return made


def test_a_checkout_is_its_commit_and_what_was_changed_since(checkout):
    clean = git.checkout(checkout, LIMIT)
    (checkout / "a.py").write_text("2\n")
    (checkout / "inner/new é.py").write_text("")
    changed = git.checkout(checkout / "inner", LIMIT)

    assert clean is not None
    assert (len(clean.commit), clean.branch, clean.changed, clean.more) == (40, "main", (), 0)
    assert changed == Checkout(clean.commit, "main", ("a.py", "inner/"), 0)


def test_what_was_moved_is_one_change_and_a_commit_needs_no_branch(checkout):
    run("mv", "a.py", "b.py", folder=checkout)
    run("checkout", "-q", "--detach", folder=checkout)

    status = git.checkout(checkout, LIMIT)

    assert status is not None
    assert (status.branch, status.changed) == ("", ("b.py",))


def test_of_many_changes_some_are_named(checkout):
    for number in range(30):
        (checkout / f"new-{number:02}").touch()

    status = git.checkout(checkout, LIMIT)

    assert status is not None
    assert (len(status.changed), status.changed[0], status.more) == (20, "new-00", 10)


def test_where_there_is_no_commit_nothing_is_said(tmp_path):
    run("init", "-q", folder=tmp_path)

    assert git.checkout(tmp_path, LIMIT) is None


def test_a_git_of_the_environment_is_another_one_s(checkout, tmp_path, monkeypatch):
    before = git.checkout(checkout, LIMIT)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))

    assert git.checkout(checkout, LIMIT) == before


@pytest.mark.parametrize("script", ["yes", "exit 3", "echo hello", "sleep 1000 & exit 0", "kill -9 $$", ":"])
def test_a_git_that_is_none_says_nothing_in_time(script, program, tmp_path):
    program(script)

    assert git.checkout(tmp_path, within=0.3) is None


def test_without_git_nothing_is_said(checkout, monkeypatch):
    monkeypatch.setenv("PATH", ":.")
    (checkout / "git").write_text("#!/bin/sh\ntouch ran\n")
    (checkout / "git").chmod(0o755)
    monkeypatch.chdir(checkout)

    assert git.checkout(checkout, LIMIT) is None
    assert not (checkout / "ran").exists()


@pytest.mark.parametrize(
    "answer", [b"", b"hello", b"# branch.oid (initial)\0", b"# branch.oid x\0", b"\xff\0\xff", b"9 what\0"]
)
def test_what_git_wouldn_t_say_is_not_believed(answer):
    assert git.parsed(answer) is None


def test_one_look_serves_all_who_wait_for_it(checkout, program, tmp_path):
    go, looks = tmp_path / "go", tmp_path / "looks"
    waits = f"while [ ! -e {go} ]; do sleep 0.01; done"
    program(f"case $* in config*) exit;; esac; echo >> {looks}; {waits}; printf '# branch.oid {COMMIT}\\0'")
    checkouts: list[Checkout] = []
    looker, done = Looker(LIMIT, pause=0), threading.Event()

    looker.look(checkout, checkouts.append)
    while not looks.exists():  # the first look has begun
        done.wait(0.01)
    for _ in range(5):
        looker.look(checkout, checkouts.append)
    looker.look(checkout, lambda status: done.set())
    go.touch()

    assert done.wait(LIMIT)
    assert checkouts == [Checkout(COMMIT, "")] * 6
    assert looks.read_text() == "\n\n"


def test_a_folder_is_not_looked_at_where_git_would_say_nothing_or_was_slow(checkout, program, tmp_path):
    def looked_at(folder):
        looker.look(folder, checkouts.append)
        for thread in [running for running in threading.enumerate() if running.name == "nbtorchjob-git"]:
            thread.join(LIMIT)

    again = tmp_path / "again"
    checkouts: list[Checkout] = []
    looker = Looker(0.2, pause=0)
    program("sleep 1000")
    looked_at(checkout)
    program(f"touch {again}; printf '# branch.oid {COMMIT}\\0'")
    looked_at(checkout)
    looked_at(tmp_path)

    assert checkouts == []
    assert not again.exists()


def test_a_process_that_ends_doesn_t_pause(checkout):
    code = "import sys; from pathlib import Path; from nbtorchjob.environment.git import Looker; "
    code += "Looker(pause=1e6).look(Path(sys.argv[1]), lambda found: print(found.branch))"
    done = subprocess.run(
        [sys.executable, "-c", code, checkout], capture_output=True, text=True, timeout=LIMIT
    )

    assert (done.stdout, done.stderr) == ("main\n", "")


# Settings of a repository's own configuration that make some command of git run a program.
RUNS = {
    "a clean filter": {"filter.x.clean": "{}", "filter.x.smudge": "{}"},
    "a filter process": {"filter.x.process": "{}", "filter.x.required": "true"},
    "textconv": {"diff.x.textconv": "{}", "diff.x.command": "{}", "diff.external": "{}"},
    "a file system monitor": {"core.fsmonitor": "{}"},
    "a pager": {"core.pager": "{}", "pager.status": "{}"},
    "an alias": {"alias.status": "!{}"},
    "hooks": {"core.hooksPath": "hooks"},
    "a fetch of what isn't here": {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": "ssh://there/repository",
        "core.sshCommand": "{}",
        "credential.helper": "!{}",
    },
    "a file that it includes": {"include.path": "more"},
    "a file that it includes here": {"includeIf.gitdir:**.path": "more"},
    "a submodule": {"submodule.inner.update": "!{}", "submodule.recurse": "true"},
    "a configuration of its own": {"extensions.worktreeConfig": "true"},
}


@pytest.fixture
def traps(checkout, tmp_path):
    """Return a function that sets traps in a checkout, and one that lists those that a look has sprung."""
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho $0 >> {ran}\ncat\n")
    program.chmod(0o755)
    (checkout / ".gitattributes").write_text("* filter=x diff=x merge=x\n")
    run("add", ".", folder=checkout)
    run("commit", "-q", "-m", "attributes", folder=checkout)
    hooks = checkout / "hooks"
    hooks.mkdir()
    for name in ("post-index-change", "pre-auto-gc", "post-checkout", "reference-transaction"):
        shutil.copy(program, hooks / name)
        shutil.copy(program, checkout / ".git" / "hooks" / name)
    filters = f'[filter "x"]\n\tclean = {program}\n\tprocess = {program}\n[core]\n\tfsmonitor = {program}\n'
    for name in ("more", "config.worktree"):
        (checkout / ".git" / name).write_text(filters)

    def set_(settings):
        for name, value in settings.items():
            run("config", name, value.format(program), folder=checkout)
        # Another text of the same length, with another mtime: git has to read the file.
        (checkout / "a.py").write_text("2\n")
        os.utime(checkout / "a.py", (1, 1))

    return set_, lambda: ran.read_text() if ran.exists() else ""


@pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS)
def test_a_look_runs_nothing_that_a_repository_names(checkout, traps, settings):
    set_, sprung = traps
    set_(settings)

    status = git.checkout(checkout, LIMIT)

    assert sprung() == ""
    assert status is not None
    assert "a.py" in status.changed


def test_a_look_fetches_no_object_that_isnt_here(checkout, traps):
    set_, sprung = traps
    set_(RUNS["a fetch of what isn't here"])
    for path in (checkout / ".git" / "objects").glob("??/*"):
        path.unlink()

    assert git.checkout(checkout, LIMIT) is None
    assert sprung() == ""


def test_a_worktree_and_a_submodule_are_checkouts(checkout, tmp_path):
    run("worktree", "add", "-q", "-b", "side", str(tmp_path / "side"), folder=checkout)
    run("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(checkout), "sub", folder=checkout)
    (tmp_path / "side" / "a.py").write_text("3\n")
    (checkout / "sub" / "a.py").write_text("3\n")

    side, inner = git.checkout(tmp_path / "side", LIMIT), git.checkout(checkout / "sub" / "inner", LIMIT)

    assert side is not None
    assert (side.branch, side.changed) == ("side", ("a.py",))
    assert inner is None or inner.changed == ("a.py",)
