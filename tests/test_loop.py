"""The one background loop, whoever comes to it first."""

import subprocess
import sys

TOGETHER = """
import asyncio, sys, threading
from nbtorchjob import loop
sys.setswitchinterval(1e-6)
ready, found = threading.Barrier(16), []

async def which():
    return id(asyncio.get_running_loop())

def ask():
    ready.wait()
    found.append(loop.start(which()).result(30))

threads = [threading.Thread(target=ask) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(found), len(set(found)))
"""


def test_threads_that_come_first_together_share_one_loop():
    done = subprocess.run([sys.executable, "-c", TOGETHER], capture_output=True, text=True, timeout=60)

    assert done.stdout.split() == ["16", "1"]
