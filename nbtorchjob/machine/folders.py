"""Folders and files that nobody else could have written: what outlives kernels, and what is obeyed.

Programs and compilers' caches, which take long to make, are kept there for this user's other processes; they
may be removed at any time.
"""

from __future__ import annotations

import errno
import grp
import hashlib
import os
import pwd
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from secrets import token_bytes, token_hex

import platformdirs

from nbtorchjob.errors import NBTorchJobError, NotOwnError
from nbtorchjob.runtime.objects.wire import plain as plain
from nbtorchjob.runtime.start import compilers

STATE = "NBTORCHJOB_STATE_DIR"

_ROOT = 0
_MOST_BYTES = 1 << 26  # of a record: the sources of a notebook, and the spec


def state_dir() -> Path:
    """Return the user's state directory, created if need be, to which nobody else can write."""
    variables = (os.environ.get(name) for name in (STATE, "XDG_STATE_HOME", "HOME"))
    path = _named(*variables)
    if not path.is_absolute():  # which depends on the working folder
        path = path.absolute()
    try:
        status = _ensure_folder(path, path.stat)
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        why = _foreign(path, status)
    except OSError as exc:
        raise NBTorchJobError(
            f"jobs can't be kept in {path} ({exc.strerror}): set {STATE} to a folder that you can write to"
        ) from exc
    if why:
        raise NotOwnError(
            f"jobs can't be kept in {path}: it {why}; set {STATE} to a folder that only you can write to"
        )
    return path


@lru_cache(maxsize=8)  # asked for many times by each call
def _named(named: str | None, *_others: str | None) -> Path:
    """Return the folder that environment variables name."""
    try:
        return Path(named).expanduser() if named else platformdirs.user_state_path("nbtorchjob")
    except RuntimeError as exc:  # of a user who doesn't exist
        raise NBTorchJobError(
            f"jobs can't be kept in {named} (there is no such home folder): set {STATE} to another folder"
        ) from exc


def cache_dir() -> Path:
    """Return the user's folder for data that can be made again, and may be removed at any time."""
    named = os.environ.get(STATE)
    folder = _named(named) / "cache" if named else platformdirs.user_cache_path("nbtorchjob")
    return folder.absolute()


def secret(purpose: str) -> bytes:
    """Return 32 bytes that only this user knows, the same ones each time."""
    path = state_dir() / f"{purpose}.secret"
    with suppress(FileNotFoundError):
        return record(path)
    partial = path.with_name(f"{path.name}.{os.getpid()}.{token_hex(4)}")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(token_bytes(32))
    with suppress(FileExistsError):  # if two kernels begin at once, the first one's counts
        os.link(partial, path)
    partial.unlink()
    return record(path)


def working() -> Path:
    """Return the working folder. Raises ``NBTorchJobError`` if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise NBTorchJobError("the working folder was deleted: change to one that exists (cd ~)") from None


def own(path: Path) -> Path:
    """Return a private folder of this user's, created if need be; others lose any permission to read it.

    Raises ``NotOwnError`` for one that belongs to somebody else, that others could have written to, or
    that isn't a folder.
    """
    try:
        status = _ensure_folder(path, path.lstat)
        why = _foreign(path, status) if stat.S_ISDIR(status.st_mode) else "isn't a folder"
        if not why and status.st_uid != os.geteuid():
            why = f"belongs to {_name(status.st_uid)}"
        if not why and status.st_mode & 0o077:
            path.chmod(status.st_mode & 0o700)
    except OSError as exc:
        why = f"can't be used ({exc.strerror})"
    if why:
        raise NotOwnError(
            f"{path} must be a folder that is yours alone (mode 700), but it {why}: move away what is there"
        )
    return path


def foreign(path: Path) -> str:
    """Return why users besides root and this one could write to a file or folder; empty if none can.

    Raises ``OSError``.
    """
    return _foreign(path, path.stat())


def _foreign(path: Path, status: os.stat_result) -> str:
    if status.st_uid not in (_ROOT, os.geteuid()):
        return f"belongs to {_name(status.st_uid)}"
    by_group = status.st_mode & stat.S_IWGRP and not is_private(status.st_gid)
    if not (status.st_mode & stat.S_IWOTH or by_group):
        return ""
    # A ConfigMap's folder in a pod is open to all, but on a read-only file system.
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return ""
    return f"can be written to by others (mode {stat.S_IMODE(status.st_mode):03o})"


def record(path: Path | str) -> bytes:
    """Read a small plain file; raises ``OSError`` for anything else."""
    descriptor = plain(str(path), os.O_RDONLY)  # lists read thousands: a file object would double the time
    try:
        size = os.fstat(descriptor).st_size
        if size > _MOST_BYTES:
            raise OSError(errno.EFBIG, f"it is bigger than {_MOST_BYTES:,} bytes", str(path))
        return os.read(descriptor, size)
    finally:
        os.close(descriptor)


def _ensure_folder(path: Path, look: Callable[[], os.stat_result]) -> os.stat_result:
    """Return a folder's status, and make the folder first if it isn't there."""
    with suppress(FileNotFoundError):
        return look()
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)  # whatever the umask
    return look()


@cache
def is_private(group: int) -> bool:
    """Whether this user is the only member of a group, as far as this machine knows.

    Many systems give each user a group of their own, and a umask that lets it write; and a pod's volume
    belongs to its user's group, whatever modes it had (``fsGroup``).
    """
    me = os.geteuid()
    with suppress(KeyError):
        members = {_uid(name) for name in grp.getgrgid(group).gr_mem}
        members |= {user.pw_uid for user in pwd.getpwall() if user.pw_gid == group}
        return members <= {me, _ROOT} and group in (os.getegid(), *os.getgroups())
    return False


def _uid(name: str) -> int | None:
    with suppress(KeyError):
        return pwd.getpwnam(name).pw_uid
    return None


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


_DIGEST = hashlib.sha256().digest_size
_MOST = 32  # files of a kind


def cached(kind: str, name: str, make: Callable[[], bytes]) -> bytes:
    """Return what ``make`` returns, or returned before for that kind and name, in any process of the user."""
    try:
        path = own(cache_dir() / kind) / name
    except (OSError, NotOwnError):  # where nothing can be kept, it is made each time
        return make()
    with suppress(OSError):
        kept = record(path)
        if hashlib.sha256(kept[_DIGEST:]).digest() == kept[:_DIGEST]:  # else a disk has lost some of it
            return kept[_DIGEST:]
    data = make()
    with suppress(OSError):
        new = path.with_name(f"{path.name}.{os.getpid()}.{token_hex(4)}")
        try:
            new.write_bytes(hashlib.sha256(data).digest() + data)
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)
        for old in sorted(path.parent.iterdir(), key=lambda file: -file.stat().st_mtime)[_MOST:]:
            old.unlink(missing_ok=True)
    return data


_COMPILED, _TEMPORARY = "compiled", "tmp"
_UNUSED_S = 30 * 24 * 3600.0


def compiler_variables() -> dict[str, str]:
    """Return the variables that point compilers to a folder that nobody else could have written to."""
    return compilers.variables(str(_folder(_COMPILED)))


def refuge(env: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the variables that keep a job with this environment off others' files, and why; mostly empty.

    The folder that torch uses in the temporary one is made here, so that nobody else can make it. If somebody
    has, the job gets another temporary folder.
    """
    try:
        own(Path(compilers.default(env)))
    except NotOwnError as exc:
        temporary = str(_folder(_TEMPORARY))
        return {"TMPDIR": temporary}, f"{exc}; until then this job's temporary folder is {temporary}"
    return {}, ""


def thin_out_caches() -> None:
    """Remove cached files that were unused for a month."""
    before = time.time() - _UNUSED_S
    for kept in (_folder(_COMPILED), _folder(_TEMPORARY)):
        for folder, below, names in os.walk(kept, topdown=False):
            for path in (os.path.join(folder, name) for name in names):
                with suppress(OSError):  # another process removes it, too
                    status = os.lstat(path)
                    if max(status.st_atime, status.st_mtime) < before:
                        os.unlink(path)
            for name in below:
                with suppress(OSError):
                    if os.lstat(os.path.join(folder, name)).st_mtime < before:
                        os.rmdir(os.path.join(folder, name))


def _folder(name: str) -> Path:
    try:
        return own(own(cache_dir()) / name)
    except NotOwnError:  # a home that others can write to, or that nobody can
        return own(own(state_dir() / "cache") / name)
