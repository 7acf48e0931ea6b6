import subprocess
import sys
import time

import pytest

from nbtorchjob.runtime.store import stream

_PROGRAM = """
import os, sys, threading
from nbtorchjob.runtime.store import stream
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


_REPLACED = """
import contextlib, io, os, sys, warnings
from nbtorchjob.runtime.rank import streams

class Tee:
    def __init__(self, stream):
        self.write = stream.write

streams.redirect(sys.argv[1])
with contextlib.ExitStack() as stack:
    exec(sys.argv[2])
    warnings.warn("look out")
streams.flush()
os._exit(0)  # as ranks do: Python's own end asks stdout for a flush()
"""


@pytest.mark.parametrize(
    "replaces",
    [
        "sys.stdout = None",
        "stack.enter_context(contextlib.redirect_stdout(None))",
        "sys.stdout = Tee(sys.stdout)",
        "sys.stdout = open(os.devnull, 'w'); sys.stdout.close()",
        "sys.stdout = io.TextIOWrapper(sys.stdout.detach())",
        "sys.stdout.close()",
    ],
)
def test_a_program_may_replace_or_close_stdout_and_still_warn(folder, replaces):
    log = folder / "log"
    subprocess.run([sys.executable, "-c", _REPLACED, str(log), replaces], check=True)
    assert "UserWarning: look out" in log.read_text()


_TIMED = """
import os, sys
from nbtorchjob.runtime.store import stream
from nbtorchjob.runtime.rank import streams
streams.redirect(sys.argv[1])
print("one", flush=True)
times = sys.argv[1] + stream.TIMES
while not (os.path.exists(times) and os.path.getsize(times)):
    pass
print("last words")
"""


def test_what_was_written_by_when_stands_beside_the_log(folder):
    log = folder / "log"
    before = time.time()
    subprocess.run([sys.executable, "-c", _TIMED, str(log)], check=True)

    first = stream.read_mark((folder / f"log{stream.TIMES}").read_bytes().splitlines()[0])

    assert log.read_text() == "one\nlast words\n"
    assert first is not None
    assert first[0] == len("one\n")
    assert before <= round(first[1] + 0.001, 3) <= time.time() + 0.001


_BOTH = """
import os, subprocess, sys, time
from nbtorchjob.runtime.store import stream
from nbtorchjob.runtime.rank import streams
streams.redirect(sys.argv[1])

def pause():  # until the index has all that was written
    path, end = sys.argv[1] + stream.TIMES, os.path.getsize(sys.argv[1])
    while not (os.path.exists(path) and ("\\n%d " % end) in "\\n" + open(path).read()):
        time.sleep(0.001)

print("out", end="")
print("err", file=sys.stderr)
print(" out")
sys.stderr.write("err ")
print("out", flush=True)
sys.stderr.flush()
subprocess.run("echo child", shell=True)
pause()
subprocess.run("echo child >&2", shell=True)
pause()
os.write(2, b"library\\n")
if os.fork() == 0:
    sys.stderr.write("worker\\n")
    os._exit(0)
os.wait()
saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
os.dup2(null, 2)
print("lost", file=sys.stderr)
os.dup2(saved, 2)
print("out")
streams.flush()
os.write(2, b"last words")
os.kill(os.getpid(), 9)
"""


def by_stream(log):
    """Return a log's stdout and stderr, divided by its index; bytes without a mark count as stderr."""
    data, at, parts = log.read_bytes(), 0, {False: b"", True: b""}
    lines = log.with_name(log.name + stream.TIMES).read_bytes().splitlines()
    marks = [mark for mark in map(stream.read_mark, lines) if mark is not None]
    for offset, _, stderr in [*marks, stream.Mark(len(data), 0.0, True)]:
        assert offset >= at
        parts[stderr] += data[at:offset]
        at = offset
    return parts[False].decode(), parts[True].decode()


def test_each_byte_belongs_to_the_stream_that_it_was_written_to(folder):
    log = folder / "log"
    subprocess.run([sys.executable, "-c", _BOTH, str(log)], check=False)

    assert log.read_text() == ("outerr\n out\nerr out\nchild\nchild\nlibrary\nworker\nout\nlast words")
    assert by_stream(log) == (
        "out out\nout\nchild\nout\n",
        "err\nerr child\nlibrary\nworker\nlast words",
    )


def test_half_a_line_of_a_full_disk_marks_nothing():
    lines = (b"12 1.500", b"12 1.500 2", b"12", b"", b"12 1.5 3")
    assert [*map(stream.read_mark, lines)] == [(12, 1.5, False), (12, 1.5, True), None, None, None]
