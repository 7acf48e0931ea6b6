"""Looking after this user's jobs while the server runs, with every notebook closed.

In a thread of its own: to import a backend takes a second, and which ones this user has used shows only in
time.
"""

from __future__ import annotations

import logging
import threading

from nbtorchjob.backends import ROWS, backend
from nbtorchjob.backends.base import Tending
from nbtorchjob.errors import NBTorchJobError
from nbtorchjob.frontends.server.handlers import installed

_FIND_S = 10.0  # between two looks whether this user has sent jobs somewhere
_log = logging.getLogger(__name__)


class Tenders:
    """What looks after jobs, one for each backend that this user has used."""

    def __init__(self) -> None:
        self._told = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nbtorchjob-tending", daemon=True)

    def begin(self) -> None:
        """Begin as soon as there may be a job."""
        self._thread.start()

    def stop(self) -> None:
        """End it; may take seconds."""
        self._told.set()
        self._thread.join()

    def _run(self) -> None:
        begun: dict[str, Tending | None] = {}
        while not self._told.is_set():
            for name in [name for name, row in ROWS.items() if row.used() and name not in begun]:
                try:
                    begun[name] = installed(lambda name=name: backend(name).tend("Jupyter server"))  # type: ignore[misc]
                except NBTorchJobError as exc:
                    begun[name] = None
                    _log.warning("jobs (%s) aren't looked after: %s", name, exc)
            self._told.wait(_FIND_S)
        for tending in begun.values():
            if tending is not None:
                tending.stop()
