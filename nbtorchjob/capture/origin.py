"""Where a call is written: which notebook, which cell, and what that calls its cells."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from nbtorchjob.state import Origin

# As jupyter_client numbers what it sends (8.10): session, process, count; frontends in JavaScript send UUIDs.
_PYTHONS = re.compile(r".+_\d+_\d+")


def here(sources: Iterable[str]) -> Origin:
    """Return where a call made now was written; empty outside IPython, which isn't imported for that."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return Origin() if shell is None else of(shell, sources)


def of(shell: Any, sources: Iterable[str], named: Mapping[str, str] | None = None) -> Origin:
    """Return where a call made now was written; ``sources`` are the files of its code, ``named`` some labels.

    JupyterLab sends a cell's id along when it runs it, and Jupyter Server tells its kernels which file
    they were started for; both are empty elsewhere.
    """
    request: Mapping[str, Any] = shell.get_parent() if hasattr(shell, "get_parent") else {}
    cell = (request.get("metadata") or {}).get("cellId")
    labels = {name: _label(shell, name) for name in sources} | dict(named or {})
    return Origin(os.environ.get("JPY_SESSION_NAME", ""), cell if isinstance(cell, str) else "", labels)


def in_console(shell: Any) -> bool:
    """Whether the cell was typed into a console: ``jupyter console``, Qt's, Spyder's.

    These are jupyter_client with somebody at the keyboard, and show no output that is updated later. What
    runs notebooks from Python (nbclient) has no keyboard.
    """
    request: Mapping[str, Any] = shell.get_parent() if hasattr(shell, "get_parent") else {}
    asked, header = request.get("content") or {}, request.get("header") or {}
    return bool(asked.get("allow_stdin")) and _PYTHONS.fullmatch(str(header.get("msg_id"))) is not None


def _label(shell: Any, filename: str) -> str:
    """Return what IPython calls the cell of that file name: ``Cell In[3]``; other files keep theirs."""
    with suppress(AttributeError):  # IPython's own naming of cells, which it doesn't promise
        if not hasattr(shell.compile, "format_code_name"):
            # IPython before 8 keeps no list: the newest cell of the file's text is it.
            text = "".join(linecache.getlines(filename)).rstrip("\n")
            cells = [cell.rstrip("\n") for cell in shell.history_manager.input_hist_parsed]
            numbers = [number for number, cell in enumerate(cells) if text and cell == text]
            return f"Cell In[{numbers[-1]}]" if numbers else filename
        words = shell.compile.format_code_name(filename)
        if words is not None:
            return " ".join(words)
    return filename
