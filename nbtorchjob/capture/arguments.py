"""The arguments of a cell's function: from ``--arg name=text``, else its defaults, else the notebook.

As in plain Python, a default comes before a variable of the notebook that has the parameter's name. The
function is never run or even made on the host: what it needs may only be there on a rank.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Mapping
from typing import Any

from nbtorchjob.capture.cells import Function
from nbtorchjob.errors import CaptureError

# What people write without quotes though it isn't Python: cuda:0, ./data, 2024-01-01.
_WORD = re.compile(r"[\w./:@~+-]+")


def bind(
    entry: Function, given: Mapping[str, str], namespace: Mapping[str, Any], theirs: Container[str] = ()
) -> dict[str, Any]:
    """Return the values to call ``entry`` with, by name; a parameter left to its default isn't there.

    Nor is one that is ``theirs``, which a lab's ranks have.

    Raises ``CaptureError`` for an argument that ``entry`` doesn't take, or one that is missing.
    """
    spec = entry.args
    named = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]
    _refuse_unknown(entry, [parameter.arg for parameter in named], given)
    needs = [name for name in _required(spec) if name in given or name not in theirs]
    values = {name: namespace[name] for name in needs if name in namespace and name not in given}
    values |= {name: evaluate(name, text, namespace) for name, text in given.items()}
    missing = [name for name in needs if name not in values]
    if missing:
        flags = " ".join(f"--arg {name}=VALUE" for name in missing)
        words = ", ".join(map(repr, missing))
        raise CaptureError(
            f"{entry.name}() needs {words}, and the notebook has no variable of that name: "
            f"give {flags}, or set it in the notebook"
        )
    return values


def evaluate(name: str, text: str, namespace: Mapping[str, Any]) -> Any:
    """Return the value of ``--arg name=text``: Python with the notebook's names, else a bare word.

    Raises ``CaptureError`` where it is neither, or raises while it is evaluated.
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


def _refuse_unknown(entry: Function, known: list[str], given: Mapping[str, str]) -> None:
    unknown = [name for name in given if name not in known]
    clash = {parameter.arg for parameter in entry.args.posonlyargs}.intersection(unknown)
    if unknown and (entry.args.kwarg is None or clash):
        takes = ", ".join(known) if known else "none at all"
        raise CaptureError(f"{entry.name}() has no parameter {unknown[0]!r}; its parameters are: {takes}")


def names(entry: Function) -> list[str]:
    """Return all parameters that have a name of their own."""
    return [each.arg for each in (*entry.args.posonlyargs, *entry.args.args, *entry.args.kwonlyargs)]


def required(entry: Function) -> list[str]:
    """Return the parameters that have no default."""
    return _required(entry.args)


def _required(spec: ast.arguments) -> list[str]:
    positional = [*spec.posonlyargs, *spec.args]
    bare = positional[: len(positional) - len(spec.defaults)]
    pairs = zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
    return [p.arg for p in (*bare, *(p for p, default in pairs if default is None))]
