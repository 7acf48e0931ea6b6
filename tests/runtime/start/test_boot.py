"""A payload in parts, or in a store, becomes one file again and runs in the same process."""

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.start import boot
from tests.patience import LIMIT

# In place of a payload: prints its process id and whether SIGTERM is blocked, and exits with 7.
PAYLOAD = b"""import os, signal, sys
print(os.getpid(), signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)
sys.exit(7)
"""


@pytest.fixture
def mounted(folder):
    """Return a folder as a pod has it mounted, with the source of ``boot`` as its job.pyz."""
    shutil.copy(boot.__file__, folder / "job.pyz")
    return folder


def start(mounted):
    env = {"PATH": os.environ["PATH"], "TMPDIR": str(mounted)}
    command = [sys.executable, mounted / "job.pyz"]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(mounted):
    process = start(mounted)
    out, err = process.communicate(timeout=LIMIT)
    return process, out, err


def ran(mounted):
    process, out, err = run(mounted)
    return process.returncode == 7 and out == f"{process.pid} True\n", err


def test_parts_are_joined_in_their_order(mounted):
    for number in range(12):
        size = 10
        part = PAYLOAD[number * size : None if number == 11 else (number + 1) * size]
        (mounted / f"part-{number:03}").write_bytes(part)
    assert ran(mounted) == (True, "")


@pytest.mark.parametrize("scheme", ["", "file"])
def test_a_store_has_it(scheme, mounted, tmp_path):
    shelf = tmp_path / "a shelf"
    shelf.mkdir()
    (shelf / "payload").write_bytes(PAYLOAD)
    url = (shelf / "payload").as_uri() if scheme else str(shelf / "payload")
    (mounted / "payload.url").write_text(f"{url}\n{hashlib.sha256(PAYLOAD).hexdigest()}\n")
    assert ran(mounted) == (True, "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{shelf}/payload\n" + "0" * 64, "isn't what was stored there"),
        ("{shelf}/payload\n", "isn't what was stored there"),
        ("{shelf}/nosuch", "No such file"),
        ("nosuch://bucket/payload", "nosuch"),
        (None, "payload.url"),
    ],
)
def test_what_can_not_be_had_is_said_in_one_line(text, says, mounted, tmp_path):
    (tmp_path / "payload").write_bytes(PAYLOAD)
    if text is not None:
        (mounted / "payload.url").write_text(text.format(shelf=tmp_path))
    process, out, err = run(mounted)
    assert process.returncode == exits.CONFIG_ERROR
    assert out == ""
    assert says in err
    assert err.count("\n") == 1


def test_sigterm_while_it_waits_for_a_store_ends_it(mounted):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (mounted / "payload.url").write_text(f"http://127.0.0.1:{silent.getsockname()[1]}/payload")
        process = start(mounted)
        with silent.accept()[0]:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=LIMIT)
    assert process.returncode == exits.CANCELLED
