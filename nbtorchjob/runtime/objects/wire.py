"""A rank's value as one file: a signed header, then raw buffers that can be mapped.

    8 bytes magic | 32 bytes HMAC-SHA256 of the header | 8 bytes its length | header (JSON) | buffers

Each buffer starts at a multiple of 64 bytes (a cache line; numpy and torch need no more). The header
holds the SHA-256 of every buffer that is a pickle, so nothing is unpickled that this job's own key
didn't sign. Raw buffers aren't hashed: they are data, and hashing 256 MB takes as long as four
copies of it.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import mmap
import os
import stat
import struct
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional

from nbtorchjob.runtime.facts.errors import Error, from_exception, type_name
from nbtorchjob.runtime.objects.codec import Dump, Encoder, Load, decode

MAGIC = b"nbtjval1"
ALIGN = 64
_SMALL = 1 << 20
_NONCE = 16  # bytes, in front of sealed data
_FIXED = len(MAGIC) + 32 + 8
_KEEP_SIZE = 1  # a mode of Linux's fallocate


class WireError(Exception):
    """The file isn't what this job's ranks wrote: damaged, cut short, or signed by another key."""


@dataclass(frozen=True)
class Unpicklable:
    """What a rank writes in place of a value, or of a part of one, that can't be pickled."""

    type: str  # of the value
    error: Error
    path: str = ""  # of the part in the value: ["gen"][0]

    def __repr__(self) -> str:
        return "<%s that couldn't be pickled>" % self.type


@dataclass(frozen=True)
class Withheld:
    """What a node sends in place of a value that it can't send."""

    size: int  # of the value's file, in bytes
    reason: str  # why, and what to do about it, in one line


def write_value(path: str, value: Any, dump: Dump, key: bytes) -> int:
    """Write a value, or why it can't be sent, to ``path`` in one step; return the bytes written."""
    encoder = Encoder(dump)
    header: Dict[str, Any] = {}
    try:
        header["tree"] = encoder.encode(value)
        buffers = encoder.buffers
    except Exception as exc:  # whatever a user's __reduce__ raises is the answer
        buffers = []
        header["unpicklable"] = _unpicklable(value, exc)
    header["lost"] = [dict(_unpicklable(part, exc), path=path) for path, part, exc in encoder.lost]
    header["sha256"] = {str(i): _digest(buffers[i]) for i in encoder.pickles if buffers}
    header["sizes"] = [len(view) for view in buffers]
    return _write(path, _head(header, key), buffers)


def _unpicklable(value: Any, exc: Exception) -> Dict[str, Any]:
    return {"type": type_name(type(value)), "error": from_exception(exc).to_json()}


def write_withheld(path: str, withheld: Withheld, key: bytes) -> int:
    """Replace the value at ``path`` by the reason why it can't be sent; return the bytes written."""
    return _write(path, _head({"withheld": asdict(withheld)}, key), [])


def _head(header: Dict[str, Any], key: bytes) -> bytes:
    raw = json.dumps(header).encode()
    return MAGIC + sign(raw, key) + struct.pack("<Q", len(raw)) + raw


def _write(path: str, head: bytes, buffers: List[memoryview]) -> int:
    partial = path + ".partial"
    try:
        with open(partial, "wb", buffering=0) as file:
            reserve(file, len(head) + sum(map(len, buffers)))
            size = _write_all(file, memoryview(head))
            for view in buffers:
                size += _write_all(file, memoryview(b"\0" * (-size % ALIGN)))
                size += _write_all(file, view)
        os.replace(partial, path)
    except OSError:
        with suppress(FileNotFoundError):
            os.unlink(partial)
        raise
    return size


def reserve(file: Any, size: int) -> None:
    """Reserve room for a big file at once: otherwise ext4 takes half as long again (Linux 6.18).

    If this fails, the writes report the reason. Python's ``posix_fallocate`` isn't used: on a file system
    without such a call, it writes to each block.
    """
    if size < _SMALL:
        return
    import ctypes  # imported late: only big files need it

    fallocate = getattr(ctypes.CDLL(None), "fallocate", None)
    if fallocate is not None:
        fallocate(file.fileno(), _KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(size))


def _write_all(file: Any, view: memoryview) -> int:
    # One write(2) moves at most 2 GiB on Linux.
    done = 0
    while done < len(view):
        done += file.write(view[done : done + (1 << 30)])
    return done


def plain(path: str, flags: int) -> int:
    """Open a plain file, for ``open(..., opener=plain)``; raises ``OSError`` for anything else.

    Code in a job may put anything in a file's place: a pipe would hang its reader, a link would show
    another file.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it isn't a plain file", path)


def read_value(path: str, load: Load, key: bytes, lost: Optional[List[Unpicklable]] = None) -> Any:
    """Return the value in the file at ``path``, its big buffers mapped; ``key`` is the value's own key.

    A substitute for a value, an :class:`Unpicklable` or :class:`Withheld`, is returned as such; ``lost``
    receives those for its parts.

    Raises ``WireError`` for a file that isn't this job's, before unpickling any of it; ``ImportError`` and
    whatever ``load`` raises if the value can't be rebuilt here.
    """
    with open(path, "rb", opener=plain) as file:
        size = os.fstat(file.fileno()).st_size
        fixed = file.read(_FIXED)
        if len(fixed) < _FIXED or not fixed.startswith(MAGIC):
            raise WireError("it isn't a value file, or it was cut short")
        (length,) = struct.unpack("<Q", fixed[-8:])
        raw = file.read(min(length, size))
        if not hmac.compare_digest(sign(raw, key), fixed[len(MAGIC) : len(MAGIC) + 32]):
            raise WireError("its signature isn't of this job's key for this rank and round")
        header = json.loads(raw)
        # The file's bytes, private and writable: what the user changes stays in this process
        if size < _SMALL:  # a mapping holds a file descriptor for as long as the value lives
            file.seek(0)
            mapped = memoryview(bytearray(file.read()))
        else:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    if "withheld" in header:
        return Withheld(**header["withheld"])
    unpicklable: Optional[Dict[str, Any]] = header.get("unpicklable")
    if unpicklable is not None:
        return Unpicklable(unpicklable["type"], Error.from_json(unpicklable["error"]))
    offset = _FIXED + length
    sizes = header["sizes"]
    buffers = []
    for size in sizes:
        offset += -offset % ALIGN
        if size < 0 or offset + size > len(mapped):
            raise WireError("it was cut short")
        buffers.append(mapped[offset : offset + size])
        offset += size
    for index, digest in header["sha256"].items():
        if _digest(buffers[int(index)]) != digest:
            raise WireError("a pickle in it was changed")
    missing = [
        Unpicklable(item["type"], Error.from_json(item["error"]), item["path"]) for item in header["lost"]
    ]
    if lost is not None:
        lost += missing
    return decode(header["tree"], buffers, load, missing)


def sign(data: Any, key: bytes) -> bytes:
    """HMAC-SHA256 with a key of the job's. Raises ``WireError`` for an empty key, which anybody has."""
    if not key:
        raise WireError("the job's key is gone")
    return hmac.new(key, data, hashlib.sha256).digest()


def derived(key: bytes, *of: object) -> bytes:
    """Return the job's key for one purpose: its signatures are valid for nothing else."""
    return sign(json.dumps([str(word) for word in of]).encode(), key)


def sealed(data: bytes, key: bytes) -> bytes:
    """Return ``data`` encrypted for :func:`unsealed` with the same key; it isn't authenticated.

    It is XORed with a keystream of HMAC-SHA256 in counter mode, from a nonce that is used once and stands in
    front. Most images have no library with a cipher, and Python itself has none, but it has ``hmac``.
    """
    nonce = os.urandom(_NONCE)
    return nonce + _ciphered(data, key, nonce)


def unsealed(data: bytes, key: bytes) -> bytes:
    """Return the data that was sealed with the key."""
    return _ciphered(data[_NONCE:], key, data[:_NONCE])


def _ciphered(data: bytes, key: bytes, nonce: bytes) -> bytes:
    """Return the data XORed with the nonce's keystream; doing that twice restores it."""
    blocks = range(0, len(data), hashlib.sha256().digest_size)
    stream = b"".join(sign(nonce + at.to_bytes(8, "big"), key) for at in blocks)[: len(data)]
    return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(data), "big")


def value_key(key: bytes, run: str, round_: int, rank: int) -> bytes:
    """Return the key of one value: a retry has its job's key but its own ``run``; rounds never repeat."""
    return derived(key, "value", run, round_, rank)


def _digest(view: memoryview) -> str:
    return hashlib.sha256(view).hexdigest()
