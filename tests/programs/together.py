"""Use the background loop first from many threads at once; print the number of uses and of loops."""

import asyncio
import sys
import threading

from nbtorchjob.machine import loop

sys.setswitchinterval(1e-6)
ready = threading.Barrier(16)
loops: list[int] = []


async def which():
    return id(asyncio.get_running_loop())


def ask():
    ready.wait()
    loops.append(loop.start(which()).result())


threads = [threading.Thread(target=ask) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(loops), len(set(loops)))
