"""The payload's ``__main__.py``. It parses on any Python 3, so that it can say what it needs."""

import os
import signal
import sys

# Processes that a rank's code starts run it, too (``spawned.py``), under the name "__mp_main__".
if __name__ == "__main__" and "NBTORCHJOB_STREAM" in os.environ:
    # Before anything else: as PID 1 this process would ignore a signal that arrives before its handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD))

if sys.version_info < (3, 8):
    sys.stderr.write("nbtorchjob needs Python 3.8 or later on a node, and this is %s\n" % sys.version)
    sys.exit(2)

from multiprocessing import util

from nbtorchjob.runtime.facts.injected import STREAM
from nbtorchjob.runtime.rank.spawned import CELLS, become_main
from nbtorchjob.runtime.start.init import run_node
from nbtorchjob.runtime.start.node import main


def run() -> None:
    """Run the node in this process, and end it."""
    code = main(sys.argv[0])
    util._run_finalizers()  # type: ignore[attr-defined]  # they unlink the names of semaphores
    sys.stdout.flush()
    sys.stderr.flush()
    # A normal exit destroys torch's stores while their threads run, which sometimes aborts the process.
    os._exit(code)


if __name__ == "__mp_main__":
    if CELLS in os.environ:
        from nbtorchjob.runtime.lab.turns import later  # only labs' payloads have it

        become_main(sys.argv[0], globals(), later)
    else:
        become_main(sys.argv[0], globals())
elif __name__ == "__main__":
    if STREAM in os.environ:
        os._exit(run_node(run))
    run()
