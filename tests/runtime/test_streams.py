import subprocess
import sys

import pytest

_PROGRAM = """
import os, sys, threading
from nbtorchjob.runtime import streams
threading.Thread.start = lambda self: None  # what flushes in the background
streams.redirect(sys.argv[1], at_once=sys.argv[2] == "1")
print("one")
os.write(1, b"two\\n")
print("three", file=sys.stderr)
print("four", end="")
os._exit(0)
"""


@pytest.mark.parametrize(
    ("at_once", "lines"), [("0", ["two", "one", "three"]), ("1", ["one", "two", "three", "four"])]
)
def test_what_is_asked_for_at_once_waits_in_no_buffer(folder, at_once, lines):
    log = folder / "log"
    subprocess.run([sys.executable, "-c", _PROGRAM, str(log), at_once], check=True)
    assert log.read_text().splitlines() == lines
