"""How a node takes in a payload that somebody sends it while its ranks run."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator

from nbtorchjob.runtime.ask.answering import Question, Refused
from nbtorchjob.runtime.node import shortage
from nbtorchjob.runtime.store.payload import Payload, PayloadError

HEAR_S = 60.0  # for the next piece of a payload to come


def received(asked: Question, path: str, key: bytes) -> Payload:
    """Write a payload to ``path`` as it comes, and check it; raises ``Refused``."""
    left = int(asked["size"])
    with room_for(path), open(path, "xb") as file:
        while left > 0:
            said = asked.hear(HEAR_S)
            if not isinstance(said, bytes):
                raise Refused("the payload didn't arrive: nothing came for %d s" % HEAR_S)
            left -= len(said)
            file.write(said)
    try:
        payload = Payload(path)
        payload.verify(key)
    except PayloadError as exc:
        raise Refused(str(exc)) from exc
    if left:
        raise Refused("the payload is damaged: it is too long")
    return payload


@contextmanager
def room_for(path: str) -> Iterator[None]:
    """Refuse what a disk has no room for."""
    try:
        yield
    except OSError as exc:
        if shortage.number_of(exc) not in shortage.FULL:
            raise
        exc.filename = exc.filename or path
        raise Refused("%s: %s" % (exc.strerror, shortage.limit_met(exc))) from exc
