"""A messy notebook: random cells, from a seed, that redefine, delete, shadow, fail and are interrupted.

The grammar is in ``messy.txt``: ``=== kind``, then the forms of the kind; ``3 * `` before a form makes it as
likely as three forms. Names are those that the notebook has by then, mostly of the wanted kind.
"""

from __future__ import annotations

import random
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = [*"abcnxydtfghABC_", "xs", "ys", "__x", "data", "kept"]
SHADOWED = ["list", "sum", "len", "max", "type", "str", "print", "range", "dict", "sorted", "open"]
MISSING = ["nowhere", "tpyo", "undefined"]
_DEEP = 6
_PLACE = re.compile(r"<([a-z]+)>")
BEFORE = """
import collections, dataclasses, enum, functools, itertools, threading
import numpy as np
import torch
"""


def _grammar() -> dict[str, list[str]]:
    grammar: dict[str, list[str]] = {}
    for section in Path(__file__).with_name("messy.txt").read_text().split("=== ")[1:]:
        kind, _, forms = section.partition("\n")
        grammar[kind] = []
        for form in forms.strip("\n").split("\n\n"):
            times, many, rest = form.partition(" * ")
            grammar[kind] += [rest] * int(times) if many and times.isdigit() else [form]
    return grammar


GRAMMAR = _grammar()


class Notebook:
    """A generator of cells that fit what ``namespace`` holds at the time."""

    def __init__(self, seed: int, namespace: dict[str, Any]) -> None:
        self._random = random.Random(seed)
        self._namespace = namespace
        self._same = ""

    def cell(self) -> str:
        """Draw the next cell: it compiles, though it may fail."""
        while True:
            text = self._draw("cell", 0)
            try:
                compile(text, "<cell>", "exec")
            except SyntaxError:  # a parameter declared global
                continue
            return text

    def _draw(self, kind: str, depth: int) -> str:
        pick: Callable[[list[str]], str] = self._random.choice
        if kind in GRAMMAR:
            form = pick(GRAMMAR[kind])
            if depth >= _DEEP:
                form = "<k>" if kind in ("expr", "call", "test") else "pass"
            return "\n".join(self._filled(line, depth + 1) for line in form.split("\n"))
        if kind in ("new", "fn", "cls"):
            names = {"new": NAMES, "fn": ["f", "g", "h", *NAMES], "cls": ["A", "B", "C"]}[kind]
            self._same = pick(SHADOWED) if self._random.random() < 0.06 else pick(names)
        if kind in ("new", "fn", "cls", "same"):
            return self._same
        if kind == "k":
            return str(self._random.randrange(4))
        return pick(MISSING) if kind == "missing" else self._had(kind)

    def _filled(self, line: str, depth: int) -> str:
        indent = "\n" + line[: len(line) - len(line.lstrip())]
        return _PLACE.sub(lambda match: self._draw(match[1], depth).replace("\n", indent), line)

    def _had(self, kind: str) -> str:
        if self._random.random() < 0.03:
            return str(self._random.choice([*NAMES, *SHADOWED, *MISSING]))
        candidates = [name for name, value in self._namespace.items() if name in _OURS and _is(value, kind)]
        return str(self._random.choice(candidates or NAMES))


_OURS = {*NAMES, *SHADOWED}
_KINDS = {"list": list, "dict": dict, "class": type, "function": types.FunctionType, "name": object}


def _is(value: Any, kind: str) -> bool:
    if kind == "tensor":
        return type(value).__name__ == "Tensor"
    if kind == "object":
        return type(value).__module__ == "__main__" and not isinstance(value, type)
    return isinstance(value, _KINDS[kind])
