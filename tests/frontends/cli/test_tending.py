"""A tender's manifests as a kustomize base, one object per file, and where the command reports its health.

It replaces and deletes only files of its own.
"""

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest
import yaml

from nbtorchjob.machine import folders
from tests.patience import LIMIT

BASE = ("tend", "--namespace", "ml", "--kustomize", "base")


def listed(folder=Path("base")):
    """Return the objects that a base lists, in its order."""
    base = yaml.safe_load((folder / "kustomization.yaml").read_text())
    return [yaml.load((folder / name).read_text(), yaml.CSafeLoader) for name in base["resources"]]


def in_order(objects):
    """Return the objects, sorted by kind, namespace and name."""
    return sorted(
        objects, key=lambda o: (o["kind"], o["metadata"].get("namespace", ""), o["metadata"]["name"])
    )


def test_a_base_has_what_the_manifests_have_each_object_in_a_file_of_its_own(command):
    done = command(*BASE)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("base/kustomization.yaml and 11 objects")

    assert listed() == [
        *yaml.load_all(command("tend", "--namespace", "ml", "--manifests").out, yaml.CSafeLoader)
    ]


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl isn't here to render it")
def test_kubectl_renders_the_base(command):
    command(*BASE)
    rendered = subprocess.run(["kubectl", "kustomize", "base"], capture_output=True, text=True, check=True)
    assert in_order(yaml.load_all(rendered.stdout, yaml.CSafeLoader)) == in_order(listed())


def test_a_base_is_written_anew_in_its_place_beside_files_of_others(command):
    command(*BASE, "--namespace", "research")
    Path("base/overlay.txt").touch()
    command(*BASE)

    assert {body["metadata"].get("namespace") for body in listed()} == {"ml", None}
    assert len([*Path("base").iterdir()]) == 13


def test_a_folder_of_something_else_is_left_as_it_is(command):
    Path("base").mkdir()
    content = b"resources: [mine-\xe9.yaml]\n"
    Path("base/kustomization.yaml").write_bytes(content)
    done = command(*BASE)

    assert (done.code, done.out) == (2, "")
    assert done.err == ("nbtorchjob tend: --kustomize expects an empty folder or one of its own, got base\n")
    assert Path("base/kustomization.yaml").read_bytes() == content


@pytest.fixture
def tend(process):
    """Return a function that starts a tender without a cluster, in a process."""
    words = ("tend", "--namespace", "ml")
    return lambda *more, **env: process(
        *words, *more, env={**os.environ, "KUBECONFIG": "/nonexistent", **env}
    )


def begun(tender):
    """Wait until a tender has begun; return its line about that."""
    return next(line for line in tender.stderr if "tending jobs; " in line)


def leave(tender):
    """Have a tender leave; return what it has written."""
    tender.send_signal(signal.SIGTERM)
    _, err = tender.communicate(timeout=LIMIT)
    assert tender.returncode == 0
    return err


@pytest.mark.parametrize("where", ["127.0.0.1:99999", "localhost:http", "0.0.0.0:9000", "example.org:9000"])
def test_an_address_that_is_none_of_this_machine_is_refused(tend, where):
    _, err = tend("--listen", where).communicate(timeout=LIMIT)

    expected = "expects a local address such as 127.0.0.1:PORT, or the path of a socket"
    assert err == f"nbtorchjob tend: --listen {expected}, got {where!r}\n"
    assert not os.path.exists(where)


def test_a_file_in_the_place_of_the_socket_is_kept(tend):
    Path("results.csv").write_text("epoch,loss\n")
    tender = tend("--listen", "results.csv")
    _, err = tender.communicate(timeout=LIMIT)

    assert tender.returncode == 2
    assert err.startswith("nbtorchjob tend: --listen can't use 'results.csv': ")
    assert Path("results.csv").read_text() == "epoch,loss\n"


def test_a_file_named_like_the_address_is_kept(tend):
    with socket.create_server(("127.0.0.1", 0)) as free:
        where = f"127.0.0.1:{free.getsockname()[1]}"
    Path(where).touch()
    tender = tend("--listen", where)
    begun(tender)
    leave(tender)

    assert Path(where).exists()


def test_a_socket_is_taken_from_a_tender_that_was_killed_but_from_no_other(tend):
    killed = tend("--listen", "t.sock")
    assert "health and metrics at t.sock" in begun(killed)
    killed.kill()
    killed.wait()
    first = tend("--listen", "t.sock")
    assert "health and metrics at t.sock" in begun(first)
    second = tend("--listen", "t.sock")
    _, err = second.communicate(timeout=LIMIT)

    assert err.startswith("nbtorchjob tend: --listen can't use 't.sock': ")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("t.sock")
    leave(first)
    assert not os.path.exists("t.sock")


def test_jobs_are_tended_without_a_socket_where_its_path_would_be_too_long(tend, tmp_path):
    tender = tend(**{folders.STATE: str(tmp_path / ("d" * 100))})

    assert "health and metrics aren't served" in begun(tender)
    leave(tender)
