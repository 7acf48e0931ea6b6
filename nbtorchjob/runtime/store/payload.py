"""The payload file as a node reads it.

    raw buffers (each at a multiple of 64 bytes) | HMAC-SHA256 of the archive | zip archive with __main__.py

Python runs a zip archive even if other data precedes it (zipimport looks for the archive's end), so one
file is both the program and the memory that ranks map. Buffers lie outside the archive because zipimport
can't read the zip64 form that archives above 2 GiB need (CPython 3.11). The signature covers all bytes
of the archive, including the program and the directory; the header in it has the digests of buffers
that leave this machine.

All runs of a group have one payload. The values that each run is *given*, for a few names, come in its node's
environment: pickled, and signed with the job's key. They are added to the payload's call.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import mmap
import os
import zipfile
import zlib
from typing import Any, Dict, List, Optional

from nbtorchjob.runtime.objects import sources
from nbtorchjob.runtime.objects.wire import WireError, sign

FORMAT = 2
HEADER = "header.json"
MARK = 32  # bytes of the signature, in front of the archive
CALL = "call.pkl"
SOURCES = "sources.json"
CODE = "code.json"  # see ``sources.py``; only where a node may have another Python
FILES = "files/"
SWAPS = "swaps/"  # payloads of swaps that the job begins with, by number from 1
GIVEN = "NBTORCHJOB_GIVEN"  # in the environment
SHIPPED, CONTENT = "shipped.json", "shipped.bin"  # see ``shipped.py``

# Errors from reading an archive whose bytes were changed; a member's flag may need a feature zipfile lacks.
_DAMAGE = (OSError, KeyError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


class PayloadError(Exception):
    """The payload can't run here; the message is one line that says why."""


class Payload:
    """An opened payload. Nothing in it is unpickled before :meth:`verify` has passed."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
            self.header: Dict[str, Any] = json.loads(self._zip.read(HEADER).decode())
        except _DAMAGE as exc:
            raise PayloadError("the payload is damaged: %s" % exc) from exc

    def read(self, name: str) -> bytes:
        """Return one member of the archive."""
        try:
            return self._zip.read(name)
        except _DAMAGE as exc:
            raise PayloadError("the payload is damaged: %s" % exc) from exc

    def checksums(self) -> Dict[str, int]:
        """Return the CRC-32 of each member of the archive."""
        return {member.filename: member.CRC for member in self._zip.infolist()}

    def buffers(self) -> List[memoryview]:
        """Map the raw buffers: private and writable, so no rank sees what another one writes."""
        buffers = self.header["buffers"]
        if not buffers:
            return []
        with open(self.path, "rb") as file:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        return [mapped[at["offset"] : at["offset"] + at["size"]] for at in buffers]

    def call(self) -> bytes:
        """Return the pickle of the call, with the sources of its code if this is another Python."""
        sources.home = self._python
        if self._python == sources.HERE:
            return self.read(CALL)
        return sources.front(self._code()) + self.read(CALL)

    @property
    def _python(self) -> str:
        return "%d.%d" % tuple(self.header["python"])

    def _code(self) -> Dict[str, Any]:
        code: Dict[str, Any] = json.loads(self.read(CODE).decode())
        return code

    def sources(self) -> Dict[str, str]:
        """Return the texts of the notebook cells whose code travels, by file name."""
        texts: Dict[str, str] = json.loads(self.read(SOURCES).decode())
        return texts

    def show_sources(self) -> List[str]:
        """Make tracebacks show the lines of those cells; return their file names."""
        texts = self.sources()
        for filename, text in texts.items():
            sources.show(text, filename)
        return [*texts]

    def extract(self, folder: str) -> None:
        """Write the notebook's local modules below ``folder``."""
        for name in self._zip.namelist():
            if name.startswith(FILES):
                target = os.path.join(folder, name[len(FILES) :])
                os.makedirs(os.path.dirname(target), exist_ok=True)
                self.write(name, target)

    def differing(self, folder: str) -> Dict[str, bool]:
        """Return the notebook's local modules that a folder lacks (False) or has in another form (True)."""
        files = {}
        for name, checksum in self.checksums().items():
            if name.startswith(FILES) and not name.endswith("/"):
                file = name[len(FILES) :]
                path = os.path.join(folder, *file.split("/"))
                if not os.path.exists(path):
                    files[file] = False
                else:
                    with open(path, "rb") as library:
                        if zlib.crc32(library.read()) != checksum:
                            files[file] = True
        return files

    def write(self, name: str, path: str) -> None:
        """Write one member of the archive to a file, which is executable if it was so on the host."""
        with open(path, "wb") as file:
            file.write(self.read(name))
        os.chmod(path, self._zip.getinfo(name).external_attr >> 16)

    def verify(self, key: Optional[bytes]) -> None:
        """Raise ``PayloadError`` unless this is what the host packed, and can run on this Python.

        Without a key, only damage is detected, not forgery.
        """
        if self.header.get("format") != FORMAT:
            raise PayloadError("the payload has format %s" % self.header.get("format"))
        if key is not None:
            self.verify_signature(key)
        # Code objects are bytecode: it differs between minor versions, and loading it may crash.
        if self._python != sources.HERE:
            try:
                # Without `CODE`, the image had the notebook's Python when the job was sent.
                if CODE not in self._zip.namelist():
                    raise sources.SourceError("the code was sent as bytecode alone")
                sources.check(self._code())
            except sources.SourceError as exc:
                raise PayloadError(
                    "the notebook runs Python %s and this node Python %s, and %s; use an image or "
                    "environment with Python %s" % (self._python, sources.HERE, exc, self._python)
                ) from exc
        for index, (view, at) in enumerate(zip(self.buffers(), self.header["buffers"])):
            if "sha256" in at and hashlib.sha256(view).hexdigest() != at["sha256"]:
                raise PayloadError("the payload is damaged: buffer %d was changed" % index)

    def verify_signature(self, key: bytes) -> None:
        """Raise ``PayloadError`` unless the archive, its program included, was signed with ``key``.

        A program's check of itself proves little: if possible, the process that starts it calls this first.
        """
        begin = min(member.header_offset for member in self._zip.infolist())
        with open(self.path, "rb") as file:
            file.seek(max(0, begin - MARK))
            mark, archive = file.read(min(begin, MARK)), file.read()
        try:
            good = hmac.compare_digest(sign(archive, key), mark)
        except WireError as exc:
            raise PayloadError("the payload can't be checked: %s" % exc) from exc
        if not good:
            raise PayloadError("the payload's signature doesn't match this job's key")


def signed_given(pickled: bytes, key: bytes) -> str:
    """Return the text that gives a node the values of a run: a pickle of names and values, signed."""
    return base64.b64encode(sign(pickled, key) + pickled).decode()


def lay_given(call: Dict[str, Any], key: Optional[bytes]) -> None:
    """Add the values that this run is given to a call: to a function as arguments, to a cell as variables.

    Without a ``key``, they aren't checked: a process that a rank starts has them from the rank, which did so.
    """
    from nbtorchjob.runtime.objects import rebuilt  # late: a node's first process has no use for it

    text = os.environ.get(GIVEN, "")
    try:
        data = base64.b64decode(text, validate=True)
        mark, pickled = data[:MARK], data[MARK:]
        good = key is None or hmac.compare_digest(sign(pickled, key), mark)
    except (binascii.Error, WireError) as exc:
        raise PayloadError("the values given to this run can't be read: %s" % exc) from exc
    if not good or not pickled:
        raise PayloadError("the values given to this run aren't signed with this job's key")
    values: Dict[str, Any] = rebuilt.loads(pickled, [])["given"]
    if "function" in call:
        call["kwargs"].update(values)
    else:
        call["names"][:0] = values.items()
