"""Jobs with damaged folders: they hide no other job, are reported in one line, and can be deleted."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nbtorchjob
from nbtorchjob import NBTorchJobError, api
from nbtorchjob.backends.local import directory
from nbtorchjob.commands import verbs
from nbtorchjob.commands.front import ParsedArgs
from nbtorchjob.errors import DamagedError, ResultError
from nbtorchjob.frontends.cli import main
from nbtorchjob.machine import folders
from nbtorchjob.machine.processes import Process
from nbtorchjob.state import JobInfo

DEEP = "[" * 200_000


def change(job, **fields):
    """Change fields in a job's record."""
    path = job.folder.path / "job.json"
    record = json.loads(path.read_text())
    record["info"] |= fields
    path.write_text(json.dumps(record))


def refused(work, name):
    with pytest.raises(DamagedError) as caught:
        work()
    message = str(caught.value)
    assert "\n" not in message
    assert f" of {name} can't be read (" in message
    assert message.endswith(f"): %torchjob delete {name} removes it")
    return message


WRONG = {
    "sources": {"sources": [1]},
    "spec": {"spec": 5},
    "retry": {"spec": {"retry": 5}},
    "label": {"label": 5},
    "created": {"created": None},
    "text as created": {"created": "x"},
    "nodes": {"nodes": [1]},
    "another's name": {"name": "\x1b[31mother"},
    "another backend": {"backend": "kubernetes"},
}


@pytest.mark.parametrize("fields", WRONG.values(), ids=WRONG)
def test_a_damaged_record_hides_no_other_job(act, here, fields, caplog):
    good, bad = act(), act()
    change(bad, **fields)

    for _ in range(3):
        assert [state.info.name for state in here.jobs()] == [good.name]
    assert len(caplog.records) == 1
    assert f"{bad.name} isn't listed" in caplog.text
    refused(lambda: here.info(bad.name), bad.name)


@pytest.mark.parametrize("text", [b"", b'{"info": {"na', b"\xff\xfe\x00", b"5", b"{}", DEEP.encode(), None])
def test_a_record_that_is_none_is_told_of_in_a_line_and_can_be_deleted(act, here, text):
    job = act()
    path = job.folder.path / "job.json"
    path.unlink() if text is None else path.write_bytes(text)

    refused(lambda: api.attach(job.name), job.name)
    refused(lambda: here.snapshot(job.name), job.name)
    refused(lambda: here.brief_state(job.name), job.name)
    refused(lambda: here.retry(job.name), job.name)
    assert here.jobs() == []
    job.lose()
    here.delete(job.name)
    assert not job.folder.path.exists()


def test_the_verb_deletes_what_it_cannot_read(act):
    job = act()
    job.lose()
    (job.folder.path / "job.json").write_text("")

    [answer] = verbs.delete(ParsedArgs([job.name], {}), api.attach)
    assert answer.text == f"{job.name} deleted"
    assert not job.folder.path.exists()


@pytest.mark.parametrize(
    ("spec", "why"),
    [({"launch": 5}, "not subscriptable"), ({"launch": {"kind": "Later"}}, "'Later' is missing")],
)
def test_a_spec_that_is_none_is_told_of_by_what_needs_it(act, here, spec, why):
    job = act()
    change(job, spec=spec)

    [answer] = verbs.describe(ParsedArgs([job.name], {}), api.attach)
    [message] = [line for line in answer.text.split("\n") if "its spec can't be read" in line]
    assert why in message
    assert "\nWhen:\n" in answer.text
    assert answer.data["spec"] == spec
    assert "its spec can&#x27;t be read" in str(answer.html)
    refused(lambda: [*verbs.config(ParsedArgs([job.name], {}), api.attach)], job.name)
    refused(lambda: here.enforcement(here.info(job.name)), job.name)


def test_what_a_later_version_wrote_down_is_left_aside(act, here):
    job = act()
    change(job, colour="green")

    assert here.info(job.name).name == job.name
    assert [state.info.name for state in here.jobs()] == [job.name]


@pytest.mark.parametrize("text", ["", "5", "{}", '{"pid": 1}', '{"pid": [], "started": 1, "boot": ""}'])
def test_a_damaged_word_of_who_keeps_a_job_is_told_of_in_a_line(act, here, text):
    job = act()
    (job.folder.path / "supervisor.json").write_text(text)

    refused(lambda: here.snapshot(job.name), job.name)
    refused(lambda: here.cancel(job.name), job.name)
    assert here.jobs() == []
    here.delete(job.name)
    assert not job.folder.path.exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"env": 5}', None])
def test_a_damaged_request_is_told_of_in_a_line(act, here, text):
    job = act()
    if text is not None:
        (job.folder.path / "request.json").write_text(text)
    refused(job.folder.request, job.name)


@pytest.mark.parametrize(
    "line",
    [
        DEEP,
        '{"event": "WorkersStarted", "time": 1, "node": 0, "restart": 0, "round": 0, "ranks": "ab", '
        '"world_size": 2}',
        '{"event": "Notice", "time": "noon", "text": "x"}',
        '{"event": "RankFailed", "time": 1, "node": 0, "rank": 0, "restart": 0, "round": 0, "error": 5}',
        '{"event": []}',
    ],
    ids=["deep", "ranks", "time", "error", "event"],
)
def test_a_damaged_line_is_left_out(act, here, line):
    job = act()
    with open(job.folder.events, "a") as file:
        file.write(line + "\n")
    job.end()

    [state] = here.jobs()
    assert state.ended is not None
    assert here.snapshot(job.name).members == ()


def test_a_pipe_in_place_of_a_log_hangs_nobody(act, here):
    job = act()
    job.begin()
    job.log(b"")
    path = job.folder.rank_log(0, 0, 0)
    path.unlink()
    os.mkfifo(path)

    refused(lambda: [*here.log(job.name, 0)], job.name)


def test_a_link_in_place_of_a_log_is_not_followed(act, here, tmp_path):
    job = act()
    job.begin()
    job.log(b"")
    path = job.folder.rank_log(0, 0, 0)
    path.unlink()
    (tmp_path / "secret").write_text("secret")
    path.symlink_to(tmp_path / "secret")

    refused(lambda: [*here.log(job.name, 0)], job.name)
    refused(lambda: here.snapshot(job.name), job.name)


def fifo(path):
    os.mkfifo(path)


def link(path):
    path.symlink_to("/dev/zero")


def endless(path):
    with open(path, "wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize("put", [fifo, link, endless, os.mkdir])
@pytest.mark.parametrize("name", ["job.json", "events.jsonl", "supervisor.json", "ttl"])
def test_a_record_that_is_no_plain_file_holds_up_nobody(act, here, name, put):
    if put is endless and name == "events.jsonl":
        pytest.skip("a file of facts may be of any size, and is read a part at a time")
    good, bad = act(), act()
    (bad.folder.path / name).unlink(missing_ok=True)
    put(bad.folder.path / name)

    assert [state.info.name for state in here.jobs()] == [good.name]
    text = refused(lambda: here.snapshot(bad.name) if name != "ttl" else bad.folder.ttl_s(), bad.name)
    assert "plain file" in text or "symbolic links" in text or "bigger than" in text or "directory" in text


def test_a_forged_fact_hides_neither_its_job_nor_another(act, here):
    good, bad = act(), act()
    bad.folder.emit("NodeStarted", node=0, host="h", run=2_000_000_000, attempt=2_000_000_000)
    bad.folder.emit("Closed", time=float("nan"))
    with open(bad.folder.events, "ab") as file:
        file.write(b"x" * (3 << 20) + b"\n")
    bad.folder.emit("Notice", text="goes on")

    assert {state.info.name for state in here.jobs()} == {good.name, bad.name}
    state = here.snapshot(bad.name)
    assert [notice.text for notice in state.notices] == ["goes on"]
    assert len(state.refused) == 3
    assert not state.phase.terminal


@pytest.mark.parametrize(
    "ref",
    [
        "/dev/zero",
        "http://169.254.169.254/node-0/round-0/rank-0.value",
        "node-0/round-0/rank-1.value",
        "node-0/round-1/rank-0.value",
        "../round-0/rank-0.value",
        "node-0/round-0/../rank-0.value",
    ],
)
def test_a_value_is_looked_for_only_where_a_rank_of_the_job_writes(ref, act):
    acted = act()
    acted.begin()
    acted.folder.emit("ValueReady", rank=0, round=0, ref=ref, size=5)
    acted.folder.emit("NodeExited", node=0, pod="", code=0)
    acted.end()

    with pytest.raises(ResultError, match=r"where none of its ranks writes|is gone"):
        api.attach(acted.name).result()


def test_a_value_that_is_nowhere_is_none(act):
    acted = act()
    acted.begin()
    acted.folder.emit("ValueReady", rank=0, round=0, ref="", size=5)
    acted.folder.emit("NodeExited", node=0, pod="", code=0)
    acted.end()

    with pytest.raises(ResultError, match="rank 0 returned no value"):
        api.attach(acted.name).result()


def test_a_job_without_a_key_has_no_value_that_can_be_checked(act):
    acted = act()
    acted.begin()
    path = acted.folder.node(0) / "round-0" / "rank-0.value"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"value")
    acted.folder.emit("ValueReady", rank=0, round=0, ref=str(path), size=5)
    acted.folder.emit("NodeExited", node=0, pod="", code=0)
    acted.end()
    for key in (None, b""):
        if key is not None:
            acted.folder.key.write_bytes(key)
        with pytest.raises((DamagedError, ResultError), match="key"):
            api.attach(acted.name).result()


def asked(cwd):
    """Ask a new Python in ``cwd`` for its pool's folder; return the last line that it wrote."""
    ask = "from nbtorchjob.backends.local import directory as paths; print(paths.pool_dir())"
    done = subprocess.run([sys.executable, "-c", ask], cwd=cwd, capture_output=True, text=True, check=False)
    return (done.stderr or done.stdout).splitlines()[-1]


@pytest.mark.parametrize(
    "where", [directory.jobs_dir, lambda: directory.pool_dir().parent, directory.pool_dir]
)
def test_what_is_kept_is_this_users_alone_under_any_umask(tmp_path, monkeypatch, where):
    monkeypatch.setenv("NBTORCHJOB_STATE_DIR", str(tmp_path / "state"))
    before = os.umask(0)
    try:
        path = where()
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o700

    path.chmod(0o755)  # as a later version, or a person, may leave it
    assert where().stat().st_mode & 0o777 == 0o700

    path.chmod(0o777)
    with pytest.raises(NBTorchJobError, match=rf"{path} must be a folder that is yours alone .* by others"):
        where()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
@pytest.mark.parametrize("name", ["", "jobs", "pool"])
def test_what_is_somebody_elses_is_not_taken(tmp_path, monkeypatch, name):
    monkeypatch.setenv("NBTORCHJOB_STATE_DIR", str(tmp_path / "state"))
    path = tmp_path / "state" / name
    path.mkdir(parents=True)
    os.chown(path, 12345, 12345)

    with pytest.raises(NBTorchJobError, match=f"{path}.* belongs to user 12345"):
        directory.jobs_dir() if name != "pool" else directory.pool_dir()


def test_a_state_folder_that_others_may_write_to_is_not_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("NBTORCHJOB_STATE_DIR", str(tmp_path))
    tmp_path.chmod(0o1777)

    with pytest.raises(NBTorchJobError, match=r"jobs can't be kept in .* only you can write to"):
        directory.jobs_dir()
    assert list(tmp_path.glob("jobs")) == []


@pytest.mark.parametrize("path", ["torch.py", "torch/__init__.py"])
def test_a_file_that_hides_torch_is_named(folder, path):
    (folder / path).parent.mkdir(exist_ok=True)
    (folder / path).touch()

    message = f"{folder / path} hides the installed torch: rename it"
    assert asked(folder) == f"nbtorchjob.errors.SubmitError: {message}"


def test_another_version_gets_a_pool_of_its_own(folder):
    other = shutil.copytree(Path(nbtorchjob.__file__).parent, folder / "nbtorchjob")
    (other / "__init__.py").touch()

    assert asked("/") == str(directory.pool_dir()) != asked(folder)


@pytest.mark.parametrize("words", [["run", "train.py:f"], ["list"], ["gc"]])
def test_a_state_folder_that_can_not_be_written_is_told_in_one_line(folder, monkeypatch, capfd, words):
    (folder / "train.py").write_text("def f(): pass")
    monkeypatch.chdir(folder)
    monkeypatch.setenv(folders.STATE, "/sys/jobs")  # where not even root can make a folder
    monkeypatch.setattr(sys, "path", [*sys.path])  # a script's folder is put there
    main(words)

    [line] = capfd.readouterr().err.splitlines()
    assert "jobs can't be kept in /sys/jobs (" in line
    assert line.endswith(f"): set {folders.STATE} to a folder that you can write to")


def test_another_version_of_the_code_is_told_apart_where_all_files_have_one_time(tmp_path):
    # As in reproducible packages, which conda and Nix install with the times that the files have.
    package = tmp_path / "nbtorchjob"
    shutil.copytree(Path(nbtorchjob.__file__).parent, package, ignore=shutil.ignore_patterns("labextension"))

    def name():
        for path in package.rglob("*.py"):
            os.utime(path, (1, 1))
        argv = [
            sys.executable,
            "-c",
            "from nbtorchjob.backends.local import directory as d; print(d.code())",
        ]
        return subprocess.check_output(argv, cwd=tmp_path, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})

    before = name()
    (tmp_path / "other_package.py").write_text("# installed beside this one\n")
    assert name() == before
    with (package / "api.py").open("a") as file:
        file.write("# newer\n")
    assert name() != before


def test_a_job_with_the_name_of_a_deleted_one_has_what_is_written_of_it_and_no_file_stays_open():
    """A kernel cancels and deletes ``train``, runs it again under that name, and cancels the new one."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        job = directory.create(directory.jobs_dir(), JobInfo("train"), lambda folder: None)
        job.claim(Process.of(os.getpid()))
        job.emit("CancelRequested")

        assert api.snapshot("train").cancelled is not None
        shutil.rmtree(job.path)
    assert len(os.listdir("/proc/self/fd")) == before
