"""What tells two calls apart: the same cell over the same values has the same fingerprint."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nbtorchjob.runtime.objects import rebuilt

if TYPE_CHECKING:
    from nbtorchjob.capture.model import Call

# A pickle's frames are as long as the file names in it, which hold the kernel's process id.
_FRAME = re.compile(rb"\x95.{8}", re.DOTALL)
_SHORT_BINUNICODE = b"\x8c"


def of(call: Call) -> str:
    """Return 40 hex digits: the same for a cell that is run again unchanged, also by a new kernel.

    It may differ for equal calls where pickling isn't deterministic (a set of texts): then the
    second is simply another job.
    """
    sha256 = hashlib.sha256(stable(call.pickle, call.sources))
    for view in call.buffers:
        sha256.update(view)
    for local in call.files:
        sha256.update(local.path.encode() + hashlib.sha256(local.data).digest())
    if call.wanted:
        sha256.update(call.wanted.digest.encode())
    for file in call.shipped:
        content = file.sha256 or f"{file.size} {file.mtime}"
        sha256.update(f"{file.path}\0{file.executable}\0{content}\0".encode())
    for folder in call.data:
        sha256.update(f"{folder.name}\0{folder.listed.sha256}\0".encode())
    return sha256.hexdigest()[:40]


def stable(pickled: bytes, sources: Mapping[str, str]) -> bytes:
    """Return a pickle without what differs between kernels, and from one run of a cell to the next."""
    data = _FRAME.sub(b"", pickled)
    for filename, text in sources.items():
        # The text says more than the name: it is In[3] today and In[7] tomorrow.
        data = _replaced(data, filename, hashlib.sha256(text.encode()).digest())
    for tag in rebuilt.tags():
        data = _replaced(data, tag, b"class")
    return data


def _replaced(data: bytes, text: str, stable: bytes) -> bytes:
    raw = text.encode()
    return data.replace(_SHORT_BINUNICODE + bytes([len(raw) & 0xFF]) + raw, stable)
