"""Collectives go on waiting while a rank is stopped in the debugger, though their time is over.

A call that waits can't be given more time (gloo and NCCL): its time-out is part of it. So the
process groups of a job whose ranks may stop are made with a time-out that never passes, and this module
enforces the one that the code asked for: a thread checks which calls are pending (torch's flight recorder has
collectives, gloo's sends and receives are known from the threads that wait in them), and has the rank fail as
torch would. The number of stopped ranks is in the store where the round's groups meet. A time-out that is
passed to a call itself (``wait(timeout)``, ``monitored_barrier``) stays torch's.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import signal
import sys
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Callable, Dict, Iterator, Optional, Tuple

from nbtorchjob.runtime import torch_versions
from nbtorchjob.runtime.facts.errors import HERE
from nbtorchjob.runtime.look import recorder

_NEVER = timedelta(days=30)
_EVERY_S = 0.25
_UNNAMED = "operation"  # what a thread waits for, if that is unknown
_STORE_S = 10.0
_STOPPED, _CHANGES, _WHO = "stopped", "changes", "who"  # in the store, of each round

# What a thread waits for: its name, since when by the monotonic clock, and how long it may take.
_Wait = Tuple[str, float, float]


class Patience:
    """Enforces the time-outs of this process's collectives.

    The ranks of the round ``round_`` share their state in the store at ``address``.
    ``fail`` is called in a thread with the exception that torch would raise, and doesn't return.
    """

    def __init__(self, address: str, round_: int, fail: Callable[[BaseException], Any]) -> None:
        self._address = address
        # All jobs of a pool share one store, and a rank that is killed while stopped doesn't reset its words.
        self._word = "nbtorchjob/debug/round-%d/%%s" % round_
        self._fail = fail
        self._store: Any = None
        self._limits: Dict[str, float] = {}  # by group
        self._inside: Dict[int, _Wait] = {}  # by thread
        self._begun: Dict[Tuple[str, int, float], float] = {}  # when the pending calls were seen first
        self._since = 0.0  # no rank was stopped from then on
        self._changes = 0
        self._notice_shown = False
        self._meeting = threading.Lock()
        self.installed = False

    def install(self) -> None:
        """Have all groups made with a time-out that never passes."""
        self.installed = True
        c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
        for detail in (torch_versions.NEW_GROUP, torch_versions.STORE_BARRIER):
            meets = detail.get()
            if meets is not None:
                detail.replace(self._meets(meets))
        set_timeout = torch_versions.SET_TIMEOUT.get()
        if set_timeout is not None:
            torch_versions.SET_TIMEOUT.replace(self._set(set_timeout))
        meet = torch_versions.MEET.get()
        if meet is not None:
            torch_versions.MEET.replace(self._finds(meet))
        inner = c10d.Work.wait

        @functools.wraps(inner)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            if args or kwargs or not self._limits:
                return inner(work, *args, **kwargs)
            # Its group is unknown.
            with self._within(_UNNAMED, timedelta(seconds=max(self._limits.values()))):
                return inner(work)

        c10d.Work.wait = wait
        threading.Thread(target=self._watch, daemon=True, name="patience").start()

    def _finds(self, inner: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def rendezvous(*args: Any, **options: Any) -> Iterator[Any]:
            timeout = options.get("timeout")
            if not isinstance(timeout, timedelta):
                yield from inner(*args, **options)
                return
            results = inner(*args, **{**options, "timeout": max(timeout, _NEVER)})
            with self._within("init_process_group", timeout):
                first = next(results)
            yield first  # its store keeps that time-out: NCCL's ranks meet there at their first call
            yield from results

        return rendezvous

    def _meets(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(inner)

        @functools.wraps(inner)
        def meet(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            timeout, name = bound.arguments.get("timeout"), str(bound.arguments.get("group_name"))
            if not isinstance(timeout, timedelta):
                return inner(*args, **kwargs)
            self._limit(name, timeout)
            options = bound.arguments.get("backend_options")
            if torch_versions.OPTIONS_TIMEOUT.get(options) == timeout:
                torch_versions.OPTIONS_TIMEOUT.set(options, _NEVER)  # or torch warns that they differ
            bound.arguments["timeout"] = max(timeout, _NEVER)
            with self._within("init_process_group" if name in ("0", "default_pg") else "new_group", timeout):
                return inner(*bound.args, **bound.kwargs)

        return meet

    def _set(self, inner: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(inner)
        def set_timeout(timeout: timedelta, group: Any = None) -> None:
            world = torch_versions.WORLD.get()
            group = world.default_pg if group is None else group
            if group is None:
                inner(timeout)  # which raises that there is none
            self._limit(str(world.pg_names.get(group)), timeout)

        return set_timeout

    def _limit(self, group: str, timeout: timedelta) -> None:
        self._limits[group] = recorder.LIMITS[group, _NEVER.total_seconds()] = timeout.total_seconds()

    @contextmanager
    def _within(self, name: str, limit: timedelta) -> Iterator[None]:
        me = threading.get_ident()
        before = self._inside.get(me)
        self._inside[me] = (name, time.monotonic(), limit.total_seconds())
        try:
            yield
        finally:
            if before is None:
                self._inside.pop(me, None)
            else:
                self._inside[me] = before

    @contextmanager
    def stopped(self, rank: int) -> Iterator[None]:
        """Have other ranks go on waiting while this one is stopped, if time-outs are enforced here."""
        if not self.installed:
            yield
            return
        self._tell(rank, 1)
        try:
            yield
        finally:
            self._tell(rank, -1)

    def _tell(self, rank: int, by: int) -> None:
        try:
            with self._meeting:
                store = self._connected()
                if by > 0:
                    store.set(self._word % _WHO, str(rank))
                # First, before the rank counts as stopped, or as going on: a look between the two calls finds
                # either that it is stopped, or that something has changed.
                store.add(self._word % _CHANGES, 1)
                store.add(self._word % _STOPPED, by)
        except Exception:  # the round ends
            pass

    def _connected(self) -> Any:
        if self._store is None:
            from torch.distributed import TCPStore

            host, _, port = self._address.rpartition(":")
            timeout = timedelta(seconds=_STORE_S)
            self._store = TCPStore(
                host.strip("[]"), int(port), is_master=False, timeout=timeout, wait_for_workers=False
            )
        return self._store

    def _watch(self) -> None:
        # The user's code may block signals and wait for them: this thread mustn't take them instead.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            time.sleep(_EVERY_S)
            try:
                late = self._late()
                if late is None or self._put_off(late):
                    continue
            except Exception:  # something unforeseen mustn't affect the job
                continue
            name, _, limit = late
            text = "Timed out waiting %.0fms for %s to complete" % (1000 * limit, name)
            self._fail(RuntimeError(text).with_traceback(_where()))

    def _late(self) -> Optional[_Wait]:
        now = time.monotonic()
        if all(called == done for called, done in recorder.counts().values()):
            self._begun = {}
            pending = []
        else:
            calls = [call for call in recorder.open_calls() if 0 < call.timeout < _NEVER.total_seconds()]
            # torch dates their begin by the wall clock, which may be set while they wait.
            keys = [(call.op, call.seq, call.since) for call in calls]
            self._begun = {call: self._begun.get(call, now) for call in keys}
            pending = [
                ("%s #%d" % (call.op, call.seq), self._begun[key], call.timeout)
                for key, call in zip(keys, calls)
            ]
        # A thread begins to wait a moment before its call is seen here, so it may be late before the call is.
        known_by = {_UNNAMED: pending[0][0]} if len(pending) == 1 else {}
        inside = [
            (known_by.get(name, name), since, most) for name, since, most in list(self._inside.values())
        ]
        late = (wait for wait in [*pending, *inside] if now >= max(wait[1], self._since) + wait[2])
        return next(late, None)

    def _put_off(self, late: _Wait) -> bool:
        """Whether a rank is stopped, or was at some time since the last look."""
        with self._meeting:
            store = self._connected()
            stopped, changes = (store.add(self._word % word, 0) for word in (_STOPPED, _CHANGES))
            who = store.get(self._word % _WHO).decode() if stopped > 0 else ""
        if stopped <= 0 and changes == self._changes:
            return False
        if stopped > 0 and not self._notice_shown:
            text = "nbtorchjob: rank %s is stopped in the debugger: the time-out of %s, %g s, is put off"
            print(text % (who, late[0], late[2]), file=sys.__stderr__)
        self._notice_shown, self._changes, self._since = stopped > 0, changes, time.monotonic()
        return True


def _where() -> Optional[TracebackType]:
    """Return the main thread's stack as the traceback of an exception that it might have raised."""
    frame: Any = sys._current_frames().get(threading.main_thread().ident or 0)
    traceback = None
    while frame is not None and frame.f_code.co_filename == HERE + "debug/patience.py":
        frame = frame.f_back
    while frame is not None and frame.f_code.co_filename != HERE + "rank/worker.py":
        traceback = TracebackType(traceback, frame, frame.f_lasti, frame.f_lineno or 0)
        frame = frame.f_back
    return traceback
