"""The verbs that act on jobs which are there: what they answer, to a notebook or to a terminal."""

from __future__ import annotations

import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from nbtorchjob import api, options, profiles, session
from nbtorchjob.backends import backend
from nbtorchjob.backends.base import Backend, Leftover
from nbtorchjob.errors import DamagedError, NBTorchJobError
from nbtorchjob.job import Job
from nbtorchjob.options import CellOptions
from nbtorchjob.spec import JobSpec
from nbtorchjob.text import facts, words
from nbtorchjob.ui import findings, lines, table, view
from nbtorchjob.ui.record import detail, record

_END_S = 15.0  # what a cancelled job is given to end before it is told of


@dataclass(frozen=True)
class Answer:
    """What a verb says: as text, as HTML where a page can show more, and as ``data`` for a program.

    ``good`` is False where something is missing or couldn't be done. An ``aside`` is no part of the
    answer, but belongs beside it.
    """

    text: str
    data: Any = None
    html: str = ""
    good: bool = True
    aside: bool = False


# Gives the job of that name; of "" the one that is meant where none is named.
Find: TypeAlias = Callable[[str], Job]
Answers: TypeAlias = Iterator[Answer]


def parse(line: str, say: Callable[[str], object] | None = None) -> tuple[JobSpec, CellOptions]:
    """Give what a line of options says, laid over the profile that it names, or the session's default.

    ``say`` is told which files of profiles aren't obeyed.
    """
    if say is not None:
        for note in profiles.notes():
            say(f"Note: {note}")
    # Twice: which profile the other options are laid over is itself an option.
    profile = options.parse(line, JobSpec())[1].profile
    return options.parse(line, profiles.load(profile) if profile else session.default())


def _list(given: Sequence[str], _find: Find) -> Answers:
    asked = lines.given("list", given).options
    with warned() as notes:
        states, now = api.jobs(everyone="all" in asked), time.time()
    yield from _asides(notes)
    data = {"jobs": [record(state, now) for state in states], "notes": notes}
    # Where a place couldn't be asked it isn't known whether there are any.
    text = "" if notes and not states else table.text(states, now)
    yield Answer(text, data, text and table.html(states, now))


def _status(given: Sequence[str], find: Find) -> Answers:
    state = api.snapshot(_one("status", given, find).info.address)
    bundle = view.mimebundle(state)
    yield Answer(bundle["text/plain"], record(state, time.time()), bundle["text/html"])


def _describe(given: Sequence[str], find: Find) -> Answers:
    state = api.snapshot(_one("describe", given, find).info.address)
    enforced = api.enforcement(state.info)
    bundle = view.description(state, enforced)
    yield Answer(bundle["text/plain"], detail(state, time.time(), enforced), bundle["text/html"])


def _config(given: Sequence[str], find: Find) -> Answers:
    named = lines.given("config", given).words
    spec = find(named[0]).info.asked if named else session.default()
    line = options.magic_line(spec)
    yield Answer(f"%%torchjob {line}".rstrip(), {"line": line, "spec": spec.to_json()})


def _cancel(given: Sequence[str], find: Find) -> Answers:
    for job in map(find, lines.given("cancel", given).words):
        job.cancel()
        job.wait(_END_S)
        yield Answer(f"{job.name} {facts.phase(job.state)}", record(job.state, time.time()))


def _delete(given: Sequence[str], find: Find) -> Answers:
    for name in lines.given("delete", given).words:
        try:
            job = find(name)
        except DamagedError as exc:
            backend(exc.backend).delete(exc.name)
        else:
            job.delete()
            session.forget(job)
        yield Answer(f"{name} deleted", {"name": name})


def _suspend(given: Sequence[str], find: Find) -> Answers:
    for name in lines.given("suspend", given).words:
        find(name).suspend()
        yield Answer(f"{name} suspended; %torchjob resume {name} starts it again", {"name": name})


def _resume(given: Sequence[str], find: Find) -> Answers:
    for name in lines.given("resume", given).words:
        find(name).resume()
        yield Answer(f"{name} resumed", {"name": name})


def _export(given: Sequence[str], find: Find) -> Answers:
    name, folder = lines.given("export", given).words
    for path in find(name).export(folder):
        yield Answer(str(path), {"path": str(path)})


def _gc(given: Sequence[str], _find: Find) -> Answers:
    clears = "yes" in lines.given("gc", given).options
    with warned() as notes:
        found = sorted(api.leftovers(), key=lambda each: -each[1].age)
    yield from _asides(notes)
    wide = max((len(left.name) for _, left in found), default=0)
    for place, left in found:
        yield _cleared(place, left, wide) if clears else _left(left, wide)
    if not found:
        yield Answer("Nothing is left over.", aside=True)
    elif clears:
        yield Answer("What is listed is removed for good.", aside=True)
    else:
        yield Answer("%torchjob gc --yes removes them for good.", aside=True)


def _left(left: Leftover, wide: int, *, removed: bool = False) -> Answer:
    what = f"{facts.phase(left.state)}  {facts.where(left.state.info)}" if left.state else left.what
    data = {"name": left.name, "what": what, "age": left.age, "removed": removed}
    return Answer(f"{words.duration(left.age):>11} ago  {left.name:<{wide}}  {what}", data)


def _cleared(place: Backend, left: Leftover, wide: int) -> Answer:
    # One whose value can't be had must keep no other from going.
    try:
        place.clear(left)
    except NBTorchJobError as exc:
        text = f"{left.name} is kept: {exc}; %torchjob delete {left.name} removes it all the same"
        return Answer(text, {**_left(left, wide).data, "kept": str(exc)}, good=False)
    return _left(left, wide, removed=True)


def _doctor(given: Sequence[str], _find: Find) -> Answers:
    notes: list[str] = []
    spec, _ = parse(shlex.join(given), notes.append)
    yield from (Answer(note, aside=True) for note in notes)
    found = api.doctor(spec)
    told = [{"good": each.good, "text": each.text, "remedy": each.remedy} for each in found]
    yield Answer(findings.text(found), {"findings": told}, good=all(each.good for each in found))


def _one(verb: str, given: Sequence[str], find: Find) -> Job:
    named = lines.given(verb, given).words
    return find(named[0] if named else "")


@contextmanager
def warned() -> Iterator[list[str]]:
    """Take down what is warned of meanwhile: an answer has no use for the line of our code that warned."""
    told: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield told
    told += dict.fromkeys(str(warning.message) for warning in caught)


def _asides(notes: Sequence[str]) -> Answers:
    return (Answer(f"Note: {note}", aside=True) for note in notes)


VERBS: Mapping[str, Callable[[Sequence[str], Find], Answers]] = {
    "list": _list,
    "status": _status,
    "describe": _describe,
    "config": _config,
    "cancel": _cancel,
    "delete": _delete,
    "suspend": _suspend,
    "resume": _resume,
    "export": _export,
    "gc": _gc,
    "doctor": _doctor,
}
