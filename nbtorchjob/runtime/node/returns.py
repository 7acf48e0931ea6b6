"""How ranks tell their agent that they returned, and wait for the others: by pipes, which need no /dev/shm.

torch takes multiprocessing's queues and events for it, whose locks are named semaphores: files in
/dev/shm, which may be read-only or full. ``torchrun`` takes none for the programs that it starts. Each queue
here has one writer and one reader, so it needs no lock, and no dead rank can hold one.
"""

from __future__ import annotations

import multiprocessing
from contextlib import contextmanager
from multiprocessing import connection
from typing import Any, Iterator

from torch.distributed.elastic import multiprocessing as elastic


class Queue:
    """Brings one rank's objects to the agent, in place of ``multiprocessing.SimpleQueue``."""

    def __init__(self) -> None:
        self._reader, self._writer = connection.Pipe(duplex=False)

    def __getstate__(self) -> Any:
        return self._writer

    def __setstate__(self, writer: Any) -> None:
        self._writer = writer

    def put(self, value: Any) -> None:
        """Send an object to the agent."""
        self._writer.send(value)

    def empty(self) -> bool:
        """Whether :meth:`get` would wait."""
        return not self._reader.poll()

    def get(self) -> Any:
        """Wait for the next object."""
        return self._reader.recv()


class Event:
    """Is set once by the agent and awaited by its ranks, in place of ``multiprocessing.Event``."""

    def __init__(self) -> None:
        self._reader, self._writer = connection.Pipe(duplex=False)

    def __getstate__(self) -> Any:
        return self._reader

    def __setstate__(self, reader: Any) -> None:
        self._reader = reader

    def set(self) -> None:
        """Let all that wait go on."""
        self._writer.send_bytes(b"1")

    def wait(self) -> None:
        """Wait until it is set, or the agent has ended; what was sent stays for the others to see."""
        self._reader.poll(None)


def use_pipes() -> None:
    """Have torch's agent make its ranks with these."""
    elastic.MultiprocessContext = _Processes


class _Processes(elastic.MultiprocessContext):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with _in_place_of_locks(multiprocessing.get_context(kwargs["start_method"])):
            super().__init__(*args, **kwargs)


@contextmanager
def _in_place_of_locks(context: Any) -> Iterator[None]:
    # Only while torch makes its own: a rank that is forked from here has a context of multiprocessing's.
    context.SimpleQueue, context.Event = Queue, Event
    try:
        yield
    finally:
        del context.SimpleQueue, context.Event
