"""A signal that comes while ranks are started waits until they are.

torch has its handlers raise, wherever this process is just then. Where that is in pickle's C code, the
exception is lost in one of pickle's own, and the node would end as one whose agent failed.
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import Iterator, List

from . import torch_versions


@contextmanager
def until_started() -> Iterator[List[int]]:
    """Defer signals that torch handles where it starts processes; yield a list of those that come.

    They are the caller's to raise, once it is left. Where starting fails, the first one is raised instead.
    """
    handler, here = torch_versions.SIGNAL_HANDLER.get(), os.getpid()
    came: List[int] = []
    if handler is None:
        yield came
        return

    def note(number: int, frame: object) -> None:
        if os.getpid() != here:  # a rank that was forked, which has this handler, too
            handler(number, frame)
        came.append(number)

    torch_versions.SIGNAL_HANDLER.replace(note)
    failed = True
    try:
        yield came
        failed = False
    finally:
        torch_versions.SIGNAL_HANDLER.replace(handler)
        for number in signal.valid_signals():
            if signal.getsignal(number) is note:
                signal.signal(number, handler)
        if failed and came:
            handler(came[0], None)
