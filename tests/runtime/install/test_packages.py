"""A node installs what a job asks for beside the packages that it has, and nothing else."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nbtorchjob.runtime import facts, store
from nbtorchjob.runtime.install import packages, stock
from tests.environment.asking import Asking
from tests.environment.built import project, wheel
from tests.environment.index import Index
from tests.environment.installed import install


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Restore what an installation changes."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("PIP_NO_INDEX", "1")


@pytest.fixture
def index(folder, monkeypatch):
    """Return the folder from which packages come."""
    path = folder / "index"
    path.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(path))
    return path


def provide(folder, *asked, **more):
    folder.mkdir(exist_ok=True)
    return packages.provide(Asking(*asked, **more), str(folder), 0)


KEY, SECRET = b"k" * 32, b"s" * 32


def stocked(folder, *asked, secret=SECRET, node=0):
    folder.mkdir()
    payload = Asking(*asked, stock=stock.hidden(secret, KEY))
    return packages.provide(payload, str(folder), node, KEY)


def refused(folder, *asked, **more):
    with pytest.raises(packages.InstallError) as caught:
        provide(folder, *asked, **more)
    return caught.value


def test_a_package_is_found_by_this_process_and_those_it_starts(folder, index, monkeypatch):
    (folder / "tokenize.py").write_text("raise ImportError('not the standard library')")
    monkeypatch.chdir(folder)
    wheel(index, "nbtj_fresh", "1.0", "nbtj_below", "cloudpickle>=1")
    wheel(index, "nbtj_below", "1.0")
    wheel(index, "nbtj_below", "2.0")
    wheel_path = wheel(folder, "nbtj_mine")

    target = provide(folder / "node", "nbtj_fresh", wheels=[wheel_path], constraints=["nbtj_below==1.0"])

    assert sys.path[1] == target
    assert os.environ["PYTHONPATH"] == f"{target}:/elsewhere"
    names = {name for name in os.listdir(target) if name.endswith(".dist-info")}
    assert names == {"nbtj_fresh-1.0.dist-info", "nbtj_below-1.0.dist-info", "nbtj_mine-1.0.dist-info"}
    assert {*os.listdir(folder / "node")} == {"packages", "wheels"}


def test_a_wheel_that_came_along_is_installed_in_place_of_one_of_its_version(folder, index, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(folder / "image"))
    sys.path.append(str(folder / "image"))
    install(folder / "image", "nbtj-mine", "1.0", "nbtj_mine.py")

    target = provide(folder / "a node", wheels=[wheel(folder, "nbtj_mine")])

    assert "nbtj_mine.py" in os.listdir(target)


def test_what_is_wanted_exactly_is_installed_though_no_installer_would(folder, index):
    wheel(index, "nbtj_odd", "1.0", "nbtj_below<1")
    wheel(index, "nbtj_below", "2.0")

    target = provide(folder / "node", exactly=["nbtj-odd==1.0", "nbtj-below==2.0"])

    names = {name for name in os.listdir(target) if name.endswith(".dist-info")}
    assert names == {"nbtj_odd-1.0.dist-info", "nbtj_below-2.0.dist-info"}


def test_what_the_image_has_is_not_installed_again(folder, index):
    assert os.listdir(provide(folder / "node", "cloudpickle")) == []


def test_where_there_is_no_installer_that_is_said(folder, monkeypatch):
    monkeypatch.setattr(packages, "find_spec", lambda name: None)  # hides pip, which this Python has
    monkeypatch.setenv("PATH", "")

    assert "neither pip nor uv; install uv where the notebook runs" in str(refused(folder, "rich"))
    assert str(refused(folder, "rich", kept=folder / "kept")).endswith("neither pip nor uv; install uv")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("nbtj-none==3",), ["pip couldn't install nbtj-none==3", "No matching distribution found"]),
        (("nbtj-a", "nbtj-b"), ["nbtj-a 1.0 depends on nbtj_c==1.0", "nbtj-b 1.0 depends on nbtj_c==2.0"]),
        (("nbtj-old",), ["nbtj-old 1.0 depends on torch<1", "(constraint) torch=="]),
        (("nbtj-broken",), ["nbtj-broken: RuntimeError: no compiler here\n"]),
        (("nbtj-other",), [": nbtj-other has no wheels for this node, but for cp27-cp27m-win32\n"]),
        (("nbtj-other==1.0",), ["No matching distribution found", "\nthis node has Python 3."]),
    ],
)
def test_a_failure_is_told_in_the_words_of_what_installs(asked, words, folder, index, request):
    if "torch" in "".join(words):
        pytest.importorskip("torch")
    for name, version, *needs in (
        *(("nbtj_a", "1.0", "nbtj_c==1.0"), ("nbtj_b", "1.0", "nbtj_c==2.0"), ("nbtj_c", "1.0")),
        *(("nbtj_c", "2.0"), ("nbtj_old", "1.0", "torch<1")),
    ):
        wheel(index, name, version, *needs)
    wheel(index, "nbtj_other", tag="cp27-cp27m-win32")
    if "nbtj-broken" in asked:
        broken = project(
            folder / "nbtj_broken-1.0", "nbtj_broken", first='raise RuntimeError("no compiler here")'
        )
        subprocess.run(
            ["tar", "-czf", index / "nbtj_broken-1.0.tar.gz", "-C", folder, broken.name], check=True
        )

    error = refused(folder / "node", *asked, retries=3)

    assert [word for word in words if word not in str(error)] == []
    assert not error.again


def test_what_installs_says_in_several_lines_what_it_stumbles_over(folder, index, monkeypatch):
    (folder / "image" / "nbtj_old-x.dist-info").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", str(folder / "image"))
    (folder / "image" / "nbtj_old-x.dist-info" / "METADATA").write_text("Name: nbtj-old\nVersion: x\n")
    wheel(index, "nbtj_old")
    many = [f"nbtj-{n}" for n in range(7)]

    message = str(refused(folder / "node", "nbtj-old", *many))

    assert message.startswith("pip couldn't install nbtj-old, nbtj-0, nbtj-1, nbtj-2, nbtj-3 and 3 others: ")
    assert "has an invalid version" in message


def test_torch_is_never_brought_along(folder, index, monkeypatch):
    wheel(index, "nvidia_cudnn_cu99")

    error = refused(folder / "node", "nvidia-cudnn-cu99")

    assert "nvidia-cudnn-cu99 1.0 would be installed beside the image's torch, but it belongs to" in str(
        error
    )


def test_an_index_that_forbids_is_named_without_its_password(folder, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    with Index(folder, code=403) as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url("me:secret"))
        error = refused(folder, "nbtj-none", retries=3)

    assert "403" in str(error)
    assert "secret" not in str(error)
    assert not error.again


def test_an_index_that_hangs_is_left_in_time_and_may_be_tried_again(folder, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv(packages.WITHIN, "0.5")
    with Index(folder, hangs=True) as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url())
        error = refused(folder, "nbtj-none", retries=1)

        assert "pip didn't install nbtj-none within 0.5 s (--env NBTORCHJOB_INSTALL_WITHIN=S" in str(error)
        assert error.again
        assert not refused(folder, "nbtj-none").again  # without retries, nothing would try again


def test_jobs_of_this_machine_share_what_was_installed_once(folder, index):
    wheel(index, "nbtj_fresh")
    kept = folder / "kept"
    code = (
        f"import sys; sys.path.insert(0, {os.getcwd()!r})\n"
        "from tests.runtime.install.test_packages import Asking, packages\n"
        f"print(packages.provide(Asking('nbtj-fresh', kept={str(kept)!r}), sys.argv[1], 0))"
    )
    nodes = [folder / name for name in ("a", "b")]
    for node in nodes:
        node.mkdir()
    both = [
        subprocess.Popen([sys.executable, "-c", code, node], stdout=subprocess.PIPE, text=True)
        for node in nodes
    ]
    outputs = [process.communicate()[0] for process in both]
    index.joinpath("nbtj_fresh-1.0-py3-none-any.whl").unlink()

    target = provide(folder / "later", "nbtj-fresh", kept=kept)

    assert [text.splitlines()[-1] for text in outputs] == [target, target]
    assert sum("Successfully installed" in text for text in outputs) == 1
    assert os.listdir(target).count("nbtj_fresh.py") == 1


def test_from_a_store_the_next_job_takes_what_was_installed_and_needs_no_index(folder, index, monkeypatch):
    wheel_path = wheel(index, "nbtj_fresh")

    def pod(name, **more):
        monkeypatch.setattr(sys, "path", [*path])
        monkeypatch.setenv("PYTHONPATH", "")
        monkeypatch.setenv(store.STORAGE, str(folder / "store" / f"job-{name}"))
        return stocked(folder / name, "nbtj-fresh", **more)

    path = [*sys.path]
    pod("a", node=1)
    assert not (folder / "store").exists()  # only one node of a job stores the packages
    first = pod("b")
    wheel_path.unlink()

    later = pod("c", node=1)

    assert os.listdir(folder / "c") == ["packages"]
    assert sorted(os.listdir(later)) == sorted(os.listdir(first))
    old, new = (os.stat(f"{folder}/nbtj_fresh.py").st_mtime for folder in (first, later))
    assert int(old) == int(new)  # otherwise its bytecode would be out of date
    with pytest.raises(packages.InstallError):  # a job of another user
        pod("d", secret=b"t" * 32)
    (kept,) = (folder / "store" / stock.FOLDER).iterdir()
    whole = kept.read_bytes()
    with monkeypatch.context() as smaller:
        smaller.setattr(stock, "_MOST", len(whole) - 33)
        with pytest.raises(packages.InstallError):
            pod("e")
    kept.write_bytes(whole[:-1] + b"?")
    with pytest.raises(packages.InstallError):
        pod("f")


def test_what_was_installed_under_another_name_is_not_taken(folder, monkeypatch):
    monkeypatch.setenv(store.STORAGE, str(folder / "store" / "job"))
    (folder / "old").mkdir()
    (folder / "old" / "code.py").write_text("old = True")
    cipher = stock.hidden(SECRET, KEY)
    stock.Stock(cipher, KEY, "old", str(folder)).keep(str(folder / "old"))
    (kept,) = (folder / "store" / stock.FOLDER).iterdir()
    before = {*folder.glob("store/*/*")}
    stock.Stock(cipher, KEY, "new", str(folder)).keep(str(folder / "old"))
    (new,) = {*folder.glob("store/*/*")} - before
    assert stock.Stock(cipher, KEY, "new", str(folder)).take(str(folder / "taken"))

    new.write_bytes(kept.read_bytes())

    assert not stock.Stock(cipher, KEY, "new", str(folder)).take(str(folder / "again"))
    assert not (folder / "again").exists()


def test_a_store_that_keeps_nothing_is_no_reason_to_fail(folder, index, monkeypatch):
    wheel(index, "nbtj_fresh")
    (folder / "file").touch()
    events = folder / "events.jsonl"
    monkeypatch.setenv(facts.EVENTS, str(events))
    monkeypatch.setenv(store.STORAGE, str(folder / "file" / "job"))

    assert os.path.exists(stocked(folder / "a", "nbtj-fresh") + "/nbtj_fresh.py")

    assert "packages can't be kept in the store" in events.read_text()


def test_what_was_imported_before_it_was_installed_is_noticed(folder):
    (folder / "json").mkdir()
    (folder / "nbtj_fresh.py").touch()

    assert packages.shadows(str(folder))
    (folder / "json").rmdir()
    assert not packages.shadows(str(folder))


UV = """#!/bin/sh
case "$*" in
*--dry-run*) printf '%s\\n' 'Would install 2' ' + nbtj-a==1.0' ' + nbtj-b @ file:///b.whl' >&2 ;;
*) echo "$*" > "$ASKED"; echo "$SSL_CERT_FILE" > "$ASKED.trusted" ;;
esac
"""


def test_an_image_without_an_installer_runs_the_uv_in_the_store_if_it_is_what_was_sent(
    folder, monkeypatch, capsys
):
    program = folder / "store" / "uv"
    program.parent.mkdir()
    program.write_text(UV)
    log = folder / "asked"
    monkeypatch.setenv("ASKED", str(log))
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/of/the/image.pem")
    # Hide pip, which this Python has, and uv, which this machine may have.
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    digest, machine = hashlib.sha256(UV.encode()).hexdigest(), os.uname().machine
    uv = {"url": str(program), "sha256": digest, "size": len(UV.encode()), "machine": machine}

    target = provide(folder / "node", "nbtj-a", uv=uv)

    assert f"--target {target} -- nbtj-a==1.0" in log.read_text()
    assert Path(f"{log}.trusted").read_text() == "/of/the/image.pem\n"
    assert os.listdir(folder / "node") == ["packages"]
    for wrong, note in (
        ({"machine": "another"}, ""),
        ({"sha256": "0" * 64}, "isn't used: it isn't what was stored there"),
        ({"url": str(folder / "none")}, "isn't used: [Errno 2]"),
    ):
        assert "neither pip nor uv" in str(refused(folder / "another", "nbtj-a", uv={**uv, **wrong}))
        assert note in capsys.readouterr().err
    program.write_bytes(b"\x7fELF of another machine")
    content = program.read_bytes()
    damaged = {**uv, "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    assert "neither pip nor uv" in str(refused(folder / "another", "nbtj-a", uv=damaged))
    assert "isn't used: [Errno 8]" in capsys.readouterr().err


def test_a_project_below_a_repositorys_root_is_installed_from_there(folder):
    project(folder / "repository" / "python", "nbtj_below")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "first")):
        subprocess.run(["git", *words], cwd=folder / "repository", check=True)

    url = f"git+{(folder / 'repository').as_uri()}#subdirectory=python"
    target = provide(folder / "node", f"nbtj_below @ {url}")

    assert (Path(target) / "nbtj_below.py").exists()


def test_uv_installs_where_it_is_there_and_pip_was_told_nothing(folder, monkeypatch):
    program = folder / "bin" / "uv"
    program.parent.mkdir()
    program.write_text(UV)
    program.chmod(0o755)
    log = folder / "asked"
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("ASKED", str(log))
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))

    target = provide(folder / "node", "nbtj-a", "nbtj-b @ file:///b.whl")

    line = f"pip install --no-progress --no-deps --target {target} -- nbtj-a==1.0 nbtj-b @ file:///b.whl\n"
    assert log.read_text() == line
    log.unlink()
    install(folder / "image", "nbtj-b", "1.0", "nbtj_b.py")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(folder / "image")  # a folder that uv wouldn't see
        patch.setenv("PYTHONPATH", str(folder / "image"))
        assert provide(folder / "more", "nbtj-b")
    assert not log.exists()
    monkeypatch.delenv("UV_FIND_LINKS")
    refused(folder / "other", "nbtj-none")  # by pip, which has an index
    assert not log.exists()
