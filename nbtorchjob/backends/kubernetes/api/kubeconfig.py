"""What kubeconfig files say, and what is wrong with them, before a login tries to use them.

Files are merged as kubectl merges them: the first one that defines a name decides. Problems are worded
here, as the loader of the ``kubernetes`` package raises whatever it stumbles over (37.0: ``'NoneType' object
does not support item assignment`` for an empty file).
"""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from nbtorchjob.errors import ClusterError

Entry: TypeAlias = Mapping[str, Any]

_PEM = b"-----BEGIN "
# Keys of credentials that name a file, and those that hold one in base64.
_OF_USER = {
    "client-certificate": "client certificate",
    "client-key": "client key",
    "tokenFile": "token",
}
_OF_CLUSTER = {"certificate-authority": "certificate authority"}
_DATA = "-data"


def paths() -> list[str]:
    """Return the files that exist, of those that ``KUBECONFIG`` names or the usual one."""
    # Not the package's own default: it is read when the package is imported, once for all.
    return [
        path for path in map(os.path.expanduser, wanted().split(os.pathsep)) if path and os.path.exists(path)
    ]


def wanted() -> str:
    """Return where a kubeconfig is looked for."""
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


def contexts() -> list[str]:
    """Return the names of all contexts, each once; none where the kubeconfig can't be read."""
    try:
        return [*Kubeconfig(paths()).named("contexts")]
    except (ClusterError, ImportError):
        return []


class Kubeconfig:
    """Some files, merged. Raises ``ClusterError`` for one that can't be read."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = files
        self._parts = [(Path(path).parent, _read(path)) for path in files]

    def __str__(self) -> str:
        return f"the kubeconfig {', '.join(self._files)}"

    def current(self) -> str:
        """Return the first current context that is set, as kubectl does; the package takes the last one."""
        return next((str(name) for _, part in self._parts if (name := part.get("current-context"))), "")

    def named(self, section: str) -> dict[str, tuple[Path, Entry]]:
        """Return the entries of a section by name, each with the folder that its paths are relative to."""
        entries: dict[str, tuple[Path, Entry]] = {}
        for folder, part in self._parts:
            for entry in part.get(section) or ():
                if isinstance(entry, Mapping) and "name" in entry:
                    entries.setdefault(str(entry["name"]), (folder, entry))
        return entries

    def check(self, context: str | None) -> str:
        """Return the context to use; raises ``ClusterError`` for the first thing that is wrong with it."""
        name = context or self.current()
        known = self.named("contexts")
        available = f"available: {', '.join(known) or 'none'}"
        if not name:
            raise ClusterError(f"{self} has no current context: choose one with --context; {available}")
        if name not in known:
            raise ClusterError(f"{self} has no context {name!r}: choose one with --context; {available}")
        for problem in self._problems(name, known[name][1].get("context")):
            raise ClusterError(f"{self} can't be used for the context {name}: {problem}")
        return name

    def _problems(self, name: str, context: Any) -> Iterator[str]:
        if not isinstance(context, Mapping):
            yield "it has no settings"
            return
        for key in ("cluster", "user"):
            named, there = str(context.get(key) or ""), self.named(f"{key}s")
            if key == "user" and not named:
                continue  # for a proxy that logs in by itself (`kubectl proxy`)
            if not named or named not in there:
                what = f"its {key} {named} isn't defined" if named else f"it names no {key}"
                yield f"{what}; available: {', '.join(there) or 'none'}"
                return
            folder, entry = there[named]
            settings = entry.get(key)
            if not isinstance(settings, Mapping):
                yield f"its {key} {named} has no settings" + (": log in again" if key == "user" else "")
                return
            check = _cluster_problems if key == "cluster" else _user_problems
            yield from (f"its {key} {named} {problem}" for problem in check(folder, settings))


def _read(path: str) -> Entry:
    import yaml  # of the extra

    try:
        content = yaml.safe_load(Path(path).read_bytes())
    except OSError as error:
        raise ClusterError(f"the kubeconfig {path} can't be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise ClusterError(
            f"the kubeconfig {path} isn't valid YAML{where}: correct it, or log in again"
        ) from error
    content = {} if content is None else content
    listed = ("clusters", "contexts", "users")
    if isinstance(content, Mapping) and all(isinstance(content.get(key) or [], list) for key in listed):
        return content
    raise ClusterError(
        f"the file {path} is no kubeconfig: expected lists of {', '.join(listed)}; log in again"
    )


def _cluster_problems(folder: Path, settings: Entry) -> Iterator[str]:
    server = str(settings.get("server") or "")
    if not server:
        yield "has no server"
    elif not _is_address(server):
        yield f"has the server {server!r}, which is no address such as https://HOST:6443"
    yield from _file_problems(folder, settings, _OF_CLUSTER)


def _is_address(server: str) -> bool:
    try:
        parts = urlsplit(server)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # a port that is none
        return False


def _user_problems(folder: Path, settings: Entry) -> Iterator[str]:
    yield from _file_problems(folder, settings, _OF_USER)
    login = settings.get("exec")
    if isinstance(login, Mapping):
        command = os.path.expanduser(str(login.get("command") or ""))
        # As kubectl has it: a path is relative to the file, a mere name is looked for.
        place = str(folder / command) if os.sep in command else command
        if not command:
            yield "logs in with no command: log in another way"
        elif shutil.which(place) is None:
            yield f"logs in with {command}, which isn't installed: install it, or log in another way"


def _file_problems(folder: Path, settings: Entry, named: Mapping[str, str]) -> Iterator[str]:
    for key, what in named.items():
        if inline := settings.get(key + _DATA):
            if not _is_pem(str(inline)):
                yield f"has {key}{_DATA} that is no {what} in base64"
        elif path := settings.get(key):
            try:
                content = (folder / os.path.expanduser(str(path))).read_bytes()
            except OSError as error:
                yield f"has its {what} in {path}, which can't be read ({error.strerror})"
                return
            if key != "tokenFile" and _PEM not in content:
                yield f"has its {what} in {path}, which holds none"


def _is_pem(text: str) -> bool:
    try:
        return _PEM in base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        return False
