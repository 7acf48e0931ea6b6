"""A notebook's cells: how they are called, and the function that was defined last."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def label(shell: InteractiveShell, filename: str) -> str:
    """Give what IPython calls the cell of that file name: ``Cell In[3]``; other files keep theirs."""
    with suppress(AttributeError):  # IPython's own naming of cells, which it doesn't promise
        found = shell.compile.format_code_name(filename)
        if found is not None:
            return " ".join(found)
    return filename


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
