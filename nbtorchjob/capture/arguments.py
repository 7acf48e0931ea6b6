"""The arguments of a cell's function, and those that each run of a group gets.

As in plain Python, a default comes before a variable of the notebook that has the parameter's name. The
function is never run or even created on the host: what it needs may exist only on a rank.

An argument comes from ``--arg name=text``, else the default, else the notebook. A run's values are pickled
apart from the call, which all runs share.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import math
import re
import shlex
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from nbtorchjob.capture import pickling, report
from nbtorchjob.capture.cells import Function
from nbtorchjob.errors import CaptureError
from nbtorchjob.runtime.facts.secret import MASKED, masked
from nbtorchjob.runtime.objects import sources
from nbtorchjob.text import words

# What people write without quotes though it isn't Python: cuda:0, ./data, 2024-01-01.
_WORD = re.compile(r"[\w./:@~+-]+")


def bind(
    entry: Function, texts: Mapping[str, str], namespace: Mapping[str, Any], rank_names: Container[str] = ()
) -> dict[str, Any]:
    """Return the values to call ``entry`` with, by name, without parameters that keep their defaults.

    Parameters in ``rank_names``, which a lab's ranks have, are left out, too.

    Raises ``CaptureError`` for an argument that ``entry`` doesn't take, or one that is missing.
    """
    spec = entry.args
    named = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]
    parameter_names = [parameter.arg for parameter in named]
    unknown = [name for name in texts if name not in parameter_names]
    clash = {parameter.arg for parameter in entry.args.posonlyargs}.intersection(unknown)
    if unknown and (entry.args.kwarg is None or clash):
        takes = ", ".join(parameter_names) if parameter_names else "none at all"
        raise CaptureError(f"{entry.name}() has no parameter {unknown[0]!r}; its parameters are: {takes}")
    needs = [name for name in _required(spec) if name in texts or name not in rank_names]
    values = {name: namespace[name] for name in needs if name in namespace and name not in texts}
    values |= {name: evaluate(name, text, namespace) for name, text in texts.items()}
    missing = [name for name in needs if name not in values]
    if missing:
        flags = " ".join(f"--arg {name}=VALUE" for name in missing)
        words = ", ".join(map(repr, missing))
        raise CaptureError(
            f"{entry.name}() needs {words}, and the notebook has no variable of that name: "
            f"give {flags}, or set it in the notebook"
        )
    return values


def as_line(args: Mapping[str, str], argv: Sequence[str]) -> str:
    """Return a cell's arguments as its line has them; ``MASKED`` if one may be a secret."""
    pairs = [*args.items(), *pairwise(["", *argv])]
    pairs += [(name, value) for name, equals, value in (word.partition("=") for word in argv) if equals]
    for name, text in pairs:
        number = re.fullmatch(r"[\d.eE+-]{1,16}", text)  # --max-tokens 512
        if not number and report.is_secret(name if name in args or name.startswith("-") else "", text):
            return MASKED
    line = [word for name, text in args.items() for word in ("--arg", f"{name}={text}")]
    return shlex.join([*line, *(["--", *argv] if argv else [])])


def evaluate(name: str, text: str, namespace: Mapping[str, Any]) -> Any:
    """Return the value of ``--arg name=text``: Python with the notebook's names, else a bare word.

    Raises ``CaptureError`` if it is neither, or if evaluating it fails.
    """
    text = text.strip()
    try:
        code = compile(text, f"<--arg {name}>", "eval", 0, True)
    except (SyntaxError, ValueError) as exc:
        if _WORD.fullmatch(text):
            return text
        raise CaptureError(
            f"--arg {name}={text}: this isn't Python ({exc}); put a string in quotes twice, "
            f"as in --arg {name}='\"text\"'"
        ) from exc
    try:
        # A copy, because a walrus in the text would set a variable of the notebook.
        return eval(code, dict(namespace))
    except NameError as exc:
        if text.isidentifier():
            return text
        raise CaptureError(f"--arg {name}={text}: {exc} in the notebook") from exc
    except Exception as exc:
        raise CaptureError(f"--arg {name}={text}: {type(exc).__name__}: {exc}") from exc


def names(entry: Function) -> list[str]:
    """Return all parameters that have a name of their own."""
    return [argument.arg for argument in (*entry.args.posonlyargs, *entry.args.args, *entry.args.kwonlyargs)]


def required(entry: Function) -> list[str]:
    """Return the parameters that have no default."""
    return _required(entry.args)


def _required(spec: ast.arguments) -> list[str]:
    positional = [*spec.posonlyargs, *spec.args]
    bare = positional[: len(positional) - len(spec.defaults)]
    pairs = zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
    return [p.arg for p in (*bare, *(p for p, default in pairs if default is None))]


_MOST_BYTES = 16 * 1024  # each run's record holds its values, and a list of a cluster's jobs has all records
_MOST_TEXT = 80


def pickled(values: Mapping[str, Any], *, sourced: bool = False) -> bytes:
    """Pickle one run's values; raises ``CaptureError`` if they can't travel, or are too big.

    With ``sourced``, the sources of their code go along, for another Python.
    """
    try:
        dumped = pickling.dump({"given": dict(values)})
    except Exception as exc:  # whatever an object's own code raises while it is pickled
        raise pickling.explain(dict(values), exc) from exc
    code = dumped.seen.code.table() if sourced else {"places": []}
    data = (sources.front(code) if code["places"] else b"") + dumped.data
    size = len(data) + sum(view.nbytes for view in dumped.buffers)
    if dumped.buffers or size > _MOST_BYTES:
        raise CaptureError(
            f"{', '.join(values)}: one run's values take {words.size(size)}, more than "
            f"{words.size(_MOST_BYTES)}: put them all in a variable, and vary an index into it"
        )
    return data


def modules(values: Mapping[str, Any]) -> frozenset[str]:
    """Return the modules that the values refer to; none if they can't travel, which is reported later."""
    try:
        return frozenset(pickling.dump({"given": dict(values)}).seen.modules)
    except Exception:
        return frozenset()


def shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return one run's values as plain data: numbers, short texts, and descriptions of all other values.

    The description of a possible secret is only its type.
    """
    plain: dict[str, Any] = {}
    for name, value in values.items():
        if getattr(value, "shape", None) == () and hasattr(value, "item"):
            value = value.item()  # numpy's numbers, and torch's
        if report.is_secret(name, value):
            plain[name] = f"<masked {report.type_name(value)}>"
        elif value is None or isinstance(value, bool | int):
            plain[name] = value
        elif isinstance(value, float):
            plain[name] = float(value) if math.isfinite(value) else str(value)
        else:
            text = value if isinstance(value, str) else masked(words.short(value))
            plain[name] = words.clip(text, _MOST_TEXT)
    return plain


def as_text(values: Mapping[str, Any]) -> str:
    """Return values as they are shown: ``lr=0.1, seed=0``."""
    return ", ".join(f"{name}={value}" for name, value in values.items())


def check_read(names: Iterable[str], read_names: Iterable[str], sets: Iterable[str], reader: str) -> None:
    """Raise ``CaptureError`` for a name that isn't among ``read_names``, which a cell reads."""
    read_names = [*read_names]
    for name in names:
        if name in read_names:
            continue
        if name in sets:
            raise CaptureError(f"--each {name}: {reader} sets {name} itself: remove that line")
        near = difflib.get_close_matches(name, read_names, 1)
        hint = f"did you mean {near[0]}?" if near else "each run would do the same"
        raise CaptureError(f"--each {name}: {reader} doesn't read {name}: {hint}")


def positional(fn: Callable[..., Any], many: int) -> list[str]:
    """Return the names of a function's first ``many`` positional arguments, or fewer if it takes fewer."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # a C function
        return []
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            names += [parameter.name] * (many - len(names))
    return names[:many]


def check_apart(run_values: Iterable[str], call_values: Container[str], source: str) -> None:
    """Raise ``CaptureError`` for a name that both ``--each`` and the call set: one would be lost silently."""
    for name in run_values:
        if name in call_values:
            raise CaptureError(f"{name} is given twice, by --each and by {source}: leave one of them out")


def check_taken(fn: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise ``CaptureError`` if a function doesn't take these arguments, or needs more."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # a C function
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as exc:
        name = getattr(getattr(fn, "func", fn), "__name__", "the function")
        raise CaptureError(f"{name}({as_text(shown(kwargs))}): {exc}; it is {name}{signature}") from None
