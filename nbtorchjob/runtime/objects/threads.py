"""Pickling of locks, queues and thread-local values: they are made anew for the threads of another process.

Locks, and objects built on them, travel only while no thread uses them: a thread that holds a lock or waits
here doesn't exist in the other process, so nothing there would end that.
"""

from __future__ import annotations

import contextlib
import contextvars
import copyreg
import gc
import pickle
import sys
import threading
from queue import SimpleQueue
from typing import Any, Callable, Dict, List, Tuple


def _reduce_lock(lock: Any) -> Any:
    if lock.locked():
        raise pickle.PicklingError("it is held, release it first")
    return make_lock, ()


def make_lock() -> Any:
    """Make a lock; ``threading.Lock`` is a function or a class, whose name differs between Pythons."""
    return threading.Lock()


def _reduce_rlock(lock: Any) -> Any:
    if repr(lock).startswith("<locked"):  # the thread that holds it can acquire it again
        raise pickle.PicklingError("it is held, release it first")
    return threading.RLock, ()


def reduce_condition(condition: Any) -> Any:
    """Reduce a condition, whose attributes include methods of its lock."""
    if not _plain(type(condition)):
        return NotImplemented
    if condition._waiters:
        raise pickle.PicklingError("a thread waits on it, end that first")
    of_lock = vars(threading.Condition(condition._lock))
    own = {name: value for name, value in vars(condition).items() if name not in of_lock}
    call = copyreg.__newobj__, (type(condition),)  # type: ignore[attr-defined]
    return (*call, (condition._lock, own), None, None, fill_condition)


def fill_condition(condition: Any, state: Tuple[Any, Dict[str, Any]]) -> None:
    """Fill in a condition's lock and attributes."""
    lock, own = state
    threading.Condition.__init__(condition, lock)
    vars(condition).update(own)


def reduce_queue(queue: Any) -> Any:
    """Reduce a queue; adds ``is_shutdown``, which Python 3.13 needs."""
    reduced = queue.__reduce_ex__(5)
    if not _plain(type(queue)) or not isinstance(reduced[2], dict):
        return reduced
    return (*reduced[:2], {"is_shutdown": False, **reduced[2]})


def _reduce_simple_queue(queue: Any) -> Any:
    many, inside = queue.qsize(), gc.get_referents(queue)  # get() would take an item from waiting threads
    items = inside[:many] if sys.version_info >= (3, 13) else inside[0][len(inside[0]) - many :]
    return SimpleQueue, (), items, None, None, fill_simple_queue


def fill_simple_queue(queue: Any, items: List[Any]) -> None:
    """Fill in a queue's items."""
    for item in items:
        queue.put(item)


def reduce_local(local: Any) -> Any:
    """Reduce a ``threading.local``: this thread's values, and the arguments of ``__init__`` in others."""
    if not _plain(type(local)):
        return NotImplemented
    own, inside = dict(vars(local)), gc.get_referents(local)
    args = next(item for item in inside if type(item) is tuple)
    *named, _ = [item for item in inside if type(item) is dict]  # the last one has all threads' values
    return make_local, (type(local), args, *named), own or None


def make_local(type_: Any, args: Tuple[Any, ...], *named: Dict[str, Any]) -> Any:
    """Make a ``threading.local`` without values."""
    return type_.__new__(type_, *args, **dict(*named))


def reduce_variable(variable: Any) -> Any:
    """Reduce a context variable, with its default and the value that it has in this context."""
    context = contextvars.copy_context()
    values = (context[variable],) if variable in context else None
    args: Tuple[Any, ...] = (variable.name,)
    with contextlib.suppress(LookupError):  # it has no default
        args = (*args, contextvars.Context().run(variable.get))
    return make_variable, args, values, None, None, set_variable


def make_variable(name: str, *default: Any) -> Any:
    """Make a context variable; no default isn't the same as a default of None."""
    return contextvars.ContextVar(name, default=default[0]) if default else contextvars.ContextVar(name)


def set_variable(variable: Any, values: Tuple[Any]) -> None:
    """Set a context variable in this context."""
    variable.set(*values)


def reduce_future(future: Any) -> Any:
    """Reduce a future that is done, without the callbacks that it has called."""
    if not _plain(type(future)):
        return NotImplemented
    if not future.done():
        raise pickle.PicklingError("it isn't done, wait for its result first")
    call = copyreg.__newobj__, (type(future),)  # type: ignore[attr-defined]
    return (*call, {**vars(future), "_done_callbacks": []})


def refuse_thread(obj: Any) -> Any:
    """Refuse a thread or an executor, which can run only in this process."""
    if not _plain(type(obj)):
        return NotImplemented
    raise pickle.PicklingError("cannot pickle what runs threads")


def _plain(type_: Any) -> bool:
    """Whether a class leaves the pickling of its objects to Python."""
    says = getattr(type_, "__getstate__", None)
    return (
        type_.__reduce__ is object.__reduce__
        and type_.__reduce_ex__ is object.__reduce_ex__
        and says in (None, getattr(object, "__getstate__", None))  # the latter since Python 3.11
    )


OF_PROCESS: Dict[Any, Callable[[Any], Any]] = {
    type(threading.Lock()): _reduce_lock,
    type(threading.RLock()): _reduce_rlock,
    SimpleQueue: _reduce_simple_queue,
}
