"""Keeps a job's installed packages in the store for the next job, which then needs no index; and fetches uv.

    32 bytes HMAC-SHA256 of its name and the rest | a tar archive of the folder, packed

Anybody who can write to a store could put code there. So archives are signed with a secret of the user's,
which is in the payload, hidden by the job's key; that key is never in a store. For uv, the payload has the
digest. The name is signed, too, as one archive could be put in another's place.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
import subprocess
import sys
import tarfile
from contextlib import suppress
from typing import Any, BinaryIO, Dict, Iterator, List, Optional

from nbtorchjob.runtime import store
from nbtorchjob.runtime.facts import emit
from nbtorchjob.runtime.objects import wire

FOLDER = ".packages"  # in the store; no job has such a name
_CHUNK = 1 << 20
_MOST = 64 << 30  # bytes; the signature can be checked only once all are read
_NO_MARK = b"\0" * 32


def hidden(secret: bytes, key: bytes) -> str:
    """Return a secret of 32 bytes as a job's payload has it, hidden by the job's ``key``; or undo that."""
    return bytes(byte ^ mask for byte, mask in zip(secret, wire.derived(key, "packages"))).hex()


def uv(source: Optional[Dict[str, Any]], folder: str) -> List[str]:
    """Fetch the uv that a job was sent with into ``folder``; return its command, [] if it can't be used."""
    if not source or source["machine"] != os.uname().machine:
        return []
    path = os.path.join(folder, "uv")
    try:
        with open(path, "wb") as file:
            if store.digest(source["url"], file, source["size"]) != source["sha256"]:
                raise ValueError("it isn't what was stored there")
        os.chmod(path, 0o700)
        # This fails with another C library, or where programs mustn't be run.
        subprocess.run([path, "--version"], check=True, stdout=subprocess.DEVNULL)
    except Exception as exc:  # whatever a store's library raises
        sys.stderr.write("nbtorchjob: uv at %s isn't used: %s\n" % (source["url"], exc))
        return []
    return [path]


class Stock:
    """What is kept under one name, for jobs that know the secret."""

    def __init__(self, sealed: str, key: bytes, name: str, folder: str) -> None:
        self._secret = bytes.fromhex(hidden(bytes.fromhex(sealed), key))
        self._path = os.path.join(folder, "stock")
        parent = os.environ.get(store.STORAGE, "").rpartition("/")[0]  # contains the job's own folder
        own = hmac.new(self._secret, name.encode(), hashlib.sha256).hexdigest()
        self._url = "%s/%s/%s.tgz" % (parent, FOLDER, own[:32])
        self._own = own.encode()

    def take(self, target: str) -> bool:
        """Unpack what is kept into the folder ``target``; return whether there was anything."""
        try:
            with store.opened(self._url) as source, open(self._path, "wb") as file:
                mark, digest = source.read(len(_NO_MARK)), self._mark()
                for chunk in _chunks(source):
                    digest.update(chunk)
                    if file.tell() + len(chunk) > _MOST:
                        raise ValueError("it is bigger than %d bytes" % _MOST)
                    file.write(chunk)
            if not hmac.compare_digest(digest.digest(), mark):
                raise ValueError("it isn't what was stored there")
            safe: Dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            with tarfile.open(self._path) as archive:
                archive.extractall(target, **safe)
            local = store.path_of(self._url)
            if local:
                with suppress(OSError):  # another user's
                    os.utime(local)  # it is removed when it wasn't taken for long
        except FileNotFoundError:
            return False
        except Exception as exc:  # whatever a store's library raises; what is there may be damaged
            sys.stderr.write("nbtorchjob: %s isn't used: %s\n" % (self._url, exc))
            shutil.rmtree(target, ignore_errors=True)
            return False
        finally:
            self._clear()
        return True

    def keep(self, target: str) -> None:
        """Keep the folder ``target``; if that fails, a notice says so, and the job goes on."""
        try:
            with open(self._path, "w+b") as file:
                file.write(_NO_MARK)
                with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as archive:
                    archive.add(target, arcname=".")
                file.seek(len(_NO_MARK))
                digest = self._mark()
                for chunk in _chunks(file):
                    digest.update(chunk)
                file.seek(0)
                file.write(digest.digest())
            local = store.path_of(self._url)
            if local:
                os.makedirs(os.path.dirname(local), exist_ok=True)
            store.copy(self._path, self._url, self._secret)
        except Exception as exc:  # as above
            emit("Notice", text="packages can't be kept in the store for the next job: %.300s" % exc)
        finally:
            self._clear()

    def _mark(self) -> Any:
        return hmac.new(self._secret, self._own, hashlib.sha256)

    def _clear(self) -> None:
        if os.path.exists(self._path):
            os.unlink(self._path)


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: file.read(_CHUNK), b"")
