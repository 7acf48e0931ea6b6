"""The call on a rank: a function with its arguments, or a cell's text with the names it reads.

A cell runs as module-level code in one namespace with the notebook functions it came with, as it
would in the notebook: that namespace is the ``__globals__`` of the pickled function ``namespace``.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import linecache
import sys
import types
from typing import Any

# Holds the last expression's value; no name that a cell can spell.
_VALUE = "<value>"


def run(call: dict[str, Any]) -> Any:
    """Give the function's result (awaited, if it is async) or the cell's last expression.

    ``call`` is what ``nbtorchjob.capture`` pickled. Raises what the user's code raises.
    """
    namespace = call["namespace"].__globals__ if "cell" in call else {}
    for definition in call["definitions"]:
        namespace.setdefault(definition.__name__, definition)
    sys.modules["__main__"] = _main(namespace)
    if "cell" in call:
        return _cell(call, namespace)
    return _finished(call["function"](*call["args"], **call["kwargs"]))


def _main(namespace: dict[str, Any]) -> types.ModuleType:
    """Give a ``__main__`` whose attributes are ``namespace``.

    Pickling by name (``torch.save``, collectives of objects) and ``typing.get_type_hints`` look the
    notebook's classes up there.
    """

    class Main(types.ModuleType):
        __dict__ = namespace

        def __getattr__(self, name: str) -> Any:
            try:
                return namespace[name]
            except KeyError:
                raise AttributeError(f"module '__main__' has no attribute {name!r}") from None

        def __setattr__(self, name: str, value: Any) -> None:
            namespace[name] = value

    return Main("__main__")


def _cell(call: dict[str, Any], namespace: dict[str, Any]) -> Any:
    text, filename = call["cell"], call["filename"]
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    tree = ast.parse(text, filename)
    _keep_last(tree)
    flags = call["flags"] | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    _finished(eval(compile(tree, filename, "exec", flags, True), namespace))
    if call["entry"] is not None:
        return _finished(_enter(namespace[call["entry"]], dict(call["kwargs"])))
    return namespace.pop(_VALUE, None)


def _keep_last(tree: ast.Module) -> None:
    last = tree.body[-1]
    if isinstance(last, ast.Expr):
        kept = ast.Assign(targets=[ast.Name(id=_VALUE, ctx=ast.Store())], value=last.value)
        tree.body[-1] = ast.fix_missing_locations(ast.copy_location(kept, last))


def _enter(function: Any, values: dict[str, Any]) -> Any:
    parameters = inspect.signature(function).parameters.values()
    ahead = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]
    # One without a value has a default: the host saw to that.
    args = [values.pop(p.name) if p.name in values else p.default for p in ahead]
    return function(*args, **values)


def _finished(result: Any) -> Any:
    return asyncio.run(result) if inspect.iscoroutine(result) else result
