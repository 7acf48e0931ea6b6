"""Have many threads be the first to use the background loop; say how many found one, and how many ones."""

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
