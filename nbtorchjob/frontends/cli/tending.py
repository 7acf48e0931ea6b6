"""``nbtorchjob tend``: looks after jobs until a signal ends it, and reports on stderr what it does.

A module of its own: the tender's pod on a cluster imports it, and has few libraries.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Mapping
from typing import Any

from nbtorchjob.backends import tended
from nbtorchjob.errors import LineError
from nbtorchjob.frontends.cli import output
from nbtorchjob.machine.folders import state_dir

LOG = "nbtorchjob.tending"


def tend(options: Mapping[str, Any]) -> None:
    """Look after jobs until SIGTERM or Ctrl-C; or print what has a cluster do it."""
    if "manifests" in options:
        output.answer(tended().tenders(options.get("namespace", ()), options.get("image")))
        return
    listen = _address(options.get("listen"))
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    _log()
    tending = tended().tend(
        "nbtorchjob tend", options.get("namespace", ()), everyone="everyone" in options, listen=listen
    )
    output.beside(f"tending jobs; health and metrics at {listen}")
    stopped.wait()
    if tending is not None:
        tending.stop()


def _address(listen: str | None) -> str:
    """Return where it says how it is; raises ``LineError`` for what more than this machine could ask."""
    if listen is None:
        return str(state_dir() / f"tend-{os.getpid()}.sock")
    host, _, port = listen.rpartition(":")
    if port.isdigit() and host not in ("127.0.0.1", "localhost", "[::1]"):
        raise LineError(
            f"nbtorchjob tend: --listen expects a local address such as 127.0.0.1:PORT, got {listen!r}"
        )
    return listen.replace("[::1]", "::1")


def _log() -> None:
    log = logging.getLogger(LOG)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
