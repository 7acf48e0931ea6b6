"""``__main__`` in a process that a rank's code starts with "spawn" or "forkserver".

multiprocessing makes such a process run the file of its parent's ``__main__`` under the name ``__mp_main__``
(``multiprocessing.spawn``, CPython 3.14); a rank's is the payload. The names that the notebook's functions
and the cell see are unpickled there again, and these parts of the cell run:

- what precedes ``if __name__ == "__main__":``, if it has that line to keep the rest from such a process;
- else its imports, functions, classes, and the variables that it sets without calling anything;
- and the same parts of later cells that the rank has run, if it stays (``turns.py``), and of swaps.

A lookup of a name that only the rest of the cell sets fails with that reason, also in the rank's failure.
"""

from __future__ import annotations
import __future__

import ast
import os
import re
import signal
import sys
import time
import traceback
from contextlib import suppress
from multiprocessing import connection
from typing import Any, Callable, Dict, Iterable, List, Set

from nbtorchjob.runtime.facts import errors
from nbtorchjob.runtime.objects import sources
from nbtorchjob.runtime.rank import call
from nbtorchjob.runtime.store.payload import Payload, lay_given

_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Pass)
_DOES = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom)
# Calls that make a class, or something as good as one.
_MAKERS = ("namedtuple", "NamedTuple", "TypedDict", "Enum", "NewType", "TypeVar", "partial", "device")
_FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
_UNDEFINED = re.compile(r"NameError: name '(\w+)' is not defined")
# Messages of torch's spawn and DataLoader, and of concurrent.futures (CPython 3.14).
_ENDED = re.compile(r"terminated with exit code|exited unexpectedly|terminated abruptly")
_LAST_WORDS = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)(?:: .*)?$", re.MULTILINE)
_PLACE = re.compile(r"^  File \"(.+)\", line (\d+), in .+$", re.MULTILINE)
_BELOW_PLACE = 3  # lines: the error's, and before it the source's and its marks
_TAIL = 1 << 16
CELLS = "NBTORCHJOB_CELLS"  # the path of a file with the later cells of a rank that stays

Later = Callable[[Dict[str, Any]], Iterable[str]]


def become_main(path: str, names: Dict[str, Any], later: Later = lambda space: ()) -> None:
    """Replace the globals ``names`` by those of ``__mp_main__`` for the payload at ``path``.

    ``later`` defines what later cells define, and returns the names that they set.
    """
    from nbtorchjob.runtime.objects import (
        rebuilt,
    )  # imported late: a node's first process imports this module without using it

    payload = Payload(path)
    payload.show_sources()
    packed = rebuilt.loads(payload.call(), payload.buffers())
    rebuilt.held.extend(packed.get("held", ()))
    if payload.header.get("given"):
        lay_given(packed, None)
    space = call.namespace_of(packed)
    # For the processes that this one starts itself.
    space.update(__name__="__mp_main__", __file__=path, __spec__=None)
    missed: Set[str] = set()
    for cell in packed.get("cells", [packed]):
        if "cell" in cell and call.is_mine(cell):
            missed.update(define(cell, space))
    missed.update(later(space))
    replay = call.replay_in(space)
    if replay is not None:
        missed.update(replay.define(_is_quiet))
    own_names = missed - set(space)

    def __getattr__(name: str) -> Any:
        if name in own_names:
            # Not an AttributeError: pickle would replace its message.
            raise LookupError(_why(name))
        raise AttributeError("module '__main__' has no attribute %r" % name)

    space["__getattr__"] = __getattr__
    names.clear()
    names.update(space)


def define(packed: Dict[str, Any], space: Dict[str, Any]) -> Iterable[str]:
    """Define what a cell defines; yield the names that it sets."""
    text, filename, flags = packed["cell"], packed["filename"], packed["flags"]
    sources.show(text, filename)
    tree = ast.parse(text, filename)
    guard = next((n for n, stmt in enumerate(tree.body) if _is_guard(stmt)), None)
    if guard is not None:
        call.execute(ast.Module(tree.body[:guard], []), filename, flags, space)
    else:
        whole = compile(tree, filename, "exec", flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
        flags |= whole.co_flags & _FUTURE
        for stmt in filter(_is_quiet, tree.body):
            # It may need what the rest of the cell sets; a lookup of its names explains that.
            with suppress(Exception):
                call.execute(ast.Module([stmt], []), filename, flags, space)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name


def _is_guard(stmt: ast.stmt) -> bool:
    if not isinstance(stmt, ast.If) or not isinstance(stmt.test, ast.Compare):
        return False
    sides = [stmt.test.left, *stmt.test.comparators]
    named = any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides)
    return named and any(isinstance(side, ast.Constant) and side.value == "__main__" for side in sides)


def _is_quiet(stmt: ast.stmt) -> bool:
    """Whether a statement only defines something, and may run again."""
    if isinstance(stmt, (ast.Assign, ast.AnnAssign)):
        targets = stmt.targets if isinstance(stmt, ast.Assign) else [stmt.target]
        if any(isinstance(node, (ast.Attribute, ast.Subscript)) for t in targets for node in ast.walk(t)):
            return False
        value = stmt.value
        if isinstance(value, ast.Call):
            function = value.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name in _MAKERS:
                return True
        return value is None or not any(isinstance(node, _DOES) for node in ast.walk(value))
    if isinstance(stmt, ast.If):
        return all(map(_is_quiet, [*stmt.body, *stmt.orelse]))
    if isinstance(stmt, ast.Try):
        handled = [statement for handler in stmt.handlers for statement in handler.body]
        return all(map(_is_quiet, [*stmt.body, *handled, *stmt.orelse, *stmt.finalbody]))
    return isinstance(stmt, _DEFINES)


def _why(name: str) -> str:
    return (
        "%r is set by code of the cell that a process started with spawn or forkserver doesn't run again: "
        "pass it as an argument, or set it in an earlier cell of the notebook" % name
    )


_LOADER = os.path.join("torch", "utils", "data", "dataloader.py")
_END_S = 5.0  # for a worker to end after its connections: the kernel of a busy machine takes its time
_UNPICKLES = "reduction.pickle.load(from_parent)"  # in a traceback of multiprocessing's (CPython 3.8 to 3.14)
_UNPICKLED = (
    "exited with code %d as it couldn't unpickle its dataset or the loader's functions, which must work in a "
    "new process; with multiprocessing_context='fork' nothing is pickled"
)
_CURES = {
    "SIGKILL": ", most likely as memory ran out: use fewer workers or smaller batches",
    "SIGBUS": ", as /dev/shm is full: raise --shm, or use fewer workers",
    "SIGSEGV": ": a native extension accessed invalid memory; with num_workers=0 the rank itself crashes",
}


def notes(exc: BaseException, log: str) -> List[str]:
    """Return details on a process that the rank started, if ``exc`` reports only that the process failed.

    Its last words are in the rank's ``log``, as it shares the rank's stderr.
    """
    text, main = errors.text_of(exc), sys.modules["__main__"]
    reasons = [_why(name) for name in sorted(set(_UNDEFINED.findall(text))) if hasattr(main, name)]
    tail = ""
    if _ENDED.search(text):
        with suppress(OSError), open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            tail = file.read().decode(errors="replace")
    last = ["That process said: %s" % _placed(words, tail) for words in list(_LAST_WORDS.finditer(tail))[-1:]]
    exited = _UNPICKLED if _UNPICKLES in tail else "exited with code %d: see its output in the log"
    for frame, _ in traceback.walk_tb(errors.traceback_of(exc)):
        # Only torch's objects are inspected: the `__getattr__` of others may raise, and hide the failure.
        loader = frame.f_locals.get("self") if frame.f_code.co_filename.endswith(_LOADER) else None
        workers = getattr(loader, "_workers", ())
        if isinstance(workers, list) and workers:
            ended = _ended_workers(workers, exc, exited)
            break
    else:
        ended = []
    return reasons + last + ended


def _placed(words: re.Match[str], text: str) -> str:
    """Return an error's line and where it was raised: the line for a lost semaphore, alone, names nothing."""
    places = list(_PLACE.finditer(text, 0, words.start()))
    if not places or text.count("\n", places[-1].end(), words.start()) > _BELOW_PLACE:
        return words.group()
    return "%s, at line %s of %s" % (words.group(), places[-1].group(2), places[-1].group(1))


def _ended_workers(workers: List[Any], exc: BaseException, exited: str) -> List[str]:
    """Return how the workers of a DataLoader ended while it was getting its next batch.

    torch often reports just the end of a connection: to the worker that was to send a file descriptor along
    with its batch.
    """
    if errors.is_a(exc, EOFError, ConnectionError):
        until = time.monotonic() + _END_S
        closed = connection.wait([worker.sentinel for worker in workers], _END_S)
        for worker in workers:
            if worker.sentinel in closed:  # its sentinel is a file, and may be closed before it has ended
                worker.join(max(0.0, until - time.monotonic()))
    ended = []
    for number, worker in enumerate(workers):
        code = worker.exitcode
        if code and code < 0:
            name = signal.Signals(-code).name
            ended.append("DataLoader worker %d was ended by %s%s" % (number, name, _CURES.get(name, "")))
        elif code:
            ended.append("DataLoader worker %d %s" % (number, exited % code))
    return ended
