"""The verbs of ``%torchjob`` that need nothing of the session they are typed in."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable
from typing import Any

from IPython.core.error import UsageError
from IPython.display import display

from nbtorchjob import api, options, profiles
from nbtorchjob.options import CellOptions
from nbtorchjob.spec import JobSpec
from nbtorchjob.text import words
from nbtorchjob.ui import lines, table


def parse(line: str) -> tuple[JobSpec, CellOptions]:
    """Give what a line of options says, laid over the profile that it names, or the default one."""
    # Twice: which profile the other options are laid over is itself an option.
    profile = options.parse(line, JobSpec())[1].profile
    return options.parse(line, profiles.load(profile) if profile else profiles.default())


def _list(rest: str) -> None:
    none, flags = lines.words("list", rest, {"--all": None})
    lines.nothing("list", " ".join(none))
    states, now = api.jobs(everyone="--all" in flags), time.time()
    display({"text/html": table.html(states, now), "text/plain": table.text(states, now)}, raw=True)


def _config(rest: str) -> None:
    spec = JobSpec.from_json(dict(api.attach(rest).info.spec)) if rest else profiles.default()
    _say(f"%%torchjob {options.magic_line(spec)}".rstrip())


def _suspend(rest: str) -> None:
    for name in lines.names("suspend", rest):
        api.attach(name).suspend()
        _say(f"{name} suspended: %torchjob resume {name}")


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
    found = api.leftovers()
    for place, left in found:
        if "--yes" in flags:
            place.clear(left)
        _say(f"{words.duration(left.age):>8}  {left.name:<40} {left.what}")
    if not found:
        _say("Nothing is left over.")
    elif "--yes" not in flags:
        _say("%torchjob gc --yes removes them for good.")


def _doctor(rest: str) -> None:
    for finding in api.doctor(parse(rest)[0]):
        _say(f"{'ok' if finding.good else '!!'}  {finding.text}")
        if finding.remedy:
            _say(textwrap.indent(finding.remedy, "      "))


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
