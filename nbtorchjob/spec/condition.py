"""When a run of a group is stopped early: ``loss > 2 * best_loss and epoch > 3``. It is never run as code."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from nbtorchjob.errors import SpecError

BEST, MEDIAN, EPOCH = "best_", "median_", "epoch"
_MOST = 500  # characters
_ALLOWED = f"metrics, {BEST}METRIC, {MEDIAN}METRIC, {EPOCH}, numbers, + - * / ( ), comparisons, and, or, not"

_ARITHMETIC: Mapping[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: a / b if b else math.nan,
}
_COMPARED: Mapping[type, Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


class Condition:
    """A condition on what a run reports; raises ``SpecError`` for a text that isn't one."""

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body if len(text) <= _MOST else None
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self._tree = None
        if self._tree is None or not _decides(self._tree):
            raise SpecError("stop_when", text, f"a condition of {_ALLOWED}, such as loss > 2 * best_loss")
        self.names = sorted({node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name)})

    def holds(self, values: Mapping[str, float]) -> bool:
        """Whether it holds for a run of these values; of one that it can't be told of it doesn't."""
        assert self._tree is not None
        if any(name not in values for name in self.names):
            return False
        return bool(_value(self._tree, values))


def _decides(node: ast.AST) -> bool:
    """Whether a node is a condition."""
    if isinstance(node, ast.BoolOp):
        return all(map(_decides, node.values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _decides(node.operand)
    known = isinstance(node, ast.Compare) and all(type(op) in _COMPARED for op in node.ops)
    return known and all(map(_counts, (node.left, *node.comparators)))  # type: ignore[attr-defined]


def _counts(node: ast.AST) -> bool:
    """Whether a node is a number, or comes to one."""
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    if isinstance(node, ast.BinOp):
        return type(node.op) in _ARITHMETIC and _counts(node.left) and _counts(node.right)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and _counts(node.operand)
    return isinstance(node, ast.Name)


def _value(node: Any, values: Mapping[str, float]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.BinOp):
        return _ARITHMETIC[type(node.op)](_value(node.left, values), _value(node.right, values))
    if isinstance(node, ast.UnaryOp):
        found = _value(node.operand, values)
        return not found if isinstance(node.op, ast.Not) else -found
    if isinstance(node, ast.BoolOp):
        found = (_value(each, values) for each in node.values)
        return all(found) if isinstance(node.op, ast.And) else any(found)
    parts = [_value(each, values) for each in (node.left, *node.comparators)]
    pairs = zip(parts, node.ops, parts[1:], strict=False)
    return all(_COMPARED[type(op)](left, right) for left, op, right in pairs)
