"""Where distributions are from that no index has: what their installer wrote down of it (PEP 610)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from nbtorchjob.environment import here
from nbtorchjob.runtime import environment as runtime

_MOST_BYTES = 4096  # of what an installer wrote down
_HASH = re.compile(r"[a-z0-9]{1,16}=[0-9a-f]{8,128}")
_PLAIN = re.compile(r"[!-~]{1,1000}")  # of a URL: what a requirement can hold


def origins() -> dict[str, str]:
    """Return what was written down of each distribution of this interpreter that wasn't taken by its name."""
    found: dict[str, str] = {}
    for folder, changed in here.folders():
        found = _listed(folder, changed) | found  # of two that have a name the first is imported
    return found


@lru_cache(maxsize=1024)
def _listed(folder: str, changed: int) -> dict[str, str]:
    found: dict[str, str] = {}
    with suppress(OSError):
        for name in os.listdir(folder):
            known = runtime.parsed(os.path.join(folder, name)) if name.endswith(".dist-info") else None
            with suppress(OSError):
                text = Path(folder, name, "direct_url.json").read_text() if known else ""
                if known and len(text) <= _MOST_BYTES:
                    found.setdefault(known[0], text)
    return found


def reference(told: str) -> tuple[str, str]:
    """Return what installs a distribution from where it came (PEP 508), and else in words where that was.

    ``told`` is what was written down, maybe by somebody else. What lies on a machine's disk isn't
    elsewhere, so of that there are only words.
    """
    try:
        found = json.loads(told)
        url, folder = _without_secrets(found["url"]), found.get("dir_info")
        if url.startswith("file:"):
            path = unquote(urlsplit(url).path)
            how = "editable, from" if folder and folder.get("editable") else "installed from"
            return "", f"{how} {path}"
        below = f"subdirectory={found['subdirectory']}" if found.get("subdirectory") else ""
        if "vcs_info" in found:
            vcs = found["vcs_info"]
            whole = f"{vcs['vcs']}+{url}@{vcs['commit_id']}" + (f"#{below}" if below else "")
        else:
            parts = [below, _hash(found.get("archive_info") or {})]
            whole = url + ("#" + "&".join(filter(None, parts)) if any(parts) else "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "", "installed from somewhere that can't be told"
    if _PLAIN.fullmatch(whole) is None:
        return "", "installed from somewhere that can't be told"
    return whole, ""


def _without_secrets(url: str) -> str:
    """Return a URL without a password, and without a user unless that is how SSH is spoken."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    keeps = at and parts.scheme == "ssh" and ":" not in user
    return url if not at or keeps else urlunsplit(parts._replace(netloc=host))


def _hash(archive: Mapping[str, Any]) -> str:
    text = archive.get("hash") or next((f"{k}={v}" for k, v in (archive.get("hashes") or {}).items()), "")
    return text if _HASH.fullmatch(text) else ""
