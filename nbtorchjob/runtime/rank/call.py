"""The call on a rank: a function with its arguments, or a cell's text with the names it reads.

A cell runs as module-level code in one namespace with the notebook functions it came with, as it
would in the notebook: that namespace is the ``__globals__`` of the pickled function ``namespace``.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import sys
import types
import warnings
from typing import Any

from nbtorchjob.runtime.api import displays
from nbtorchjob.runtime.api.points import KEPT_AT
from nbtorchjob.runtime.objects import sources

# Holds the last expression's value; no name that a cell can spell.
_VALUE = "<value>"
CANNOT_STOP = "the ranks of this job can't stop: start it with --debug-wait 300"


def pass_over(*args: Any, **kwargs: Any) -> Any:
    """Replace ``breakpoint()`` in a rank without a debugger: Python's own, without input, would end it."""
    if os.environ.get("PYTHONBREAKPOINT"):
        return sys.__breakpointhook__(*args, **kwargs)
    warnings.warn(f"breakpoint() is ignored: {CANNOT_STOP}", stacklevel=2)
    return None


def run(call: dict[str, Any], path: str = "") -> Any:
    """Return the function's result (awaited, if it is async) or the cell's last expression.

    ``call`` was pickled by ``nbtorchjob.capture``; ``path`` is the payload that contains it. Raises whatever
    the user's code raises.
    """
    namespace = namespace_of(call)
    sys.argv = list(call["argv"])
    become_main(namespace, path)
    return act(call, namespace, replay_in(namespace))


def replay_in(namespace: dict[str, Any]) -> Any:
    """Return a ``swapping.Replay`` of the swaps of earlier attempts, or None if there were none."""
    kept = os.environ.get(KEPT_AT, "")
    if not os.path.isdir(kept):
        return None
    from nbtorchjob.runtime.rank import swapping  # imported late: it travels only if code may be swapped

    return swapping.Replay(swapping.earlier(kept), namespace)


def act(call: dict[str, Any], namespace: dict[str, Any], replay: Any = None) -> Any:
    """Return what the function returns, or the cell's last expression; the cell runs in ``namespace``.

    ``replay`` makes swaps again as the code that they change is defined (``swapping.Replay``).
    """
    # Set this process up like the notebook's, whatever an earlier turn of a lab has set.
    settings = call.get("carried", {})
    logging = call.get("logging", {})
    if settings or logging or f"{__package__}.carried" in sys.modules:
        from nbtorchjob.runtime.rank import carried

        carried.lay(settings)
        carried.lay_logging(logging)
    if "function" in call:
        if replay is not None:
            replay.advance(())
        value = _finished(call["function"](*call["args"], **call["kwargs"]))
    else:
        value, cells = None, call.get("cells", [call])
        for at, cell in enumerate(cells, 1):
            if cell is not call:  # each cell of a lab has its own
                sys.argv = list(cell["argv"])
            value = _cell(cell, namespace, replay, cells[at:]) if is_mine(cell) else None
        displays.end_of_cell()
    training = sys.modules.get("nbtorchjob.runtime.api.training")  # it imports torch: most code has none
    if training is not None:
        training.end_of_call()
    return value


def is_mine(cell: dict[str, Any]) -> bool:
    """Whether a cell is for this rank: among several cells, some may be for only a few ranks."""
    return not cell.get("ranks") or int(os.environ["RANK"]) in cell["ranks"]


def namespace_of(call: dict[str, Any]) -> dict[str, Any]:
    """Return the names of ``__main__`` before the call, which the notebook's functions and the cell see."""
    function = call["namespace"] if "namespace" in call else call["function"]
    namespace: dict[str, Any] = getattr(getattr(function, "func", function), "__globals__", {})
    if namespace.get("__name__") != "__main__":
        namespace = {}
    for name, value in call["names"]:
        namespace.setdefault(name, value)
    return namespace


def become_main(namespace: dict[str, Any], path: str) -> None:
    """Make this process's ``__main__`` a module whose attributes are ``namespace``.

    Pickling by name (``torch.save``, collectives of objects) and ``typing.get_type_hints`` look up the
    notebook's classes there, and multiprocessing the file that recreates it in a process that it starts
    (``spawned.py``). The cell itself sees no ``__file__``, as in a notebook.
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

    main = Main("__main__")
    if path:
        object.__setattr__(main, "__file__", path)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main


def _cell(call: dict[str, Any], namespace: dict[str, Any], replay: Any, later: list[dict[str, Any]]) -> Any:
    text, filename = call["cell"], call["filename"]
    sources.show(text, filename)
    tree = ast.parse(text, filename)
    last = tree.body[-1]
    if isinstance(last, ast.Expr):
        assigned = ast.Assign(targets=[ast.Name(id=_VALUE, ctx=ast.Store())], value=last.value)
        tree.body[-1] = ast.fix_missing_locations(ast.copy_location(assigned, last))
    if replay is not None:
        namespace[replay.into(tree, later)] = replay.advance
    execute(tree, filename, call["flags"], namespace)
    if call["entry"] is not None:
        values = {name: namespace[name] for name in call.get("theirs", ())}
        function = namespace[call["entry"]]
        values = dict(values, **call["kwargs"])
        parameters = inspect.signature(function).parameters.values()
        ahead = [p for p in parameters if p.kind is p.POSITIONAL_ONLY]
        # A parameter without a value has a default: that was checked when the call was captured.
        args = [values.pop(p.name) if p.name in values else p.default for p in ahead]
        return _finished(function(*args, **values))
    return namespace.pop(_VALUE, None)


def execute(tree: ast.Module, filename: str, flags: int, namespace: dict[str, Any]) -> None:
    """Run the statements of a cell, which may await at their top."""
    code = compile(tree, filename, "exec", flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
    _finished(eval(code, namespace))


def _finished(result: Any) -> Any:
    return asyncio.run(result) if inspect.iscoroutine(result) else result
