"""Follow a job, also from a fork, by the same handle and by a new one; print which of them see its end."""

import os
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from nbtorchjob import attach
from tests.backends.local.acted import Acted
from tests.patience import LIMIT

acted = Acted()
acted.begin()
job = attach(acted.name)
heard = threading.Event()
job.subscribe(lambda state: heard.set())
heard.wait(LIMIT)
child = os.fork()
if child == 0:
    print("fork", job.wait(LIMIT), attach(acted.name).wait(LIMIT))
else:
    acted.end()
    os.waitpid(child, 0)
    print("parent", job.wait(LIMIT))
