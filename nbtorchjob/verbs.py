"""The verbs of ``%torchjob`` that need nothing of the session they are typed in."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from IPython.core.error import UsageError
from IPython.display import display

from nbtorchjob import api, options, profiles, session
from nbtorchjob.backends.base import Backend, Leftover
from nbtorchjob.errors import NBTorchJobError
from nbtorchjob.options import CellOptions
from nbtorchjob.spec import JobSpec
from nbtorchjob.text import facts, words
from nbtorchjob.ui import findings, lines, table


def parse(line: str) -> tuple[JobSpec, CellOptions]:
    """Give what a line of options says, laid over the profile that it names, or the session's default."""
    # Twice: which profile the other options are laid over is itself an option.
    profile = options.parse(line, JobSpec())[1].profile
    return options.parse(line, profiles.load(profile) if profile else session.default())


def _list(rest: str) -> None:
    none, flags = lines.words("list", rest, {"--all": None})
    lines.nothing("list", " ".join(none))
    with _notes() as told:
        states, now = api.jobs(everyone="--all" in flags), time.time()
    if told and not states:  # whether there are any isn't known
        return
    display({"text/html": table.html(states, now), "text/plain": table.text(states, now)}, raw=True)


@contextmanager
def _notes() -> Iterator[list[str]]:
    """Say what is warned of as a cell's output has it, without the line of our code that warned."""
    told: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield told
    told += dict.fromkeys(f"Note: {warning.message}" for warning in caught)
    for note in told:
        _say(note)


def _config(rest: str) -> None:
    spec = JobSpec.from_json(dict(api.attach(rest).info.spec)) if rest else session.default()
    _say(f"%%torchjob {options.magic_line(spec)}".rstrip())


def _suspend(rest: str) -> None:
    for name in lines.names("suspend", rest):
        api.attach(name).suspend()
        _say(f"{name} suspended; %torchjob resume {name} starts it again")


def _resume(rest: str) -> None:
    for name in lines.names("resume", rest):
        api.attach(name).resume()
        _say(f"{name} resumed")


def _export(rest: str) -> None:
    found = lines.names("export", rest)
    if len(found) != 2:
        raise UsageError(f"%torchjob export NAME FOLDER: got {rest!r}")
    for path in api.attach(found[0]).export(found[1]):
        _say(str(path))


def _gc(rest: str) -> None:
    none, flags = lines.words("gc", rest, {"--yes": None})
    lines.nothing("gc", " ".join(none))
    with _notes():
        found = sorted(api.leftovers(), key=lambda each: -each[1].age)
    wide = max((len(left.name) for _, left in found), default=0)
    for place, left in found:
        if "--yes" in flags and not _cleared(place, left):
            continue
        what = f"{facts.phase(left.state)}  {facts.where(left.state.info)}" if left.state else left.what
        _say(f"{words.duration(left.age):>11} ago  {left.name:<{wide}}  {what}")
    if not found:
        _say("Nothing is left over.")
    elif "--yes" in flags:
        _say("What is listed is removed for good.")
    else:
        _say("%torchjob gc --yes removes them for good.")


def _cleared(place: Backend, left: Leftover) -> bool:
    # One whose value can't be had must keep no other from going.
    try:
        place.clear(left)
    except NBTorchJobError as exc:
        _say(f"{left.name} is kept: {exc}; %torchjob delete {left.name} removes it all the same")
        return False
    return True


def _doctor(rest: str) -> None:
    _say(findings.text(api.doctor(parse(rest)[0])))


def _say(text: str) -> None:
    print(text)  # noqa: T201 the answer to what was typed


VERBS: dict[str, Callable[[str], Any]] = {
    "list": _list,
    "config": _config,
    "suspend": _suspend,
    "resume": _resume,
    "export": _export,
    "gc": _gc,
    "doctor": _doctor,
}
