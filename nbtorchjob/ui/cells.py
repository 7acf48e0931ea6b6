"""A notebook's cells: the function that was defined last."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any


def last_function(namespace: Mapping[str, Any]) -> str | None:
    """Give the name of the function that a cell defined last and that still is one; None without any."""
    for cell in reversed(namespace.get("In") or ()):
        for name in reversed(_defined(cell)):
            if callable(namespace.get(name)):
                return name
    return None


def _defined(cell: str) -> list[str]:
    try:
        statements = ast.parse(cell).body
    except SyntaxError:
        return []
    return [each.name for each in statements if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
