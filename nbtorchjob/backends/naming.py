"""Names, notes and tags of jobs; they stay with a job's record."""

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
from nbtorchjob.text.words import clean

# No vowels, so that no words come out, and no 0, 1 and l, which are easily misread.
_ALPHABET = "23456789bcdfghjkmnpqrstvwxz"
_STEM = 24
CELL = "cell"  # the label of a cell that names nothing
_MOST = 40  # characters, as for a spec's ``name`` (``spec/jobspec.py``)
MOST_GROUP = 32  # characters of a group's name: five digits and a retry's suffix may follow


def generate(label: str) -> str:
    """Return a new name that says what runs: ``train-7k2q`` for ``train(model)``.

    A DNS-1035 label well below the 40 characters that are safe for every kind of cluster job.
    """
    return f"{_stem(label)}-" + "".join(secrets.choice(_ALPHABET) for _ in range(4))


def title(label: str, notebook: str, cell: str = "") -> str:
    """Return the label that a job is named after: what it calls, or for a plain cell its notebook and number.

    ``cell`` is the notebook's name for it: ``Cell In[12]`` of ``digits.ipynb`` becomes ``digits-12``.
    """
    if label != CELL or not notebook:
        return label
    number = re.search(r"[0-9]+", cell)
    stem = _stem(PurePath(notebook).stem)
    return f"{stem[: _STEM - 1 - len(number[0])]}-{number[0]}" if number else stem


def derive(label: str, seed: str) -> str:
    """Like :func:`generate`, but with the same name for the same ``seed``: two jobs with one name are one."""
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big")
    digits = []
    for _ in range(6):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return f"{_stem(label)}-" + "".join(digits)


def again(label: str, name: str | None) -> Iterator[str]:
    """Yield names for a job that runs again: new ones, or ``train-2``, ``train-3``, … for a given one."""
    for number in itertools.count(2):
        yield generate(label) if name is None else run(name, number)


def stem(name: str) -> str:
    """Return the label that a generated name was made from: ``digits-12`` for ``digits-12-7k2q``."""
    return name.rpartition("-")[0]


def run(base: str, number: int) -> str:
    """Return a given name with a number: ``train``, ``train-2``, …, short enough for a job."""
    return base if number == 1 else f"{base[: _MOST - len(f'-{number}')].rstrip('-')}-{number}"


def in_group(group: str, number: int) -> str:
    """Return the name of a group's run with that number: ``train-7k2q-r3``. Raises ``SpecError``."""
    if len(group) > MOST_GROUP:
        raise SpecError("name", group, f"at most {MOST_GROUP} characters: the run's number is appended")
    return f"{group}-r{number}"


def is_in_group(name: str, group: str) -> bool:
    """Whether a job, by its name, may be a run of a group, or a repetition of such a run."""
    return re.fullmatch(rf"{re.escape(group)}-r[0-9]+(?:-[0-9]+)?", name) is not None


def is_run(name: str, base: str) -> bool:
    """Whether :func:`run` makes ``name`` from ``base``."""
    number = digits(name.rpartition("-")[2]) or 1
    return name == base or (number > 1 and run(base, number) == name)


def busy(name: str, info: JobInfo) -> NameTakenError:
    """Return the error for a given name whose job, the one in ``info``, still runs something else."""
    error = NameTakenError(
        f"{info.name} is still running, with other code, data or options: {swap_hint(info.name)} changes its "
        f"code as it runs, {hint('attach', info.name)} follows it, {hint('cancel', info.name)} ends it; or "
        f"choose another --name than {name}"
    )
    error.running = info.address
    return error


def beside(base: str, running: str) -> str:
    """Return the name for a job that is to run beside another one with a given name: ``train-2``."""
    return run(base, (digits(running.rpartition("-")[2]) or 1) + 1 if running != base else 2)


def unreplaced(info: JobInfo, state: JobState) -> JobState:
    """Return the state that was looked up by a job's address.

    Raises ``JobNotFoundError`` if the job was deleted and the state is that of another job with its name.
    """
    if info.is_another(state.info):
        raise replaced(info)
    return state


def replaced(info: JobInfo) -> JobNotFoundError:
    """Return the error for a job that was deleted before another job got its name."""
    return JobNotFoundError(f"{info.name} was deleted; another job has its name")


def _stem(label: str) -> str:
    text = unicodedata.normalize("NFKD", label.partition("(")[0]).encode("ascii", "ignore").decode()
    words = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return re.sub(r"^[^a-z]+", "", words)[:_STEM].strip("-") or "job"


MOST_NOTE = 2000  # characters: a cluster stores it in an object's annotation
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

    Raises ``SpecError`` for an invalid note or tag.
    """
    had = state.annotated or Annotated(0.0)
    removals = {*map(_tag, remove)}
    kept = had.tags if tags is None else tuple(map(_tag, tags))
    new = tuple(dict.fromkeys(tag for tag in (*kept, *map(_tag, add)) if tag not in removals))
    if len(new) > MOST_TAGS:
        raise SpecError("tag", new[MOST_TAGS], f"at most {MOST_TAGS} tags on a job")
    text = had.note if note is None else " ".join(note.split())
    # Joiners, which Persian and many an emoji need, aren't printable to Python.
    if note is not None and (len(text) > MOST_NOTE or clean(text) != text):
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
