"""A process's resource limits (ulimit): a job has those of the kernel that submitted it, not the pool's."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress


def of_this_process() -> dict[str, list[int]]:
    """Return this process's resource limits by name, each as soft and hard limit."""
    names = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    return {name: list(resource.getrlimit(getattr(resource, name))) for name in names}  # lists, as in JSON


def take(limits: Mapping[str, Sequence[int]]) -> None:
    """Set other limits for this process, as far as its own permit."""
    for name, (soft, hard) in limits.items():
        number = getattr(resource, name)
        with suppress(ValueError, PermissionError):
            resource.setrlimit(number, (soft, hard))
            continue
        most = _least(hard, resource.getrlimit(number)[1])
        resource.setrlimit(number, (_least(soft, most), most))


def _least(one: int, other: int) -> int:
    return min(one, other, key=lambda limit: math.inf if limit == resource.RLIM_INFINITY else limit)


@contextmanager
def files_in_reserve(many: int = 8) -> Iterator[Callable[[], None]]:
    """Hold files open, and yield what closes them: who fails for want of files can tidy up with these.

    To remove a folder takes two for each level.

    Raises ``OSError`` where this process may not open so many.
    """
    held: list[int] = []

    def release() -> None:
        while held:
            os.close(held.pop())

    try:
        for _ in range(many):
            held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        yield release
    finally:
        release()
