"""Files that a job in a pool leaves on its node, and files that it has changed there."""

import os
import subprocess
import sys
import textwrap

import pytest

from nbtorchjob.runtime.pool.ground import Ground


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Return a home with a file of the image, beside a temporary folder with the node's own folder."""
    home, own = tmp_path / "home", tmp_path / "tmp" / "nbtorchjob-1"
    (home / "of-image").mkdir(parents=True)
    (home / "of-image" / "file").write_text("as it was")
    own.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr("tempfile.tempdir", str(own.parent))
    monkeypatch.chdir(home)
    return home


def all_below(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_what_a_job_has_made_is_removed(home, tmp_path):
    ground = Ground(str(tmp_path / "tmp" / "nbtorchjob-1"))
    before = all_below(tmp_path)
    (home / "of-image" / "new").write_text("left")
    (home / ".cache" / "deep").mkdir(parents=True)
    (home / ".cache" / "deep" / "file").write_text("left")
    (tmp_path / "tmp" / "link").symlink_to(home / "of-image")

    assert ground.restore() == []
    assert all_below(tmp_path) == before
    assert (home / "of-image" / "file").read_text() == "as it was"


def test_the_nodes_own_folder_is_left_alone_but_for_what_ranks_cache_there(home, tmp_path):
    own = tmp_path / "tmp" / "nbtorchjob-1"
    ground = Ground(str(own))
    (own / "round-1").mkdir()
    for left in ("compiled/inductor", "packages/of_job", "files/of_job", "artifacts-7"):
        (own / left).mkdir(parents=True)
    (own / "artifacts-7.zip").write_bytes(b"on its way home")

    assert ground.restore() == []
    assert all_below(own) == ["artifacts-7.zip", "round-1"]


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.write_text("otherwise"),
        lambda file: file.unlink(),
        lambda file: file.chmod(0o600),
        lambda file: os.replace(file, file.with_name("moved")),
        lambda file: (file.unlink(), file.mkdir()),
        lambda file: os.link(file, file.with_name("link")),
    ],
)
def test_what_a_job_has_changed_of_the_image_is_named(home, tmp_path, change):
    ground = Ground(str(tmp_path / "tmp" / "nbtorchjob-1"))
    change(home / "of-image" / "file")

    assert ground.restore() == [str(home / "of-image" / "file")]


def test_what_is_mounted_is_left_alone(home, tmp_path):
    ground = Ground(str(tmp_path / "tmp" / "nbtorchjob-1"), [str(home / "of-image")])
    (home / "of-image" / "checkpoint").write_text("to be kept")
    (home / "new").write_text("left")

    assert ground.restore() == []
    assert all_below(home) == ["of-image", "of-image/checkpoint", "of-image/file"]


def test_what_is_mounted_in_an_empty_volumes_place_is_left_alone(home, tmp_path):
    image = str(home / "of-image")
    ground = Ground(str(tmp_path / "tmp" / "nbtorchjob-1"), [image], [image])
    (home / "of-image" / "checkpoint").write_text("to be kept")

    assert ground.restore() == []
    assert (home / "of-image" / "checkpoint").exists()


def test_bytecode_that_python_replaces_is_no_change(home, tmp_path):
    bytecode = home / "of-image" / "__pycache__" / "file.pyc"
    bytecode.parent.mkdir()
    bytecode.write_bytes(b"out of date")
    ground = Ground(str(tmp_path / "tmp" / "nbtorchjob-1"))
    bytecode.write_bytes(b"up to date")

    assert [ground.restore(), ground.restore()] == [[], []]
    assert not bytecode.exists()


def test_a_file_whose_times_were_set_back_has_changed_all_the_same(home, tmp_path):
    file = home / "of-image" / "file"
    status = file.stat()
    ground = Ground(str(tmp_path / "tmp" / "nbtorchjob-1"))
    file.write_text("as it is.")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    assert ground.restore() == [str(file)]


def test_a_folder_of_the_image_with_another_mode_has_changed(home, tmp_path):
    ground = Ground(str(tmp_path / "tmp" / "nbtorchjob-1"))
    (home / "of-image").chmod(0o700)
    (home / "of-image").chmod(0o500)

    assert ground.restore() == [str(home / "of-image")]


def test_nothing_is_looked_at_behind_a_link_that_took_a_folders_place(home, tmp_path):
    ground = Ground(str(tmp_path / "tmp" / "nbtorchjob-1"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("of somebody")
    os.rename(home / "of-image", tmp_path / "of-image")
    (home / "of-image").symlink_to(tmp_path / "elsewhere")

    assert str(home / "of-image") in ground.restore()
    assert (tmp_path / "elsewhere" / "file").exists()


IN_A_POD = """
import os, subprocess, sys
from nbtorchjob.runtime.pool.ground import Ground
import nbtorchjob.runtime.pool.ground as ground

def mount(where, *how):
    os.makedirs(where, exist_ok=True)
    subprocess.run(["mount", *how, where], check=True)

def write(*path):
    os.makedirs(os.path.dirname(os.path.join(*path)), exist_ok=True)
    open(os.path.join(*path), "w").write("left")

def shared_memory():
    return len(open("/proc/sysvipc/shm").readlines()) - 1

root = sys.argv[1]
home, claim, host = (os.path.join(root, name) for name in ("home", "home/claim", "host"))
os.environ["HOME"], os.environ["TMPDIR"] = home, os.path.join(root, "tmp")
os.makedirs(os.environ["TMPDIR"])
for folder in (home, host):
    os.makedirs(folder)
write(host, "of others")
mount(claim, "--bind", host)
os.chdir(home)
"""


def in_a_pod(tmp_path, text):
    """Run lines with their own mounts and shared memory; return the lines that they print."""
    begin = ["unshare", "--mount", "--ipc", "--propagation", "private"]
    if subprocess.run([*begin, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not have file systems of its own")
    return printed(begin, IN_A_POD, textwrap.dedent(text), tmp_path)


def printed(begin, *words):
    """Return the lines that a program prints; ``begin`` precedes Python, the last word is its argument."""
    *script, folder = words
    command = [*begin, sys.executable, "-c", "".join(script), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return done.stdout.splitlines()


WITHOUT_RIGHTS = """
import os, sys
from nbtorchjob.runtime.pool.ground import Ground

os.environ["HOME"] = os.environ["TMPDIR"] = sys.argv[1]
os.chdir(sys.argv[1])
before = Ground("own")
os.makedirs("closed/deep")
open("closed/deep/file", "w").close()
for mode, folder in ((0o000, "closed/deep"), (0o555, "closed")):
    os.chmod(folder, mode)
try:
    open("closed/more", "w")
except PermissionError:
    print(before.restore(), os.listdir("."))
"""


def test_what_lies_in_a_folder_that_a_job_has_closed_is_removed(tmp_path):
    begin = ["setpriv", "--bounding-set=-all"] if os.getuid() == 0 else []  # root without capabilities

    (tmp_path / "home").mkdir()
    assert printed(begin, WITHOUT_RIGHTS, tmp_path / "home") == ["[] []"]


def test_what_lies_behind_a_mount_stays(tmp_path):
    text = """
    before = Ground(os.path.join(root, "own"))
    write(claim, "checkpoint")
    mount(os.path.join(home, "new", "deep"), "--bind", host)
    write(home, "new", "beside")
    print(before.restore() == [os.path.join(home, "new"), os.path.join(home, "new", "deep")])
    print(sorted(os.listdir(host)), os.listdir(os.path.join(home, "new")))
    """
    assert in_a_pod(tmp_path, text) == ["True", "['checkpoint', 'of others'] ['deep']"]


def test_a_mount_over_the_images_files_is_named_alone(tmp_path):
    text = """
    write(home, "package", "file")
    before = Ground(os.path.join(root, "own"))
    mount(os.path.join(home, "package"), "-t", "tmpfs", "none")
    write(home, "package", "file")
    print(before.restore() == [os.path.join(home, "package")], os.listdir(os.path.join(home, "package")))
    """
    assert in_a_pod(tmp_path, text) == ["True ['file']"]


@pytest.mark.parametrize(("unseen", "stays"), [(False, []), (True, ["left"])])
def test_an_empty_volume_of_the_pod_is_cleared_and_a_claim_is_not(tmp_path, unseen, stays):
    text = f"""
    empty, of_kubelet = os.path.join(root, "empty"), os.path.join(root, "tmp")
    volume = os.path.join(root, "pods/1/volumes/kubernetes.io~empty-dir/tmp")
    os.makedirs(volume)
    os.makedirs(os.path.join(root, "disk"))
    mount(of_kubelet, "--bind", volume)
    mount(empty, "--bind", os.path.join(root, "disk"))
    before = Ground(os.path.join(root, "own"), [claim], [empty], unseen={unseen})
    for folder in (claim, of_kubelet, empty):
        write(folder, "left")
    print(before.restore(), os.listdir(of_kubelet), os.listdir(empty), sorted(os.listdir(claim)))
    """
    assert in_a_pod(tmp_path, text) == [f"[] {stays} [] ['left', 'of others']"]


@pytest.mark.parametrize(("shared", "stays"), [(False, "0 []"), (True, "1 ['left']")])
def test_shared_memory_goes_with_a_job_where_nobody_shares_it(tmp_path, shared, stays):
    text = f"""
    mount("/dev/shm", "-t", "tmpfs", "none")
    ground._alone = lambda: True
    Ground._places = lambda self: ["/dev/shm"]
    before = Ground(os.path.join(root, "own"), shared={shared})
    subprocess.run(["ipcmk", "-M", "4096"], check=True, stdout=subprocess.DEVNULL)
    write("/dev/shm", "left")
    print(before.restore(), shared_memory(), os.listdir("/dev/shm"))
    """
    assert in_a_pod(tmp_path, text) == [f"[] {stays}"]
