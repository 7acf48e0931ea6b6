"""Packages that a job installs when its nodes start, beside what the image has."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any, Dict, Sequence

from .payload import PayloadError


def install(requirements: Sequence[str], folder: str) -> None:
    """Install pip ``requirements`` into ``folder`` and have this node and its ranks import from there.

    Only what the image lacks is installed: ``pip install --target`` alone would bring its own copy of
    all that a requirement needs, torch as well. Raises ``PayloadError`` where pip can't.
    """
    if importlib.util.find_spec("pip") is None:
        raise PayloadError("this image has no pip to install %s with" % ", ".join(requirements))
    report = os.path.join(folder, "report.json")
    os.makedirs(folder, exist_ok=True)
    _pip(requirements, "--dry-run", "--report", report)
    with open(report, encoding="utf-8") as file:
        missing = [_pinned(item) for item in json.load(file)["install"]]
    if missing:
        _pip(missing, "--no-deps", "--target", folder)
    # Before the image's own: what is there now was asked for because the image's wouldn't do.
    sys.path.insert(1, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))


def _pip(requirements: Sequence[str], *options: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    sys.stdout.flush()
    ended = subprocess.run([*command, *options, "--", *requirements], stdin=subprocess.DEVNULL)
    if ended.returncode:
        raise PayloadError(
            "pip couldn't install %s (exit code %d); its last lines in the node's log say why"
            % (", ".join(requirements), ended.returncode)
        )


def _pinned(item: Dict[str, Any]) -> str:
    """Return the requirement for what pip's report decided on (its installation report, version 1)."""
    name, source = item["metadata"]["name"], item["download_info"]
    if not item["is_direct"]:
        return "%s==%s" % (name, item["metadata"]["version"])
    version = source.get("vcs_info")
    at = "%s+%s@%s" % (version["vcs"], source["url"], version["commit_id"]) if version else source["url"]
    return "%s @ %s" % (name, at)
