"""What people call a job: a name that is free, a note, and tags; they stay with the job's record."""

from __future__ import annotations

import hashlib
import itertools
import re
import secrets
import time
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import PurePath

from nbtorchjob.backends.base import Annotates, Backend, able
from nbtorchjob.errors import JobNotFoundError, NameTakenError, SpecError
from nbtorchjob.spec import digits
from nbtorchjob.state import JobInfo, JobState
from nbtorchjob.state.facts.events import Annotated
from nbtorchjob.text.hints import hint, swap_hint

# Without vowels no words come out, and without 0, 1 and l nothing is misread.
_ALPHABET = "23456789bcdfghjkmnpqrstvwxz"
_STEM = 24
CELL = "cell"  # what a cell is labelled that names nothing
_MOST = 40  # characters, as a spec's own name (``spec/jobspec.py``)
MOST_GROUP = 32  # of a group's name: five digits may follow, and what a retry adds


def generate(label: str) -> str:
    """Return a new name that says what runs: ``train-7k2q`` for ``train(model)``.

    A DNS-1035 label well below the 40 characters that are safe for every kind of cluster job.
    """
    return f"{_stem(label)}-" + "".join(secrets.choice(_ALPHABET) for _ in range(4))


def title(label: str, notebook: str, cell: str = "") -> str:
    """Return what a job is named after: what it calls, or of a mere cell its notebook and its number.

    ``cell`` is what the notebook calls it, ``Cell In[12]``: ``digits-12``.
    """
    if label != CELL or not notebook:
        return label
    number = re.search(r"[0-9]+", cell)
    stem = _stem(PurePath(notebook).stem)
    return f"{stem[: _STEM - 1 - len(number[0])]}-{number[0]}" if number else stem


def derive(label: str, seed: str) -> str:
    """Like :func:`generate`, but the same for the same ``seed``: two of one name are one job."""
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big")
    digits = []
    for _ in range(6):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return f"{_stem(label)}-" + "".join(digits)


def again(label: str, name: str | None) -> Iterator[str]:
    """Yield names for a job that runs once more: new ones, or ``train-2``, ``train-3``, … of a given one."""
    for number in itertools.count(2):
        yield generate(label) if name is None else run(name, number)


def stem(name: str) -> str:
    """Return what a generated name was made from: ``digits-12`` of ``digits-12-7k2q``."""
    return name.rpartition("-")[0]


def run(base: str, number: int) -> str:
    """Return the name of that run of a given name: ``train``, ``train-2``, …, short enough to be a job's."""
    return base if number == 1 else f"{base[: _MOST - len(f'-{number}')].rstrip('-')}-{number}"


def in_group(group: str, number: int) -> str:
    """Return the name of a group's run of that number: ``train-7k2q-r3``. Raises ``SpecError``."""
    if len(group) > MOST_GROUP:
        raise SpecError("name", group, f"at most {MOST_GROUP} characters: each run has its number behind it")
    return f"{group}-r{number}"


def is_in_group(name: str, group: str) -> bool:
    """Whether a job may be a run of a group, by its name: also one that repeats another."""
    return re.fullmatch(rf"{re.escape(group)}-r[0-9]+(?:-[0-9]+)?", name) is not None


def is_run(name: str, base: str) -> bool:
    """Whether :func:`run` gives that name."""
    number = digits(name.rpartition("-")[2]) or 1
    return name == base or (number > 1 and run(base, number) == name)


def busy(name: str, info: JobInfo) -> NameTakenError:
    """Return the error for a given name of which the job of that record still runs something else."""
    error = NameTakenError(
        f"{info.name} is still running, with other code, data or options: {swap_hint(info.name)} changes its "
        f"code as it runs, {hint('attach', info.name)} follows it, {hint('cancel', info.name)} ends it; or "
        f"choose another --name than {name}"
    )
    error.running = info.address
    return error


def beside(base: str, running: str) -> str:
    """Return the name for a job that is to run beside one of a given name: ``train-2``."""
    return run(base, (digits(running.rpartition("-")[2]) or 1) + 1 if running != base else 2)


def unreplaced(info: JobInfo, there: JobState) -> JobState:
    """Return the state that was looked up by a job's address.

    Raises ``JobNotFoundError`` where it is that of another job, which has the name of this deleted one.
    """
    if info.is_another(there.info):
        raise replaced(info)
    return there


def replaced(info: JobInfo) -> JobNotFoundError:
    """Return the error for a job that was deleted before another one was given its name."""
    return JobNotFoundError(f"{info.name} was deleted; another job has its name")


def _stem(label: str) -> str:
    text = unicodedata.normalize("NFKD", label.partition("(")[0]).encode("ascii", "ignore").decode()
    words = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return re.sub(r"^[^a-z]+", "", words)[:_STEM].strip("-") or "job"


MOST_NOTE = 2000  # characters: an annotation of a cluster's object holds it
MOST_TAGS = 32
_TAG = re.compile(r"[^\W_][\w.:/=-]{0,62}")


def annotate(
    backend: Backend,
    state: JobState,
    note: str | None = None,
    *,
    tags: Iterable[str] | None = None,
    add: Iterable[str] = (),
    remove: Iterable[str] = (),
) -> Annotated:
    """Replace a job's note or ``tags``, or ``add`` and ``remove`` tags; return what it has now.

    Raises ``SpecError`` for a note or tag that can't be one.
    """
    had = state.annotated or Annotated(0.0)
    gone = {*map(_tag, remove)}
    kept = had.tags if tags is None else tuple(map(_tag, tags))
    new = tuple(dict.fromkeys(tag for tag in (*kept, *map(_tag, add)) if tag not in gone))
    if len(new) > MOST_TAGS:
        raise SpecError("tag", new[MOST_TAGS], f"at most {MOST_TAGS} tags on a job")
    text = had.note if note is None else " ".join(note.split())
    if note is not None and (len(text) > MOST_NOTE or not text.isprintable()):
        raise SpecError("note", text, f"at most {MOST_NOTE:,} printable characters")
    annotation = Annotated(max(time.time(), had.time + 0.001), text, new)
    able(backend, Annotates, "note", state.info.address).annotate(state.info.address, annotation)
    return annotation


def _tag(text: str) -> str:
    tag = text.removeprefix("#")
    if not _TAG.fullmatch(tag):
        allowed = "a word of at most 63 letters, digits and _ . : / = -, which begins with a letter or digit"
        raise SpecError("tag", text, allowed)
    return tag
