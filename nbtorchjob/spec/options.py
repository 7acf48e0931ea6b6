"""The only table of options, and what is made from it: the magic line's grammar, help, completion.

An option is declared by its field (``spec.setting``): adding one takes one field, and nothing here.
"""

from __future__ import annotations

import keyword
import shlex
import unicodedata
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import Enum
from itertools import islice
from typing import Any

from nbtorchjob.errors import LineError, Shape, SpecError
from nbtorchjob.spec import Option, setting
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic, Worker
from nbtorchjob.spec.grid import Early, GroupOptions
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.overlay import (
    CLUSTER,
    ELASTIC,
    POLICY,
    RANKS,
    RETRY,
    SPEC,
    WORKER,
    chosen_at,
    dashed,
    flags_near,
    layered,
    named,
    overlay,
    pair,
    ranks_of,
    read,
    split,
    takes_value,
    why_needless,
)
from nbtorchjob.spec.policies import Retry, RunPolicy
from nbtorchjob.text.hints import options_hint

_LINE = "options"  # the name of a line in errors, whichever magic it belongs to


@dataclass(frozen=True, kw_only=True)
class CellOptions:
    """A magic line's options for the cell rather than the job.

    ``arg`` holds names and texts; ``argv`` holds the words after ``--``, the cell's ``sys.argv``.
    ``notes`` describe options that have no effect, or how they were interpreted.
    """

    arg: tuple[tuple[str, str], ...] = setting(
        "--arg K=V", "an argument for the cell's function", (), takes="pairs"
    )
    out: str | None = setting("-o, --out NAME", "the variable that receives the value")
    detach: bool = setting("-d, --detach", "return the job without waiting for it")
    profile: str | None = setting("-p, --profile NAME", "the profile that sets the defaults")
    dry_run: bool = setting("--dry-run", "show the request without sending it")
    rehearse: bool = setting("--rehearse", "run on two local ranks first")
    quiet: bool = setting("--quiet", "show no card")
    keep: str | None = setting("--keep NAME", "start a lab that runs further cells")
    on: str | None = setting("--on NAME", "run on the ranks of this lab")
    rank: str | None = setting("--rank N", "the lab's ranks to use: 0,2 or 1-3")
    swap: str | None = setting("--swap NAME", "change this running job's code to the cell's")
    or_back: bool = setting("--or-back", "with --swap: put the old code back if the new fails")
    within: str | None = setting("--within SECONDS", "with --swap: time to reach one call, 60 by default")
    push: tuple[str, ...] = setting("--push NAME", "send this variable, overriding the lab's", takes="texts")
    pull: tuple[str, ...] = setting("--pull NAME", "copy this variable from the lab", takes="texts")
    argv: tuple[str, ...] = ()
    many: GroupOptions | None = None  # for a cell from which many jobs are made
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        # As Python normalizes names in code (PEP 3131): there are two characters that look like "µ".
        if self.out is not None:
            object.__setattr__(self, "out", unicodedata.normalize("NFKC", self.out))
        arg = tuple((unicodedata.normalize("NFKC", name), value) for name, value in self.arg)
        object.__setattr__(self, "arg", arg)
        names = [("out", self.out), *(("arg", name) for name, _ in self.arg)]
        for where, name in names:
            if name is not None and (not name.isidentifier() or keyword.iskeyword(name)):
                raise SpecError(where, name, "a Python name")
        for name in (*self.push, *self.pull):
            if not name.isidentifier() or keyword.iskeyword(name):
                raise SpecError("push" if name in self.push else "pull", name, "a Python name")
        if self.keep is not None and self.on is not None:
            raise SpecError(
                "keep", self.keep, "with --on: a cell either starts a lab or runs on one", Shape.CONFLICT
            )
        for name, value in (("--or-back", self.or_back), ("--within", self.within)):
            if value and self.swap is None:
                raise SpecError(name, value, "without --swap NAME", Shape.CONFLICT)
        if self.many is not None:
            for name in ("keep", "on"):
                if getattr(self, name) is not None:
                    raise SpecError(f"--{name}", getattr(self, name), "with --each", Shape.CONFLICT)
            if self.rehearse:
                raise SpecError("--rehearse", "", "with --each: rehearse a single run first", Shape.CONFLICT)
        if self.profile is not None and (not self.profile or self.profile.startswith("-")):
            raise SpecError("profile", self.profile, "a name that doesn't begin with '-'")


_CELL = ("cell",)
_MANY = (*_CELL, "many")
_EARLY = (*_MANY, "early")
GROUPS: tuple[tuple[str, tuple[str, ...], type], ...] = (
    ("Launch, in torchrun's words", ELASTIC, Elastic),
    ("Launch as a master and workers", WORKER, Worker),
    ("Run policy", POLICY, RunPolicy),
    ("Retries", RETRY, Retry),
    ("Job", SPEC, JobSpec),
    ("Kubernetes", CLUSTER, Cluster),
    ("Cell", _CELL, CellOptions),
    ("Many jobs from one cell", _MANY, GroupOptions),
    ("Stopping runs early", _EARLY, Early),
)


TABLE: tuple[Option, ...] = tuple(
    replace(
        f.metadata["option"],
        path=(*home, f.name),
        default="" if f.default in (MISSING, None) or isinstance(f.default, bool | tuple) else str(f.default),
    )
    for _, home, kind in GROUPS
    for f in fields(kind)
    if "option" in f.metadata
)
KEYS: Mapping[str, Option] = {o.key: o for o in TABLE if o.home[:1] != _CELL}  # a profile's keys
# The options that most jobs set: help begins with these.
COMMON = (
    *("nnodes", "nproc-per-node", "gpu", "image", "backend"),
    *("name", "env", "package", "detach", "profile"),
)
_BY_FLAG = {flag: o for o in TABLE for flag in o.flags}
_RANKS = _BY_FLAG["--nproc-per-node"]
_PROFILE = _BY_FLAG["--profile"]


def flags() -> Sequence[str]:
    """Return all flags, short ones included."""
    return tuple(_BY_FLAG)


def choices(flag: str) -> Sequence[str]:
    """Return the choices of ``flag``; empty if any value may follow."""
    return _BY_FLAG[flag].choices if flag in _BY_FLAG else ()


def has_value(flag: str) -> bool:
    """Whether a value follows ``flag``."""
    return flag in _BY_FLAG and _BY_FLAG[flag].takes != "switch"


def takes_path(flag: str) -> bool:
    """Whether the value of ``flag`` is the path of an existing file or folder."""
    return flag in _BY_FLAG and _BY_FLAG[flag].metavar == "PATH"


def help_text(*, without: Collection[str] = (), more: Sequence[str] = ()) -> str:
    """Describe all options in groups, one per line, the common ones first.

    ``without`` lists keys to omit; ``more`` are paragraphs to put below the common options.
    """
    common = sorted((o for o in TABLE if o.key in COMMON), key=lambda o: COMMON.index(o.key))
    groups = [("Common options", common)]
    groups += [(title, [o for o in TABLE if o.home == home and o not in common]) for title, home, _ in GROUPS]
    first, *rest = (
        "\n".join([f"{title}:", *(help_line(o) for o in listed if o.key not in without)])
        for title, listed in groups
    )
    return "\n\n".join([first, *more, *rest])


def help_line(o: Option) -> str:
    """Describe one option in a line."""
    notes = [
        o.unit,
        "may be repeated" if o.repeated else "",
        " or ".join(o.choices),
        f"default {o.default}" if o.default else "",
    ]
    text = "; ".join(filter(None, notes))
    usage = f"{', '.join(o.flags)} {o.metavar}".rstrip()
    return f"  {usage:<32} {o.help}" + (f" ({text})" if text else "")


def split_words(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split a command's words into positional ones, and the options with their values."""
    alone: list[str] = []
    flagged: list[str] = []
    rest = iter(words)
    for word in rest:
        flag, equals, _ = word.partition("=")
        if not word.startswith("-"):
            alone.append(word)
            continue
        flagged.append(word)
        option = _BY_FLAG.get(flag := dashed(flag, _BY_FLAG))
        if not equals and (option.takes != "switch" if option else takes_value(flag)):
            flagged += islice(rest, 1)
    return alone, flagged


def profile_of(line: str) -> str | None:
    """Return the profile that a line names; what else it says can only be judged over that profile.

    Raises ``SpecError`` for an unknown option or an invalid name.
    """
    words = split(line, _LINE)
    values = dict(_parse(words[: _end(words)], {}))  # the last value counts
    with named([_PROFILE], _flag):
        return CellOptions(profile=values.get(_PROFILE)).profile


def parse(line: str, base: JobSpec) -> tuple[JobSpec, CellOptions]:
    """Return ``base`` with the line's options laid over it, and the line's options for the cell.

    Raises ``SpecError`` for an unknown option or an invalid value.
    """
    values: dict[Option, Any] = {}
    words = split(line, _LINE)
    end = _end(words)
    needless: dict[str, list[str]] = {}
    for o, value in _parse(words[:end], needless):
        # The last value of an option counts, unless the option is repeatable.
        values[o] = (*values.get(o, ()), value) if o.repeated else value
    swap = next((value for o, value in values.items() if o.key == "swap"), None)
    ignored = [*(_flag(o) for o in values if o.key not in _FOR_SWAPS), *words[end : end + 1]]
    if swap is not None and ignored:
        why = f"with --swap {swap}: it changes the running job at once, and that job keeps its options"
        raise SpecError(", ".join(ignored), "", why, Shape.CONFLICT)
    cell = {o: value for o, value in values.items() if o.home[:1] == _CELL}
    with named(cell, _flag):
        own = {o.name: value for o, value in cell.items() if o.home == _CELL}
        many = {o.name: value for o, value in cell.items() if o.home == _MANY}
        early = {o.name: value for o, value in cell.items() if o.home == _EARLY}
        own["many"] = GroupOptions(**many, early=Early(**early)) if many or early else None
        cell_options = CellOptions(argv=tuple(words[end + 1 :]), **own)
    spec = {o: dict(v) if o.takes == "pairs" else v for o, v in values.items() if o not in cell}
    _of_labs(cell_options, spec)
    if cell_options.keep is not None:
        if (named_too := next((o for o in spec if o.key == "name"), None)) is not None:
            raise SpecError("--name", spec[named_too], "with --keep, which names the job", Shape.CONFLICT)
        try:
            own = {"pool": None, "or_own": False}  # a profile's values are for jobs, not labs
            base = replace(base, **own, lab=True, name=JobSpec(name=cell_options.keep).name)
        except SpecError as exc:
            raise exc.about("--keep") from None
    notes = [
        f"{', '.join(flags)} {'has' if len(flags) == 1 else 'have'} no effect: {why}"
        for why, flags in needless.items()
    ]
    word = str(spec.get(_RANKS))
    if word in RANKS:
        with named([_RANKS], _flag):
            spec[_RANKS] = ranks_of(word, overlay(base, {**spec, _RANKS: 1}, _flag))
        notes.append(f"{_flag(_RANKS)} {word} is {spec[_RANKS]} here")
    result = layered(base, spec, _flag)
    return result, replace(cell_options, notes=tuple(notes))


_FOR_SWAPS = ("swap", "or-back", "within", "quiet")  # options that a cell which sends no job heeds
_FOR_TURNS = ("all-ranks",)  # options of a job that a lab's cell takes, too


def _of_labs(cell: CellOptions, values: Mapping[Option, Any]) -> None:
    """Refuse options for labs without a lab, and with ``--on`` those that a lab takes when it starts."""
    if cell.on is None:
        for name in ("rank", "push", "pull"):
            if value := getattr(cell, name):
                shown = value if isinstance(value, str) else value[0]
                raise SpecError(
                    f"--{name}", shown, "without --on NAME: it applies to cells on a lab", Shape.CONFLICT
                )
        idle = next((o for o in values if o.key == "idle"), None)
        if idle is not None and cell.keep is None:
            raise SpecError("--idle", values[idle], "without --keep NAME: it applies to labs", Shape.CONFLICT)
        return
    others = [_flag(o) for o in values if o.key not in _FOR_TURNS]
    others += ["--profile"] if cell.profile is not None else []
    others += ["--rehearse"] if cell.rehearse else []
    if others:
        why = f"with --on {cell.on}: the lab keeps the settings that it began with; give it with --keep"
        raise SpecError(", ".join(others), "", why, Shape.CONFLICT)


def check_read(words: Iterable[str], reads: Container[str], verb: str) -> None:
    """Raise ``LineError`` for options for cells, except those that a ``verb`` ``reads``, by their keys."""
    words = [*words]
    end = _end(words)
    options = dict.fromkeys(o for o, _ in _parse(words[:end], {}) if o.home[:1] == _CELL)
    others = [*(_flag(o) for o in options if o.key not in reads), *words[end : end + 1]]
    if others:
        applies = "applies" if len(others) == 1 else "apply"
        raise LineError(f"{verb}: {', '.join(others)} {applies} to cells only")


def magic_line(spec: JobSpec, cell: CellOptions | None = None, base: JobSpec | None = None) -> str:
    """Return the options that turn the defaults, or ``base``, into ``spec``, quoted for :func:`parse`.

    What no option can express (a role's image, ``rdzv_configs``, a removed value) is left out.
    """
    words: list[str] = ["--keep", spec.name] if spec.lab and spec.name else []
    for o in TABLE:
        if o.key == "name" and words[:1] == ["--keep"]:
            continue
        if o.key == "idle" and not spec.lab:
            continue  # from a profile, which has it for labs
        if o.home in (_MANY, _EARLY):
            many = cell.many if cell is not None else None
            of = many.early if many is not None and o.home == _EARLY else many
            value = getattr(of, o.name) if of is not None else None
            kind = Early if o.home == _EARLY else GroupOptions
            others = [next(f.default for f in fields(kind) if f.name == o.name)]
        elif o.home == _CELL:
            value, *others = (getattr(c, o.name) for c in (cell or CellOptions(), CellOptions()))
        else:
            specs = (spec, JobSpec(), base or JobSpec())
            value, *others = (chosen_at(o, s, in_pool=spec.pool is not None) for s in specs)
            if o.key == "secret-env":  # a line that names a secret means this process's value, not the base's
                values, base_values = spec.hidden, specs[2].hidden
                value = tuple(n for n in value if n not in base_values or base_values[n] != values.get(n))
        if value is not None and any(value != other for other in others):
            if o.takes == "switch":
                as_words = [_flag(o)] if value else []
            elif o.takes == "texts":
                as_words = [word for text in value for word in (_flag(o), text)]
            elif o.takes == "pairs":
                pairs = dict(value).items() if isinstance(value, Mapping) else value
                as_words = [word for name, text in pairs for word in (_flag(o), f"{name}={text}")]
            else:
                as_words = [_flag(o), str(value.value if isinstance(value, Enum) else value)]
            words += as_words
    if cell is not None and cell.argv:
        words += ["--", *cell.argv]
    return shlex.join(words)


@contextmanager
def by_flag() -> Iterator[None]:
    """Make errors about a job name the line's flag instead of the Python field."""
    with named(KEYS.values(), _flag):
        yield


def _end(words: Sequence[str]) -> int:
    """Return where a line's options end: at ``--``, or with the line."""
    return words.index("--") if "--" in words else len(words)


def _flag(o: Option) -> str:
    return o.flags[-1]


def _parse(words: Iterable[str], needless: dict[str, list[str]]) -> Iterator[tuple[Option, Any]]:
    """Yield options and values; torchrun's options without effect go to ``needless``, by reason."""
    rest = iter(words)
    for word in rest:
        flag, equals, text = dashed(word, _BY_FLAG).partition("=")
        o = _BY_FLAG.get(flag)
        if o is None:
            text = next(rest, "") if takes_value(flag) and not equals else text
            if why := why_needless(flag, text):
                needless.setdefault(why, []).append(flag)
                continue
            if not word.startswith("-"):
                allowed = 'options start with "--"; quote values that contain spaces'
                raise SpecError("argument", word, allowed, Shape.UNEXPECTED)
            spelled = word.partition("=")[0]
            near = flags_near(spelled, flags())
            allowed = f"did you mean {near}?" if near else f"{options_hint()} lists them"
            raise SpecError("option", spelled, allowed, Shape.UNKNOWN)
        if o.takes == "switch":
            if equals:
                raise SpecError(flag, text, "a value: it is a switch", Shape.CONFLICT)
            yield o, True
            continue
        value = text if equals else next(rest, None)
        if value is None or (value in _BY_FLAG and not equals):
            raise SpecError(flag, value, o.metavar, Shape.NO_VALUE)
        if o.takes == "pairs":
            yield o, pair(value, flag)
        else:
            yield o, value if o.takes == "texts" else read(o, value, flag)
