"""A process's memory in huge pages, and the processes of a group."""

import os
import subprocess
import sys

import pytest

from nbtorchjob.machine import processes

# Prints whether most of 32 MiB then lies in huge pages or the kernel has none, and whether its content is
# unchanged. While memory is fragmented, the kernel refuses some pages (ENOMEM), and others a moment later.
PROGRAM = """
import ctypes
import errno
import mmap
import re
from nbtorchjob.machine import processes

HUGE, COLLAPSE = 2 << 20, 25

def huge():
    with open("/proc/self/smaps_rollup") as file:
        return int(re.search(r"AnonHugePages: +(\\d+)", file.read())[1])

def merged():
    processes.merge()
    return huge() - before > 16 << 10

def none_left():
    libc = ctypes.CDLL(None, use_errno=True)
    with mmap.mmap(-1, 32 * HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as room:
        place = ctypes.c_char.from_buffer(room)
        start = -(-ctypes.addressof(place) // HUGE) * HUGE
        del place
        room.write(bytes(len(room)))
        pages = [ctypes.c_void_p(start + number * HUGE) for number in range(31)]
        refused = [libc.madvise(page, ctypes.c_size_t(HUGE), COLLAPSE) for page in pages]
        return any(refused) and ctypes.get_errno() == errno.ENOMEM

text = b"0123456789abcdef" * (2 << 20)
before = huge()
if any(merged() for _ in range(3)):
    print("merged")
else:
    print("none left" if none_left() else "not merged")
print(text == b"0123456789abcdef" * (2 << 20))
"""


@pytest.mark.skipif(
    tuple(map(int, os.uname().release.split(".")[:2])) < (6, 1), reason="Linux has it from 6.1 on"
)
def test_merged_memory_lies_in_huge_pages_and_is_what_it_was():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    outcome, same = done.stdout.splitlines()
    assert same == "True"
    if outcome == "none left":
        pytest.skip("the kernel has no huge pages to give: the machine's memory is in pieces")
    assert outcome == "merged"


def test_processes_of_others_that_proc_hides_are_in_no_group(monkeypatch):
    own, stat = os.getpid(), processes._stat

    def hidden(pid):  # as with hidepid=1
        if pid != own:
            raise PermissionError(1, "Operation not permitted")
        return stat(pid)

    monkeypatch.setattr(processes, "_stat", hidden)

    assert list(processes.of_group(os.getpgrp())) == [own]
