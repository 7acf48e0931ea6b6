"""The payload runs under any Python with torch and nothing else, and refuses what it can't trust."""

import ast
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch

from nbtorchjob import Elastic, JobSpec, capture, runtime
from nbtorchjob.payload import archive
from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.node.kept import lay
from nbtorchjob.runtime.objects import wire
from nbtorchjob.runtime.store.payload import HEADER, MARK, Payload, PayloadError
from nbtorchjob.spec.cluster import Cluster
from tests.programs import program

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

KEY = b"k" * 32
SPEC = JobSpec(Elastic(nproc_per_node=2))


def add(a, b):
    return a + b


def packed(path, *args, fn=add, spec=SPEC):
    with open(path, "wb") as file:
        archive.write(file, capture.from_function(fn, args), spec, KEY)
    return path


@pytest.fixture
def job(folder):
    return packed(folder / "job.pyz", 1, 2)


def rewritten(path, **changed):
    """Rewrite the archive with some members replaced and the signature kept, as a forger would."""
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    members.update({name.replace("__", "."): data for name, data in changed.items()})
    out = io.BytesIO(path.read_bytes()[:MARK])
    out.seek(MARK)
    with zipfile.ZipFile(out, "a") as new:
        for name, data in members.items():
            new.writestr(name, data)
    path.write_bytes(out.getvalue())


@pytest.mark.torch
def test_it_runs_where_neither_cloudpickle_nor_this_package_is_installed(job, folder):
    site = folder / "site"
    site.mkdir()
    # Only what `import torch` needs: links to torch and its requirements, no cloudpickle.
    for entry in Path(torch.__file__).parents[1].iterdir():
        if "cloudpickle" not in entry.name and "nbtorchjob" not in entry.name and entry.suffix != ".pth":
            (site / entry.name).symlink_to(entry)
    key = folder / "key"
    key.write_bytes(KEY)
    events = folder / "events.jsonl"
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(site),
        "NBTORCHJOB_FOLDER": str(folder / "node"),
        "NBTORCHJOB_EVENTS": str(events),
        "NBTORCHJOB_KEY_FILE": str(key),
    }
    (folder / "node").mkdir()

    bare = program("bare", job, site, python=("-S",))
    done = subprocess.run(bare, env=env, capture_output=True, text=True, check=False)

    assert done.returncode == exits.OK, done.stderr
    ready = next(e for e in map(json.loads, events.read_text().splitlines()) if e["event"] == "ValueReady")
    key = wire.value_key(KEY, "", ready["round"], ready["rank"])
    assert wire.read_value(ready["ref"], lambda *_: pytest.fail("no pickle is needed"), key) == 3


def test_big_memory_lies_outside_the_archive_and_is_mapped(folder):
    path = packed(folder / "job.pyz", np.arange(1_000_000), np.ones(3))

    opened = Payload(str(path))
    opened.verify(KEY)

    assert [len(view) for view in opened.buffers()] == [8_000_000]
    assert len(opened.read("call.pkl")) < 10_000


def test_an_empty_forgery_of_the_header_is_refused(job):
    with zipfile.ZipFile(job) as archive:
        header = json.loads(archive.read(HEADER))
    header["all_ranks"] = True
    rewritten(job, header__json=json.dumps(header).encode())

    with pytest.raises(PayloadError, match="signature"):
        Payload(str(job)).verify(KEY)


def test_another_key_is_refused(job):
    with pytest.raises(PayloadError, match="signature"):
        Payload(str(job)).verify(b"x" * 32)


@pytest.mark.parametrize(
    "member",
    [
        "call.pkl",
        "sources.json",
        "__main__.py",
        "nbtorchjob/runtime/objects/wire.pyc",
        "cloudpickle/__init__.py",
    ],
)
def test_a_changed_member_is_refused_the_program_too(member, job):
    rewritten(job, **{member: b"garbage"})

    with pytest.raises(PayloadError, match="signature"):
        Payload(str(job)).verify(KEY)


def test_every_byte_of_the_archive_is_signed(job):
    whole = bytearray(job.read_bytes())
    for at in range(0, len(whole), 997):
        whole[at] ^= 1
        job.write_bytes(whole)
        with pytest.raises(PayloadError, match=r"signature|damaged"):
            Payload(str(job)).verify(KEY)
        whole[at] ^= 1


def test_an_empty_key_checks_nothing_and_is_refused(job):
    with pytest.raises(PayloadError, match="key is gone"):
        Payload(str(job)).verify(b"")


def test_a_changed_buffer_is_refused_where_it_has_travelled(folder):
    path = packed(folder / "job.pyz", np.ones(10_000), 1, spec=replace(SPEC, backend="kubernetes"))
    with open(path, "r+b") as file:
        file.write(b"\1" * 16)

    with pytest.raises(PayloadError, match="buffer 0"):
        Payload(str(path)).verify(KEY)


def test_a_file_cut_short_is_refused(job):
    os.truncate(job, job.stat().st_size // 2)

    with pytest.raises(PayloadError, match="damaged"):
        Payload(str(job))


def test_another_python_is_named_with_ours(job, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version_info", (3, 99, 0))  # a version that no image has yet
        packed(job, 1, 2)

    with pytest.raises(PayloadError, match=r"Python 3\.99 and this node Python 3\.\d+, and .*; use an image"):
        Payload(str(job)).verify(KEY)


def test_the_header_says_what_packed_it(job):
    assert {"python", "torch", "cloudpickle"} <= Payload(str(job)).header.keys()


@pytest.mark.parametrize("path", sorted(Path(runtime.__file__).parent.rglob("*.py")), ids=lambda p: p.name)
def test_what_ships_parses_on_an_older_python(path):
    ast.parse(path.read_text(), feature_version=(3, 7))


def test_a_local_module_travels_as_a_file(folder, monkeypatch):
    Path("mine.py").write_text("def twice(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(os.getcwd())
    import mine  # type: ignore[import-not-found]

    path = packed(folder / "job.pyz", 3, fn=mine.twice)
    Payload(str(path)).extract(str(folder / "files"))

    assert (folder / "files" / "mine.py").read_text() == Path("mine.py").read_text()
    shutil.rmtree(folder / "files")


@pytest.mark.parametrize("far", [False, True])
def test_a_local_module_s_program_can_be_run_by_ranks_too(far, folder, monkeypatch):
    Path("tools").mkdir()
    Path("tools/__init__.py").touch()
    Path("tools/run.sh").write_text("#!/bin/sh\n")
    Path("tools/run.sh").chmod(0o755)
    monkeypatch.syspath_prepend(os.getcwd())
    call = capture.from_cell("import tools", {})
    with open(folder / "job.pyz", "wb") as job, open(folder / "swap", "wb") as swap:
        archive.write(job, call, replace(SPEC, backend="kubernetes") if far else SPEC, KEY)
        archive.write_swap(swap, call, KEY, {}, remote=far)

    Payload(str(folder / "job.pyz")).extract(str(folder / "first"))
    lay(Payload(str(folder / "swap")), str(folder / "later"), ["tools/__init__.py", "tools/run.sh"])

    for root in (folder / "first", folder / "later"):
        assert os.access(root / "tools" / "run.sh", os.X_OK)
        assert not os.access(root / "tools" / "__init__.py", os.X_OK)


def test_swaps_of_a_payload_that_has_some_come_behind_them(job):
    swaps = []
    for rate in (0.1, 0.2):
        file = io.BytesIO()
        call = capture.from_cell(f"lr = {rate}", {})
        archive.write_swap(file, call, KEY, {"text": f"lr = {rate}"}, remote=True)
        swaps.append(file.getvalue())
    first, second = swaps
    job.write_bytes(archive.with_swaps(archive.with_swaps(job.read_bytes(), KEY, [first]), KEY, [second]))

    payload = Payload(str(job))
    payload.verify(KEY)
    with zipfile.ZipFile(job) as whole:
        names = [name for name in whole.namelist() if name.startswith("swaps/")]
    assert {name: payload.read(name) for name in names} == {"swaps/1": first, "swaps/2": second}


@pytest.mark.parametrize("patched", [False, True])
def test_a_pool_s_node_clears_the_pod_s_shared_memory_unless_a_patch_mounts_something_there(folder, patched):
    mount = {"name": "host", "mountPath": "/dev/shm"}
    patch = json.dumps({"spec": {"containers": [{"volumeMounts": [mount]}]}}) if patched else None
    spec = JobSpec(
        Elastic(nproc_per_node=2), "kubernetes", lab=True, fresh=True, cluster=Cluster(pod_patch=patch)
    )
    ground = Payload(str(packed(folder / "job.pyz", 1, 2, spec=spec))).header["lab"]["ground"]
    assert (ground["mounted"], ground["empty"]) == ((["/dev/shm"], []) if patched else ([], ["/dev/shm"]))
