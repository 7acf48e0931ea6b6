"""Ctrl-C, or the notebook's stop button: a message in place of a traceback, and how to wait despite it.

A thread that may be interrupted waits for an outcome with :class:`Once`. ``threading.Event``, ``Condition``,
``Thread.start`` and ``concurrent.futures`` take their locks in Python code: an interrupt at that moment
leaves a lock taken for good (CPython, bpo-29988), and the thread that brings the outcome waits for ever.
With them, a second Ctrl-C right after the first could stop everything that a kernel follows. A
``SimpleQueue`` is written in C, and so are a list's methods: an interrupt comes before or after.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar, cast

NOTHING = "Interrupted: nothing was submitted."


class Interrupted(KeyboardInterrupt):
    """The user stopped it; the message describes the state now."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


@contextmanager
def message(text: str) -> Iterator[None]:
    """Give an interrupt that arrives within this message, unless it has one already."""
    try:
        yield
    except Interrupted:
        raise
    except KeyboardInterrupt:
        raise Interrupted(text) from None


T = TypeVar("T")


class Once(Generic[T]):
    """A value or an error that one thread brings, and any thread may wait for."""

    def __init__(self) -> None:
        self._outcome: tuple[T | None, BaseException | None] | None = None
        self._callbacks: list[Callable[[], object]] = []

    def bring(self, value: T) -> None:
        """Bring the value."""
        self._come(value, None)

    def fail(self, error: BaseException) -> None:
        """Bring an error."""
        self._come(None, error)

    def _come(self, value: T | None, error: BaseException | None) -> None:
        self._outcome = value, error
        self._tell()

    def _tell(self) -> None:
        with suppress(IndexError):  # each callback is taken by one thread
            while True:
                self._callbacks.pop(0)()

    def then(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once it has come, in the thread that brings it; or at once if it has."""
        self._callbacks.append(callback)
        if self.come:
            self._tell()

    @property
    def come(self) -> bool:
        """Whether it has come."""
        return self._outcome is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds for it; return whether it has come."""
        come: queue.SimpleQueue[None] = queue.SimpleQueue()

        def tell() -> None:
            come.put(None)

        self.then(tell)
        with suppress(queue.Empty):
            come.get(timeout=None if timeout is None else max(0.0, timeout))
        if not self.come:
            with suppress(ValueError):
                self._callbacks.remove(tell)
        return self.come

    def result(self) -> T:
        """Return the value that has come, or raise the error."""
        assert self._outcome is not None, "nothing has come yet"
        value, error = self._outcome
        if error is not None:
            raise error
        return cast(T, value)
