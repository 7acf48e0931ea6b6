"""A process's memory in huge pages."""

import os
import subprocess
import sys

import pytest

# What lies in huge pages of 32 MiB, before and after, and whether it is what it was.
PROGRAM = """
import re
from nbtorchjob.machine import processes as pages

def huge():
    with open("/proc/self/smaps_rollup") as file:
        return int(re.search(r"AnonHugePages: +(\\d+)", file.read())[1])

text = b"0123456789abcdef" * (2 << 20)
before = huge()
pages.merge()
print(huge() - before > 16 << 10, text == b"0123456789abcdef" * (2 << 20))
"""


@pytest.mark.skipif(
    tuple(map(int, os.uname().release.split(".")[:2])) < (6, 1), reason="Linux has it from 6.1 on"
)
def test_merged_memory_lies_in_huge_pages_and_is_what_it_was():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
