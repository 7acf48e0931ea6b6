"""The payload's ``__main__.py``. It parses on any Python 3, so that it can say what it needs."""

import os
import sys
from multiprocessing import util

if sys.version_info < (3, 8):
    sys.exit("nbtorchjob needs Python 3.8 or later on a node, and this is %s" % sys.version)

from nbtorchjob.runtime.node import main

if __name__ == "__main__":
    code = main(sys.argv[0])
    util._run_finalizers()  # type: ignore[attr-defined]  # they unlink the names of semaphores
    sys.stdout.flush()
    sys.stderr.flush()
    # An orderly end destroys torch's stores while their threads run, which now and then aborts (2.13).
    os._exit(code)
