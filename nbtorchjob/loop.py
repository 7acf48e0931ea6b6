"""The one bridge between blocking code and the event loop.

A notebook's own loop runs on the kernel's main thread and stands still while a cell blocks, so jobs
are followed on a loop of our own, in a thread that lives as long as the process.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from functools import lru_cache
from typing import Any, TypeVar

T = TypeVar("T")


def start(work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Run ``work`` on the background loop; the future can be waited for and cancelled anywhere."""
    return asyncio.run_coroutine_threadsafe(work, _loop())


@lru_cache(maxsize=1)
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="nbtorchjob", daemon=True).start()
    return loop
