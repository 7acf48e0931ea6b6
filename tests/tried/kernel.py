"""Run the cells of a page in a kernel of this interpreter, and compare their output."""

from __future__ import annotations

import queue
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jupyter_client.manager import KernelManager

_LIMIT_S = 180.0
_CHECK = re.compile(r"^## (.+?)\n`(.+?)`(?:; not `(.+?)`)?\n\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_CELL = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Check(NamedTuple):
    """Cells, a pattern that their whole output must match, and one that it must not."""

    title: str
    pattern: str
    never: str
    cells: tuple[str, ...]


def checks(page: str) -> Iterator[Check]:
    """Yield the checks of a page beside this file."""
    for title, pattern, never, body in _CHECK.findall((Path(__file__).parent / page).read_text()):
        yield Check(title, pattern, never, (*_CELL.findall(body),))


def shown(client: Any, cell: str) -> str:
    """Run a cell; return its output as text. Raises ``TimeoutError``."""
    until, parts, updates = time.monotonic() + _LIMIT_S, list[str](), 0
    message = client.execute(cell)
    while True:
        try:
            reply = client.get_iopub_msg(timeout=max(0.1, until - time.monotonic()))
        except queue.Empty:
            raise TimeoutError(f"after {_LIMIT_S:.0f} s: {''.join(parts)[-300:]}") from None
        if reply["parent_header"].get("msg_id") != message:
            continue
        kind, content = reply["msg_type"], reply["content"]
        updates += kind == "update_display_data"
        if kind == "status" and content["execution_state"] == "idle":
            return f"{''.join(parts)}\nupdates: {updates}\n"
        if kind == "stream":
            parts.append(content["text"])
        elif kind == "error":
            parts.append("\n".join(content["traceback"]))
        elif "data" in content:
            parts.append(f"\n{content['data'].get('text/plain', '')}\n{' '.join(content['data'])}\n")


def run(page: str) -> dict[str, str]:
    """Run all checks of a page in a new kernel; return those that failed, each with its output."""
    manager = KernelManager()
    # The kernel of this interpreter, whatever kernelspecs are installed.
    spec: Any = manager.kernel_spec
    spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.start_kernel()
    failed: dict[str, str] = {}
    try:
        client = manager.client()
        client.start_channels()
        client.allow_stdin = False
        client.wait_for_ready(timeout=_LIMIT_S)
        trouble = shown(client, "%load_ext nbtorchjob")
        if "Error" in trouble:
            failed["%load_ext nbtorchjob"] = trouble
        for check in checks(page) if not failed else ():
            try:
                text = _COLOURS.sub("", "".join(shown(client, cell) for cell in check.cells))
            except TimeoutError as exc:
                failed[check.title] = str(exc)
                break
            good = re.search(check.pattern, text, re.MULTILINE)
            if not good or (check.never and re.search(check.never, text)):
                failed[check.title] = text[-1500:]
            print("." if check.title not in failed else "F", end="", flush=True)
        client.stop_channels()
    finally:
        manager.shutdown_kernel(now=True)
    print()
    return failed
