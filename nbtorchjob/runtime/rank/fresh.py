"""Makes a rank start as a fresh process would, whatever it was forked from.

Warm ranks are forked from a process that has imported torch, and multiprocessing starts every rank. State
that either leaves in a process, and that a plain script wouldn't have, is reset here;
``tests/backends/local/launch/test_start.py`` compares the two.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import multiprocessing
import multiprocessing.process
import multiprocessing.util
import os
import signal
import sys
import tempfile
import weakref
from contextlib import suppress
from multiprocessing import resource_tracker
from typing import Any

from nbtorchjob.runtime.facts.injected import FOLDER

# Read by Python and libraries as they are loaded, which was in the process that a rank was forked from.
_READ_AT_IMPORT = (
    *("LD_", "GLIBC_", "MALLOC_", "LANG", "LC_", "PYTHON"),
    *("TORCH", "PYTORCH", "ATEN_", "NPY_", "MKL_", "KMP_", "OMP_", "GOMP_", "OPENBLAS_", "SYMPY_", "MPMATH_"),
    "THP_",
)
# Read later. torch sets the first when a kernel makes an optimizer, scikit-learn's threadpools the next two;
# ``use_threads`` applies OMP_NUM_THREADS, and PYTHONUNBUFFERED takes effect as streams are made.
_READ_LATER = (
    *("TORCHINDUCTOR_CACHE_DIR", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "OMP_NUM_THREADS"),
    *("PYTHONUNBUFFERED", "TORCHELASTIC_"),
)

# CPython keeps no name for the main process's class: this is the class of the process that imports this
# module first, the agent, or a rank that isn't set up yet.
_MAIN: Any = type(multiprocessing.current_process())


def too_late(name: str) -> bool:
    """Whether a variable has no effect, or only some, in a rank that was forked before it was set."""
    return name.startswith(_READ_AT_IMPORT) and not name.startswith(_READ_LATER)


def start() -> None:
    """Reset the state that this process inherited from the one that it was forked from."""
    # A forked rank inherits the agent's handlers, and the template ignores SIGINT.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    _be_main_process()
    if FOLDER in os.environ:
        keep_sockets(os.environ[FOLDER])
    # Use a resource tracker of its own, started once there is something to track.
    # One shared with other processes removes what this process leaves in shared memory only when they have
    # ended.
    tracker: Any = getattr(resource_tracker, "_resource_tracker", None)  # private to CPython (3.14)
    fd = getattr(tracker, "_fd", None)
    if fd is not None:
        tracker._fd = tracker._pid = None
        os.close(fd)
    # Programs that the code runs must not inherit this process's files: the forkserver marks none of them.
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            if int(name) > 2:
                os.set_inheritable(int(name), False)
        except OSError:  # the folder's own
            pass
    # At exit, torch tears down its 134 operator libraries: 70 ms in a rank, which has to copy that memory.
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):  # private to CPython (3.14)
        finalizer.atexit = False
    # Draw seeds from the system: otherwise, all forks of one process would continue its random numbers.
    # Python does that for `random` at each fork. torch's default generator draws its seed when it is
    # made, which was in the process that imported torch; the devices' generators are made when they are
    # first used.
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()  # `torch.seed` would seed all devices with one number
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    tempfile.tempdir = None  # TMPDIR may differ now
    gc.freeze()  # existing objects aren't the program's: `streams.flush_files` finds its files by that


def _be_main_process() -> None:
    """Make multiprocessing treat this process as a program's main process.

    Otherwise, code that checks for the main process would see another, and all ranks of a pool would share
    one authentication key.
    """
    # The method that started this rank is its default now: processes that the user's code starts
    # (DataLoader's workers) would look for the notebook's classes and not find them.
    multiprocessing.set_start_method(None, force=True)
    # Every user of the machine can reach such sockets, and make a forkserver run code (CVE-2022-42919).
    util: Any = multiprocessing.util
    util.abstract_sockets_supported = False
    process: Any = multiprocessing.process
    if _MAIN.__name__ == "_MainProcess":  # private to CPython (3.14); without it the rank has a worker's name
        process._current_process = _MAIN()
        process._parent_process = None
        process._children = set()
        process._process_counter = itertools.count(1)
    process.ORIGINAL_DIR = os.getcwd()


def keep_sockets(folder: str) -> None:
    """Make multiprocessing put its sockets in ``folder``, the node's own, which is removed with the job.

    Its default, a folder ``pymp-…`` among the machine's temporary files, stays there forever if the process
    is killed. It keeps the default if the path in ``folder`` is too long for a socket, or can't be made.
    """
    place = os.path.join(folder, "mp")
    if len(os.fsencode(place)) > _LONGEST:
        return
    with suppress(OSError):
        os.makedirs(place, 0o700, exist_ok=True)
        current: Any = multiprocessing.current_process()
        if hasattr(current, "_config"):  # private to CPython (3.8 to 3.14); its child processes inherit it
            current._config["tempdir"] = place


_LONGEST = 107 - len("/listener-12345678")  # bytes; a socket's path has at most 107 (Linux)


def use_threads() -> None:
    """Make torch and numpy use as many threads as ``OMP_NUM_THREADS`` says.

    They read it when they are loaded: too early, in the process that this one was forked from. The ranks'
    template does this for them: in a fork, numpy's library starts threads that compute nothing for 25 ms.
    """
    global _threads
    number = os.environ.get("OMP_NUM_THREADS", "")
    if not number.isdigit() or number in ("0", _threads):
        return
    import torch

    _threads = number
    torch.set_num_threads(int(number))
    # numpy has no function for this; its library is found among those of this process (Linux).
    paths = set()
    with suppress(OSError), open("/proc/self/maps", errors="replace") as file:
        paths = {line.split(None, 5)[-1].rstrip("\n") for line in file if "openblas" in line}
    for path in paths:
        if "openblas" in os.path.basename(path) and ".so" in path:
            library = ctypes.CDLL(path)
            for name in _OPENBLAS:
                if hasattr(library, name):
                    getattr(library, name)(int(number))


_threads = ""  # the number that is in use already, in this process or the one that it was forked from
# The function's name in numpy's wheels (2.4, 1.26), and in a library that a distribution links itself.
_OPENBLAS = (
    "scipy_openblas_set_num_threads64_",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)
