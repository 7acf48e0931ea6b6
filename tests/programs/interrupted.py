"""Interrupt the first use of the background loop at each moment; print the moments that break the loop."""

import itertools
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from nbtorchjob.machine import loop
from tests.interrupting import Interrupting

LIMIT = 60.0


async def work():
    return 1


for moment in itertools.count(1):
    begins = work()
    with Interrupting(moment) as there:
        loop.run(begins)
    if not there.interrupted:
        break
    got: list[int] = []
    other = threading.Thread(target=lambda got=got: got.append(loop.run(work())), daemon=True)
    other.start()
    other.join(LIMIT)
    begun = {thread.ident for thread in threading.enumerate()}
    if got != [1] or None in begun:
        print("moment", moment, got, begun)
    begins.close()
    loop._cached_loop.cache_clear()  # makes the next use a first use
print("interrupted" if moment > 40 else moment)
