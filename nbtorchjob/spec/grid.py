"""The runs of a group: their parameters (``--each lr=0.1,0.01``), and when some are stopped early."""

from __future__ import annotations

import ast
import math
import random
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import islice
from typing import Any, TypeAlias

from nbtorchjob.errors import Shape, SpecError
from nbtorchjob.spec import condition, sequence, setting, whole
from nbtorchjob.spec.condition import BEST, Condition

_MOST_NAME = 200  # characters of a metric's name


@dataclass(frozen=True, kw_only=True)
class Early:
    """What stops a group's runs early; by default all run to their end."""

    stop_when: str | None = setting("--stop-when CONDITION", "stop runs when this holds, such as loss>3")
    halve: str | None = setting("--halve METRIC", "successive halving by this metric")
    by: str | None = setting("--by METRIC", "the metric that measures progress, such as epoch")
    factor: int = setting("--factor N", "continue the best 1/N, N times as far", 3, takes="int")
    at_least: int = setting("--at-least N", "minimum progress of every run", 1, takes="int")
    largest: tuple[str, ...] = setting(
        "--largest METRIC", "a metric for which larger is better", takes="texts"
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "largest", sequence("largest", self.largest))
        for name in ("halve", "by"):
            metric = getattr(self, name)
            valid = isinstance(metric, str) and metric.isprintable() and 0 < len(metric) <= _MOST_NAME
            if metric is not None and not valid:
                raise SpecError(name, metric, "the name of a metric, as passed to report()")
        whole("factor", self.factor, 2)
        whole("at_least", self.at_least, 1)
        bests = {self.halve} - {None}
        if self.condition is not None:
            bests |= {name.metric for name in self.condition.names if name.of == BEST}
        for metric in self.largest:
            if metric not in bests:
                need = f"without --halve {metric}, or best_{metric} in --stop-when"
                raise SpecError("largest", metric, need, Shape.CONFLICT)
        if not self.is_set:
            for key, default in (("by", None), ("factor", 3), ("at_least", 1)):
                if getattr(self, key) != default:
                    raise SpecError(key, getattr(self, key), "without --halve or --stop-when", Shape.CONFLICT)

    @property
    def is_set(self) -> bool:
        """Whether anything stops runs early."""
        return self.stop_when is not None or self.halve is not None

    @cached_property
    def condition(self) -> Condition | None:
        """The condition that ends a run; None where there is none."""
        return None if self.stop_when is None else condition.parse(self.stop_when)

    @property
    def metrics(self) -> frozenset[str]:
        """The metrics that runs have to report for this."""
        named = {name.metric for name in self.condition.names} if self.condition is not None else set()
        return frozenset({*named, *filter(None, (self.halve, self.by))})

    def record(self) -> Mapping[str, Any]:
        """Return it as plain data, which ``jobspec.build`` takes; empty if nothing stops runs early."""
        return {f.name: getattr(self, f.name) for f in fields(Early)} if self.is_set else {}


MOST = 10_000
_MOST_VALUES = 10_000_000  # of one name, from which --sample chooses
ASKED_BACK = 100  # up to this many runs are submitted without asking
# Evaluates an expression in the notebook; raises whatever the expression raises.
LookUp: TypeAlias = Callable[[str], Any]

_RANGE = re.compile(r"(-?\d+):(-?\d+)(?::(-?\d+))?")
_NO_LITERAL = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)
_EACH = re.compile(r"--each(?:\s+|=)[^\W\d]\w*=(?=[${])")
_NAME = re.compile(r"\$[^\W\d]\w*(?:\.[^\W\d]\w*)*")


@dataclass(frozen=True, kw_only=True)
class GroupOptions:
    """A line's options for many jobs from one cell: which runs there are, and how many at a time."""

    each: tuple[tuple[str, str], ...] = setting(
        "--each NAME=VALUES", "one run per value: 1,2, 0:3, $list, {expr}", (), takes="pairs"
    )
    zip: bool = setting("--zip", "pair values instead of combining all of them")
    sample: int | None = setting("--sample N", "run a random subset of this size", takes="int")
    seed: int = setting("--seed N", "random seed of --sample", 0, takes="int")
    at_once: int | None = setting("--at-once N", "maximum runs at the same time", takes="int")
    yes: bool = setting("--yes", f"submit more than {ASKED_BACK} runs without asking")
    early: Early = field(default_factory=Early)  # what stops some of them before their end

    def __post_init__(self) -> None:
        for name in ("sample", "at_once"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise SpecError(name, value, "a whole number, 1 or more")
        if not isinstance(self.seed, int):
            raise SpecError("seed", self.seed, "a whole number")
        if not self.each:
            raise SpecError("--each", None, "NAME=VALUES, as --each lr=0.1,0.01", Shape.MISSING)
        names = [name for name, _ in self.each]
        for name in names:
            if not name.isidentifier():
                raise SpecError("each", name, "a Python name")
            if names.count(name) > 1:
                raise SpecError("each", name, "distinct names")


def rows(options: GroupOptions, look_up: LookUp) -> list[dict[str, Any]]:
    """Return the values of each run, in order; raises ``SpecError`` for no values, or too many runs."""
    columns = {name: values(name, text, look_up) for name, text in options.each}
    sizes = {name: len(column) for name, column in columns.items()}
    for name, size in sizes.items():
        if not size:
            raise SpecError(f"--each {name}", dict(options.each)[name], "at least one value")
    if options.zip and len({*sizes.values()}) > 1:
        counts = ", ".join(f"{name} has {size}" for name, size in sizes.items())
        raise SpecError("--zip", counts, "the same number of values for each name")
    total = next(iter(sizes.values())) if options.zip else math.prod(sizes.values())
    count = total if options.sample is None else min(total, options.sample)
    if count > MOST:
        counted = " × ".join(f"{size:,}" for size in sizes.values())
        raise SpecError("--each", f"{counted} runs", f"at most {MOST:,}: --sample N chooses a random subset")
    choice = random.Random(options.seed)
    if total <= sys.maxsize:
        chosen = sorted(choice.sample(range(total), count))
    else:  # more than ``sample`` accepts; among so many, duplicates are unlikely
        chosen = sorted(choice.randrange(total) for _ in range(count))
    if options.zip:
        return [{name: column[number] for name, column in columns.items()} for number in chosen]
    runs = []
    for number in chosen:
        row, left = {}, number  # the run's position in the product, whose last name varies fastest
        for name, column in reversed([*columns.items()]):
            left, at = divmod(left, len(column))
            row[name] = column[at]
        runs.append({name: row[name] for name in columns})
    return runs


def values(name: str, text: str, look_up: LookUp) -> list[Any]:
    """Return the values that a text stands for; raises ``SpecError``."""
    if text.startswith("$") or (text.startswith("{") and text.endswith("}")):
        expression = text[1:] if text.startswith("$") else text[1:-1]
        try:
            column = look_up(expression.strip())
            listed = not isinstance(column, (str, bytes, Mapping)) and isinstance(column, Iterable)
            items = [*islice(column, _MOST_VALUES + 1)] if listed else []
        except Exception as exc:  # whatever the notebook's code raises
            raise SpecError(
                f"--each {name}",
                text,
                f"an expression that can be evaluated here ({type(exc).__name__}: {exc})",
            ) from None
        if not listed:
            raise SpecError(
                f"--each {name}", text, f"a list of values; it is of type {type(column).__name__}"
            )
        if len(items) > _MOST_VALUES:
            raise SpecError(f"--each {name}", text, f"at most {_MOST_VALUES:,} values")
        return items
    if ends := _RANGE.fullmatch(text):
        try:
            first, end, step = (int(part) for part in ends.groups("1"))
        except ValueError:  # Python reads no number of more than 4,300 digits
            raise SpecError(f"--each {name}", text, "a range of numbers with fewer digits") from None
        if not step:
            raise SpecError(f"--each {name}", text, "a range FIRST:END:STEP whose step isn't 0")
        if abs(end - first) // abs(step) > _MOST_VALUES:
            raise SpecError(f"--each {name}", text, f"at most {_MOST_VALUES:,} values")
        return [*range(first, end, step)]
    try:
        items = [*ast.literal_eval(f"({text},)")]
        return [*items[0]] if len(items) == 1 and isinstance(items[0], list) else items
    except _NO_LITERAL:
        parts = [part.strip() for part in text.split(",") if part.strip()]
    if any(part.startswith("{") for part in parts):
        raise SpecError(f"--each {name}", text, "one expression in braces, such as {[a, b]}")
    brackets = [*zip("([{", ")]}", strict=True)]
    if any(part.count(opening) != part.count(closing) for part in parts for opening, closing in brackets):
        # A comma within brackets has split a value.
        advice = (
            """Python where it has brackets: quote the texts, as in '["adam", "sgd"]' or '(1, 2), "none"'"""
        )
        raise SpecError(f"--each {name}", text, advice)
    return [_literal(part) for part in parts]


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except _NO_LITERAL:
        return text


def kept(line: str, expand: Callable[[str], str]) -> str:
    """Expand a line except the values of ``--each``: the expanded text of ``$rates`` would be no list."""
    parts, at = [], 0
    for option in _EACH.finditer(line):
        end = _end(line, option.end())
        # Inside an earlier value, or a text that is made of values, such as ``{low}:{high}``
        if option.start() < at or (line[option.end()] == "{" and line[end : end + 1].strip()):
            continue
        word = line[option.start() : end]
        head, _, value = word.partition("each")[2].lstrip("= \t").partition("=")
        parts += [expand(line[at : option.start()]), f"--each {shlex.quote(f'{head}={value}')}"]
        at = end
    return "".join((*parts, expand(line[at:]) if line[at:] else ""))


def _end(line: str, at: int) -> int:
    """Return where the ``$name`` or ``{…}`` at ``at`` ends; braces and quotes in it are Python's."""
    if line[at] == "$":
        name = _NAME.match(line, at)
        return name.end() if name else at + 1
    depth, quote = 0, ""
    for index in range(at, len(line)):
        char = line[index]
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        else:
            depth += (char in "{[(") - (char in "}])")
            if not depth:
                return index + 1
    return len(line)
