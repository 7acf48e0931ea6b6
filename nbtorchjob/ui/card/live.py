"""What the card of an unfinished job also contains: the script for its buttons, its search and updates."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from nbtorchjob.state import JobInfo
from nbtorchjob.ui.offers import Offers

_KERNEL = "kernel-"  # Jupyter Server's name for a connection file (jupyter_client 8, MultiKernelManager)


def script(info: JobInfo, offers: Offers) -> str:
    """Return a ``<script>`` that adds buttons to its own output, where a server handles them."""
    buttons = [
        {"verb": verb, "label": o.label, "asks": bool(o.warning), "done": o.done}
        for verb, o in offers.items()
        if o.done
    ]
    given = {"job": info.id, "name": info.name, "kernel": _kernel(), "buttons": buttons}
    # A name that contains </script> would end the script.
    told = json.dumps(given).replace("<", "\\u003c")
    return f"<script>({_source()})(document.currentScript.parentElement, {told})</script>"


@lru_cache(maxsize=1)
def _source() -> str:
    return Path(__file__).with_suffix(".js").read_text(encoding="utf-8").strip()


@lru_cache(maxsize=1)
def _kernel() -> str:
    """Return Jupyter Server's id of this kernel; empty where no such server started it, as in VS Code."""
    try:
        from ipykernel.connect import get_connection_file  # not needed in a terminal

        file = Path(get_connection_file()).stem
    except (ImportError, RuntimeError):
        return ""
    return file.removeprefix(_KERNEL) if file.startswith(_KERNEL) else ""
