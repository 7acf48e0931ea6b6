"""The verbs that keep a connection to a running job: ``forward`` (a rank's port)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from nbtorchjob.commands.front import Answer, Front, ParsedArgs
from nbtorchjob.errors import LineError
from nbtorchjob.machine import interrupts
from nbtorchjob.spec.validation import digits
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint

if TYPE_CHECKING:
    from nbtorchjob.backends.forward import Forward
    from nbtorchjob.job import Job

_LOOK_S = 1.0

_forwards: dict[tuple[str, int, int], Forward] = {}  # open in this process, by job, rank and port


def forward(args: ParsedArgs, front: Front) -> None:
    """Forward a rank's port, list a job's forwarded ports, or end them."""
    job, spelled = front.find(args.words[0]), "".join(args.words[1:])
    for key, known in list(_forwards.items()):
        if not known.open:
            del _forwards[key]
    own = {key: known for key, known in _forwards.items() if key[0] == job.info.address}
    if spelled:
        port, rank = _place(spelled)
        job.check_rank(rank)
        own = {key: known for key, known in own.items() if key[1:] == (rank, port)}
    if "end" in args.options:
        if not own:
            raise LineError(f"{hint('forward')}: no such port of {job.name} is forwarded here")
        for key, known in own.items():
            known.close()
            del _forwards[key]
            front.show(Answer(f"{known.url} closed", _data(known)))
    elif not spelled or own:
        for known in own.values():
            front.show(Answer(_line(known), _data(known)))
        if not own:
            front.say(
                f"No port of {job.name} is forwarded here; {hint('forward', job.name, 'PORT')} forwards one."
            )
    else:
        _open(job, port, rank, args.options.get("local-port"), front)


def _open(job: Job[Any], port: int, rank: int, local: int | None, front: Front) -> None:
    opened = job.forward(port, rank, local=local)
    _forwards[job.info.address, rank, port] = opened
    front.show(Answer(_line(opened), _data(opened)))
    if opened.listens is False:
        front.say(
            f"Nothing listens at port {port} of rank {rank} yet: until then connections are closed at once."
        )
    if front.stays:
        return
    front.say("Ctrl-C ends it.")
    with interrupts.message(f"{opened.url} closed."):
        trouble = ""
        while opened.open and not job.done():
            time.sleep(_LOOK_S)
            if opened.trouble != trouble:
                trouble = opened.trouble
                front.say(trouble)
    opened.close()
    front.say(f"{job.name} has ended: {opened.url} closed.")


def _place(spelled: str) -> tuple[int, int]:
    """Read ``PORT`` or ``PORT:RANK``."""
    from nbtorchjob.backends.forward import PORTS  # late: most lines forward nothing

    port, colon, rank = spelled.partition(":")
    number, of = digits(port), digits(rank) if colon else 0
    if number not in PORTS or number is None or of is None:
        raise LineError(f"{hint('forward')} expects PORT or PORT:RANK, such as 6006:0, got {spelled!r}")
    return number, of


def _line(opened: Forward) -> str:
    count = words.count(opened.connections, "connection") if opened.connections else ""
    text = f"{opened.url} → port {opened.port} of rank {opened.rank} of {opened.name}"
    return ", ".join(filter(None, (text, count, opened.trouble)))


def _data(opened: Forward) -> dict[str, Any]:
    return {
        "name": opened.name,
        "rank": opened.rank,
        "port": opened.port,
        "local": opened.local,
        "url": opened.url,
        "listens": opened.listens,
    }
