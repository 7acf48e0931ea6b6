"""What the system refused a node: the limit that it met, and whether another attempt would meet it again.

``Too many open files`` doesn't say how many are allowed. That is set by the limits of the process and of its
cgroups, which only the node can read; ``state/failure/table.SHORTAGES`` parses the sentences made here.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import tempfile
from contextlib import suppress
from dataclasses import replace
from typing import Iterator, List, Optional

from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.runtime.facts.injected import FOLDER
from nbtorchjob.runtime.node.meter import HERE, Memory, Roots, cgroups
from nbtorchjob.runtime.rendezvous import groups

# torch's own errors contain the number, as in "(errno: 24 - Too many open files)"; those of the C++ library
# contain only the words.
_IN_TEXT = re.compile(r"\berrno: (\d+)")
_WORDS = {os.strerror(number): number for number in (errno.EMFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOSPC)}
_WORDS["can't start new thread"] = errno.EAGAIN  # CPython's own (3.14)
FULL = (errno.ENOSPC, errno.EDQUOT)


def number_of(exc: Optional[BaseException]) -> int:
    """Return the errno behind an exception; 0 if there is none."""
    with suppress(Exception):  # its class may be a user's, whose attributes may raise
        while exc is not None:
            if isinstance(exc, OSError) and exc.errno:
                return exc.errno
            if isinstance(exc, MemoryError):
                return errno.ENOMEM
            if isinstance(exc, RuntimeError):
                match = _IN_TEXT.search(str(exc))
                number = int(match.group(1)) if match else 0
                number = number or next((code for words, code in _WORDS.items() if words in str(exc)), 0)
                if number:
                    return number
            exc = exc.__cause__ or exc.__context__
    return 0


def code_of(exc: BaseException) -> int:
    """Return the exit code of a node whose agent failed with this exception.

    The next attempt meets a limit of the process or a read-only folder again. Memory, processes and disk
    space that others use up may be free by then, or on another host.
    """
    again = number_of(exc) not in (errno.EMFILE, errno.EROFS)
    return exits.INFRASTRUCTURE_ERROR if again else exits.CONFIG_ERROR


def explained(error: Error, exc: BaseException, roots: Roots = HERE) -> Error:
    """Return the description of an exception with the limit that it met as a note, in place of its frames.

    The frames in torch or Python add nothing to that; the node's log has them.
    """
    met = limit_met(exc, roots)
    return replace(error, frames=(), cause=None, notes=(*error.notes, met)) if met else error


def limit_met(exc: BaseException, roots: Roots = HERE) -> str:
    """Return which limit an exception met, and its value; "" if it met no known limit."""
    try:
        number = number_of(exc)
        if number == errno.EMFILE:
            return "a process may have this many files open: %s" % _limit("RLIMIT_NOFILE")
        if number == errno.ENFILE:
            return "this machine may have this many files open: %s (fs.file-max)" % _read(
                os.path.join(roots.proc, "sys", "fs/file-max")
            )
        if number == errno.EAGAIN:
            processes: List[str] = []
            own = _limit("RLIMIT_NPROC")
            processes.append("this user may have %s" % (own or "any number of them"))
            processes += _addresses()  # a thread's stack may not fit
            for folder in cgroups(roots, "pids")[1]:
                with suppress(OSError, ValueError):  # no such file; "max"
                    most = int(_read(os.path.join(folder, "pids.max")))
                    processes.append(
                        "its cgroup has %s of %d (pids.max)"
                        % (_read(os.path.join(folder, "pids.current")), most)
                    )
            return "no more processes or threads may be started: " + "; ".join(processes)
        if number == errno.ENOMEM:
            memory = [*_addresses()]
            with suppress(OSError, KeyError, ValueError):
                used, most = Memory(roots).read()
                memory.append("%s of %s are used" % (_size(used), _size(most)))
            return "there is no memory for it: " + "; ".join(memory)
        if number in FULL:
            folder = _path(exc) or _fullest()
            while not os.path.isdir(folder):
                folder = os.path.dirname(folder) or "."
            status = os.statvfs(folder)
            total = status.f_blocks * status.f_frsize
            return "%s is full: %s of %s are free" % (folder, _size(_free(folder)), _size(total))
        if number == errno.EROFS:
            return "%s is read-only" % (_path(exc) or tempfile.gettempdir())
        if groups.ITSELF in str(exc):
            return "its ranks meet at that address"
        return ""
    except Exception:  # finding out may need the very resource that is exhausted
        return ""


def _limit(name: str) -> str:
    """Return a limit of this process, as ``256 (RLIMIT_NOFILE, hard limit 4096)``; "" if unlimited."""
    soft, hard = resource.getrlimit(getattr(resource, name))
    if soft == resource.RLIM_INFINITY:
        return ""
    return "%d (%s, hard limit %s)" % (soft, name, "none" if hard == resource.RLIM_INFINITY else hard)


def _addresses() -> Iterator[str]:
    for name in ("RLIMIT_AS", "RLIMIT_DATA"):
        soft, _ = resource.getrlimit(getattr(resource, name))
        if soft != resource.RLIM_INFINITY:
            yield "a process may have %s of memory (%s)" % (_size(soft), name)


def _fullest() -> str:
    """Return the fullest folder that a job's process writes to, as the error of a write names no file.

    Not ``tempfile.gettempdir()``: it tries folders by writing to them, so it skips one on a full disk.
    """
    temporary = os.environ.get("TMPDIR") or "/tmp"
    places = (os.environ.get(FOLDER, os.curdir), os.curdir, temporary)
    return os.path.abspath(min(filter(os.path.isdir, places), key=_free))


def _free(place: str) -> int:
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize


def _path(exc: Optional[BaseException]) -> str:
    while exc is not None:
        if isinstance(exc, OSError) and isinstance(exc.filename, str):
            return exc.filename
        exc = exc.__cause__ or exc.__context__
    return ""


def _size(size: float) -> str:
    units: List[str] = ["bytes", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        del units[0]
    return "%.3g %s" % (size, units[0])


def _read(path: str) -> str:
    with open(path) as file:
        return file.read().strip()
