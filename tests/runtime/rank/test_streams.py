import subprocess
import sys
import time

import pytest

from nbtorchjob.runtime.rank import streams

_PROGRAM = """
import os, sys, threading
from nbtorchjob.runtime.rank import streams
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


_TIMED = """
import os, sys
from nbtorchjob.runtime.rank import streams
streams.redirect(sys.argv[1])
print("one", flush=True)
times = sys.argv[1] + streams.TIMES
while not (os.path.exists(times) and os.path.getsize(times)):
    pass
print("last words")
"""


def test_what_was_written_by_when_stands_beside_the_log(folder):
    log = folder / "log"
    before = time.time()
    subprocess.run([sys.executable, "-c", _TIMED, str(log)], check=True)

    first = streams.read_time((folder / f"log{streams.TIMES}").read_bytes().splitlines()[0])

    assert log.read_text() == "one\nlast words\n"
    assert first is not None
    assert first[0] == len("one\n")
    assert before <= round(first[1] + 0.001, 3) <= time.time() + 0.001


def test_half_a_line_of_a_full_disk_says_no_time():
    assert [streams.read_time(line) for line in (b"12 1.500", b"12", b"", b"12 1.5 3")] == [
        (12, 1.5),
        None,
        None,
        None,
    ]
