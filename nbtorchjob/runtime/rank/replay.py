"""An attempt that starts anew makes the changes of those before it again.

Each is made as soon as what it changes stands there: after the last statement of the cell, loops left out,
that sets a name which the change concerns.
"""

from __future__ import annotations

import ast
import os
import re
from typing import Any, Dict, Iterable, Iterator, List, Set, Tuple

from nbtorchjob.runtime.rank import call, optimizers
from nbtorchjob.runtime.rank.names import Names
from nbtorchjob.runtime.rank.swapped import Change, restore
from nbtorchjob.runtime.store.payload import Payload


def earlier(folder: str) -> List[str]:
    """Return the payloads of the swaps in a folder, in their order."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    numbers = sorted(int(name.partition(".")[0]) for name in names if re.match(r"\d+\.payload$", name))
    return [os.path.join(folder, "%d.payload" % number) for number in numbers]


class Replay:
    """Makes earlier changes again, each once what it changes stands in the namespace ``space``."""

    def __init__(self, paths: List[str], space: Dict[str, Any]) -> None:
        self._space = space
        self._left: List[Tuple[ast.stmt, Dict[str, Any]]] = []
        settings: List[Tuple[str, optimizers.Setting]] = []
        for path in paths:
            payload = Payload(path)
            words = payload.header["swap"]
            for setting, value in words.get("settings", {}).items():
                settings.append((words["id"], optimizers.Setting(setting, value, space)))
            payload.show_sources()
            content = Names(space, ()).load(payload)
            call.show(content["cell"], content["filename"])
            tree = ast.parse(content["cell"], content["filename"])
            self._left += [(statement, content) for statement in tree.body]
        if settings:
            optimizers.again(settings)

    def advance(self, awaited: Iterable[str]) -> None:
        """Make those changes that concern none of the names that are yet to be set."""
        left, self._left, awaited = self._left, [], set(awaited)
        for statement, content in left:
            if set_by(statement) & awaited or not self._made(statement, content, bool(awaited)):
                self._left.append((statement, content))

    def _made(self, statement: ast.stmt, content: Dict[str, Any], early: bool) -> bool:
        change, before = Change(self._space), dict(self._space)
        try:
            tree = ast.Module([statement], [])
            call.execute(tree, content["filename"], content["flags"], self._space)
            change.take(before, dict(self._space))
            change.words["sets"] = set_by(statement)
        except NameError:
            if not early:
                raise
            return False
        finally:
            restore(self._space, before)
        change.apply()
        return True

    def into(self, tree: ast.Module) -> str:
        """Have a cell's statements call :meth:`advance` by a name; return the name."""
        tree.body = [*_advancing(tree.body, set()), _advance(set(), tree.body[-1])]
        ast.fix_missing_locations(tree)
        return _AGAIN


_AGAIN = "<again>"  # no name that a cell can spell


def _advancing(body: List[ast.stmt], later: Set[str]) -> List[ast.stmt]:
    """Return statements with a call of ``Replay.advance`` after each that sets names.

    ``later`` are the names that are set after all of them.
    """
    out: List[ast.stmt] = []
    for index, statement in enumerate(body):
        awaited = later.union(*map(set_by, body[index + 1 :]))
        for owner, field, rest in _branches(statement):
            branch = _advancing(getattr(owner, field), awaited.union(*map(set_by, rest)))
            setattr(owner, field, branch)
        out.append(statement)
        # The imports from __future__ come before all else.
        if set_by(statement) and getattr(statement, "module", "") != "__future__":
            out.append(_advance(awaited, statement))
    return out


def _advance(awaited: Set[str], after: ast.stmt) -> ast.stmt:
    names = ast.parse(repr(sorted(awaited)), mode="eval").body
    return ast.copy_location(ast.Expr(ast.Call(ast.Name(_AGAIN, ast.Load()), [names], [])), after)


def _branches(statement: ast.stmt) -> Iterator[Tuple[Any, str, List[ast.stmt]]]:
    """Yield where the branches of a statement are, each with the statements that are run after it."""
    branching: Any = statement
    if isinstance(statement, (ast.If, ast.With, ast.AsyncWith)):
        yield branching, "body", []
        if isinstance(statement, ast.If):
            yield branching, "orelse", []
    elif hasattr(statement, "handlers"):  # `try`, of which there are two
        final = branching.finalbody
        yield branching, "body", [*branching.orelse, *final]
        yield branching, "orelse", final
        yield branching, "finalbody", []
        for handler in branching.handlers:
            yield handler, "body", final
    for case in getattr(statement, "cases", ()):
        yield case, "body", []


def set_by(statement: ast.stmt) -> Set[str]:
    """Return the names that a statement sets; those that loops set, again and again, aren't among them."""
    names: Set[str] = set()
    waiting: List[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
            continue
        if isinstance(node, _SET_ELSEWHERE):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        waiting += ast.iter_child_nodes(node)
    return names


_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SET_ELSEWHERE = (*_LOOPS, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
