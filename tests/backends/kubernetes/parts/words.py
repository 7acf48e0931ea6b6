"""Helpers for a stage's pods, in place of a node: ``python -c "from …parts.words import *; …"``.

They write a node's frames (``runtime/store/frames.py``), with the job's real Secrets and the runtime in its
payload, and wait for signs that the test gives: files in the folder that ``SIGNS`` names.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from nbtorchjob.runtime.facts import exits, injected
from nbtorchjob.runtime.objects import wire
from nbtorchjob.runtime.store import frames

__all__ = [
    *("ATTEMPT", "KEY", "LIFE", "NODE", "SIGNS"),
    *("begin", "fail", "log", "say", "sign", "tell", "value", "wait"),
    *("exits", "os", "signal", "sys", "time"),
]

KEY = Path(os.environ["NBTORCHJOB_KEY_FILE"]).read_bytes()
SIGNS = Path(os.environ["SIGNS"])
NODE = injected.node_index()
ATTEMPT = injected.attempt()
LIFE = len(list(SIGNS.glob(f"life-{NODE}-*")))  # the number of this life of the node, from 0

_written = 0  # bytes of the log


def sign(name: str) -> None:
    """Give a sign to the test, or to another pod."""
    (SIGNS / name).touch()


def wait(name: str) -> None:
    """Wait for a sign."""
    while not (SIGNS / name).exists():
        time.sleep(0.01)


def say(data: bytes) -> None:
    """Write to the container's log."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def tell(event: str, **fields: Any) -> None:
    """Write a fact to the container's log."""
    say(frames.fact(json.dumps({"event": event, "time": time.time(), **fields}).encode()))


def begin(nodes: int = 1) -> None:
    """Report the start of the node's one rank, in a job of ``nodes`` nodes, once all of them have started.

    Ranks meet in the same way: a node that ends before it signs its life counts one too few from then on.
    """
    while len({path.name.split("-")[1] for path in SIGNS.glob("life-*")}) < nodes:
        time.sleep(0.01)
    tell("WorkersStarted", node=NODE, restart=0, round=LIFE, ranks=[NODE], world_size=nodes)


def log(text: str) -> None:
    """Write to the rank's log."""
    global _written
    say(frames.log(NODE, LIFE, _written, text.encode()))
    _written += len(text.encode())


def value(
    content: object,
    key: bytes = KEY,
    dump: Any = None,
    spoil: Callable[[bytes], bytes] = lambda data: data,
    run: str = os.environ["NBTORCHJOB_RUN"],
    round_: int = LIFE,
    rank: int = NODE,
) -> None:
    """Send the rank's value, signed for ``run``, ``round_`` and ``rank``; ``spoil`` alters the bytes sent."""
    key = wire.value_key(key, run, round_, rank)
    wire.write_value("value", content, dump, key)
    data = Path("value").read_bytes()
    say(b"".join(frames.value(NODE, LIFE, spoil(data))))
    tell("ValueReady", rank=NODE, round=LIFE, ref=f"log#{wire.sign(data, key).hex()}", size=len(data))


def fail(recoverable: bool = False, code: int = 0, kind: str = "ValueError") -> NoReturn:
    """End the node with an exception of its rank; ``code`` overrides the agent's usual exit code."""
    error = {"type": kind, "message": "boom", "time": time.time(), "recoverable": recoverable}
    tell("RankFailed", node=NODE, rank=NODE, restart=0, round=LIFE, error=error)
    os._exit(code or (exits.RECOVERABLE_ERROR if recoverable else exits.USER_ERROR))


signal.signal(signal.SIGTERM, lambda *_: os._exit(exits.CANCELLED))
sign(f"life-{NODE}-{LIFE}")
