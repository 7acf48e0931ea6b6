"""Modules of the program that a question brings along, as most jobs are never asked it.

The question is signed with the job's key, as the payload is. A node adds what it brings to the modules of
its payload (``start/modules.py``), and leaves it in its own folder for ranks. A whole program has them all.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from typing import Any, Mapping

_FILE = "late-modules.json"  # in a node's folder


def bring(sources: Mapping[str, str]) -> None:
    """Have modules be found that aren't there yet: texts by their file's name in a payload."""
    for finder in sys.meta_path:
        add: Any = getattr(finder, "add_late", None)
        if add is not None:
            add(sources)


def leave(folder: str, sources: Mapping[str, str]) -> None:
    """Leave modules for the ranks of the node with that folder."""
    path = os.path.join(folder, _FILE)
    if sources and not os.path.exists(path):
        with open(path + ".partial", "w") as file:
            json.dump(dict(sources), file)
        os.replace(path + ".partial", path)


def take(folder: str) -> None:
    """Take in what the node has left."""
    with suppress(FileNotFoundError), open(os.path.join(folder, _FILE)) as file:
        bring(json.load(file))
