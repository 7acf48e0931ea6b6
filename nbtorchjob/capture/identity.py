"""The identity of calls and captured values: their digests, and who wrote a call, and where.

The same cell over the same values has the same fingerprint, and the same value the same digest, in another
kernel, too. A big value is only sampled, so that this takes no longer than pickling it; its digest then
begins with ``SAMPLED``. A call that is submitted again is the same job (``of_job``) if its settings and its
user are the same as well.
"""

from __future__ import annotations

import hashlib
import io
import linecache
import os
import pickletools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from getpass import getuser
from typing import TYPE_CHECKING, Any, NamedTuple

from nbtorchjob.runtime.objects import rebuilt
from nbtorchjob.runtime.rank import settings
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import Origin
from nbtorchjob.state.info import SAMPLED

if TYPE_CHECKING:
    from nbtorchjob.capture.model import Call
    from nbtorchjob.capture.modules import LocalFile

_SHORT_BINUNICODE = b"\x8c"


def of(call: Call) -> str:
    """Return 40 hex digits: the same for a cell that is run again unchanged, also by a new kernel.

    They may differ for equal calls where pickling isn't deterministic (a set of strings): then the
    second is simply another job.
    """
    sha256 = hashlib.sha256(stable(call.pickle, call.sources))
    for view in call.buffers:
        sha256.update(view)
    for local in call.files:
        sha256.update(f"{local.path}\0{local.executable}\0".encode() + hashlib.sha256(local.data).digest())
    if call.packages:
        sha256.update(call.packages.digest.encode())
    for file in call.shipped:
        content = file.sha256 or f"{file.size} {file.mtime}"
        sha256.update(f"{file.path}\0{file.executable}\0{content}\0".encode())
    for folder in call.data:
        sha256.update(f"{folder.name}\0{folder.listed.sha256}\0".encode())
    return sha256.hexdigest()[:40]


def stable(pickled: bytes, sources: Mapping[str, str]) -> bytes:
    """Return a pickle without the parts that differ between kernels, or between runs of a cell."""
    data = b"".join(_unframed(pickled))
    for filename, text in sources.items():
        # The text identifies a cell, its name doesn't: it is In[3] today and In[7] tomorrow.
        data = _replaced(data, filename, hashlib.sha256(text.encode()).digest())
    for tag in rebuilt.tags():
        data = _replaced(data, tag, b"class")
    return data


def _unframed(pickled: bytes) -> Iterator[bytes]:
    """Yield a pickle, or its beginning, without the lengths of its frames.

    Those depend on the file names in the pickle, which contain the kernel's process id.
    """
    file = io.BytesIO(pickled)
    while (start := file.tell()) < len(pickled):
        try:
            opcode, argument, _ = next(pickletools.genops(file))
        except ValueError:  # the beginning ends within this opcode
            yield pickled[start:]
            return
        yield file.read(argument) if opcode.name == "FRAME" else pickled[start : file.tell()]


def _replaced(data: bytes, text: str, stable: bytes) -> bytes:
    raw = text.encode()
    return data.replace(_SHORT_BINUNICODE + bytes([len(raw) & 0xFF]) + raw, stable)


_DIGITS = 16
_WHOLE = 4_000_000  # bytes of buffers that are hashed in full, in some milliseconds
_BLOCK, _BLOCKS = 4096, 256


class Buffer(NamedTuple):
    """Bytes that belong to a pickle; ``read`` returns those from one offset to another."""

    size: int
    read: Callable[[int, int], memoryview]


def of_value(
    pickled: bytes, buffers: Sequence[Buffer], sources: Mapping[str, str], *, whole: bool = True
) -> str:
    """Return the digest of a value's pickle, or of the pickle's beginning, and of its buffers.

    ``sources`` are the notebook's files whose code may be in it, as in a call.
    """
    # Security doesn't depend on it, and it takes a third of the time of SHA-256.
    sha1 = hashlib.sha1(stable(pickled, sources), usedforsecurity=False)
    total = sum(buffer.size for buffer in buffers)
    for buffer in buffers:
        sha1.update(b"%d " % buffer.size)
        for start, end in [(0, buffer.size)] if total <= _WHOLE else _samples(buffer.size, total):
            sha1.update(buffer.read(start, end))
    return ("" if whole and total <= _WHOLE else SAMPLED) + sha1.hexdigest()[:_DIGITS]


def _samples(size: int, total: int) -> Iterator[tuple[int, int]]:
    """Yield blocks spread over a buffer, in proportion to its share of the total."""
    many = max(1, _BLOCKS * size // total)
    last = max(0, size - _BLOCK)
    for index in range(many):
        start = last * index // max(1, many - 1)
        yield start, min(size, start + _BLOCK)


def of_files(files: Iterable[LocalFile]) -> str:
    """Return the digest of a module's files."""
    return of_contents((file.path, hashlib.sha256(file.data).hexdigest()) for file in files)


def of_contents(files: Iterable[tuple[str, str]]) -> str:
    """Return the digest of files, given by their paths and the SHA-256 of their contents, in hex."""
    whole = hashlib.sha256()
    for path, digest in files:
        whole.update(path.encode() + b"\0" + bytes.fromhex(digest))
    return whole.hexdigest()[:_DIGITS]


def of_job(call: Call, spec: JobSpec) -> str:
    """Return a digest of what runs, how, and for whom: the same for a cell that is run again unchanged."""
    how = {**spec.to_json(), "name": None, "settings": settings.changed() if spec.carry_settings else {}}
    return hashlib.sha256(f"{of(call)} {how} {user()}".encode()).hexdigest()[:40]


def origin_here(sources: Iterable[str]) -> Origin:
    """Return where a call made now was written; empty outside IPython, which isn't imported for this."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return Origin() if shell is None else origin_in(shell, sources)


def origin_in(shell: Any, sources: Iterable[str], named: Mapping[str, str] | None = None) -> Origin:
    """Return where a call made now was written; ``sources`` are its code's files, ``named`` has more labels.

    JupyterLab sends a cell's id with the cell that it runs, and Jupyter Server tells its kernels which file
    they were started for; both are empty elsewhere.
    """
    request: Mapping[str, Any] = shell.get_parent() if hasattr(shell, "get_parent") else {}
    cell = (request.get("metadata") or {}).get("cellId")
    labels = {name: _label(shell, name) for name in sources} | dict(named or {})
    return Origin(os.environ.get("JPY_SESSION_NAME", ""), cell if isinstance(cell, str) else "", labels)


def _label(shell: Any, filename: str) -> str:
    """Return IPython's label of the cell in a file: ``Cell In[3]``; other files keep their names."""
    with suppress(AttributeError):  # IPython's naming of cells isn't a public interface
        if not hasattr(shell.compile, "format_code_name"):
            # IPython before 8 keeps no list: take the newest cell with the file's text.
            text = "".join(linecache.getlines(filename)).rstrip("\n")
            cells = [cell.rstrip("\n") for cell in shell.history_manager.input_hist_parsed]
            numbers = [number for number, cell in enumerate(cells) if text and cell == text]
            return f"Cell In[{numbers[-1]}]" if numbers else filename
        words = shell.compile.format_code_name(filename)
        if words is not None:
            return " ".join(words)
    return filename


def owner(call: Call, origin: Origin) -> str:
    """Describe the owner of a call to other people who wait for it on a lab."""
    notebook = origin.notebook.rpartition("/")[2]
    cell = origin.labels.get(call.filename, "") if call.text else ""
    return ", ".join(filter(None, (user(), notebook, cell)))


def user() -> str:
    """Return the submitting user: on a hub all notebooks share one account, so its user name counts."""
    with suppress(OSError, KeyError):  # an account without a name
        return os.environ.get("JUPYTERHUB_USER") or getuser()
    return ""


def cautions(spec: JobSpec) -> Iterator[str]:
    """Describe settings and modes that change numbers and don't go along under ``spec``."""
    changed = settings.words(settings.changed())
    if changed and not spec.carry_settings:
        pronoun = "it" if len(changed) == 1 else "them"
        yield f"ranks don't get {', '.join(changed)}: --carry-settings takes {pronoun} along"
    if entered := settings.modes():
        pronoun = "it" if len(entered) == 1 else "them"
        yield f"ranks don't get {', '.join(entered)}, entered here: enter {pronoun} in the cell"
