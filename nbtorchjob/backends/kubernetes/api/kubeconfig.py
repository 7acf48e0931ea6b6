"""Kubeconfig files, and the proxy to a server, read as kubectl reads them.

Files are merged: the first one that defines a name decides. Problems are described here, as the loader of the
``kubernetes`` package raises whatever it stumbles over (37.0: ``'NoneType' object does not support item
assignment`` for an empty file).

aiohttp could find a proxy by itself (``trust_env``), again for each request, in a thread. But then it also
takes logins from the user's netrc, and sends no token beside them: an entry for ``default`` broke all
requests (3.14).
"""

from __future__ import annotations

import base64
import ipaddress
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from nbtorchjob.backends.kubernetes.objects import from_yaml
from nbtorchjob.errors import ClusterError

Entry: TypeAlias = Mapping[str, Any]

_PEM = b"-----BEGIN "
# Keys of credentials that name a file; with DATA appended, they hold its content in base64.
_OF_USER = {
    "client-certificate": "client certificate",
    "client-key": "client key",
    "tokenFile": "token",
}
_OF_CLUSTER = {"certificate-authority": "certificate authority"}
DATA = "-data"


def paths() -> list[str]:
    """Return the existing files among those that ``KUBECONFIG`` names; if it is unset, the usual one."""
    # Not the package's own default: that is read only once, when the package is imported.
    return [
        path
        for path in map(os.path.expanduser, search_path().split(os.pathsep))
        if path and os.path.exists(path)
    ]


def search_path() -> str:
    """Return where a kubeconfig is looked for."""
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


def contexts() -> list[str]:
    """Return the names of all contexts, each once; none where the kubeconfig can't be read."""
    try:
        return [*Kubeconfig(paths()).named("contexts")]
    except (ClusterError, ImportError):
        return []


class Kubeconfig:
    """Some kubeconfig files, merged. Raises ``ClusterError`` for one that can't be read."""

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
        entries = self.named("contexts")
        available = f"available: {', '.join(entries) or 'none'}"
        if not name:
            raise ClusterError(f"{self} has no current context: choose one with --context; {available}")
        if name not in entries:
            raise ClusterError(f"{self} has no context {name!r}: choose one with --context; {available}")
        for problem in self._problems(name, entries[name][1].get("context")):
            raise ClusterError(f"{self} can't be used for the context {name}: {problem}")
        return name

    def alone(self, name: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Return the settings of a context, its cluster and its user, with absolute paths."""
        context: dict[str, Any] = {**self.named("contexts")[name][1]["context"]}
        settings: list[dict[str, Any]] = []
        for key, labels in (("cluster", _OF_CLUSTER), ("user", _OF_USER)):
            folder, entry = self.named(f"{key}s").get(str(context.get(key) or ""), (Path(), {}))
            own: dict[str, Any] = {**(entry.get(key) or {})}
            for label in labels:
                inline = "token" if label == "tokenFile" else label + DATA
                if not own.get(inline):  # the loader takes an empty one for the content
                    own.pop(inline, None)
                if own.get(label):
                    own[label] = _place(folder, str(own[label]))
            login = own.get("exec")
            if isinstance(login, Mapping) and os.sep in str(login.get("command") or ""):
                own["exec"] = {**login, "command": _place(folder, str(login["command"]))}
            settings.append(own)
        return context, settings[0], settings[1]

    def _problems(self, name: str, context: Any) -> Iterator[str]:
        if not isinstance(context, Mapping):
            yield "it has no settings"
            return
        for key in ("cluster", "user"):
            named, entries = str(context.get(key) or ""), self.named(f"{key}s")
            if key == "user" and not named:
                continue  # for a proxy that logs in by itself (`kubectl proxy`)
            if not named or named not in entries:
                problem = f"its {key} {named} isn't defined" if named else f"it names no {key}"
                yield f"{problem}; available: {', '.join(entries) or 'none'}"
                return
            folder, entry = entries[named]
            settings = entry.get(key)
            if not isinstance(settings, Mapping):
                yield f"its {key} {named} has no settings" + (": log in again" if key == "user" else "")
                return
            yield from (f"its {key} {named} {problem}" for problem in _unusable(key, folder, settings))


def _place(folder: Path, path: str) -> str:
    """Return a kubeconfig's path as an absolute one: it is relative to the file's folder."""
    return str(folder.absolute() / os.path.expanduser(path))


def _read(path: str) -> Entry:
    import yaml  # comes with the extra

    try:
        content = from_yaml(Path(path).read_bytes())
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


def _unusable(key: str, folder: Path, settings: Entry) -> Iterator[str]:
    """Yield what is wrong with the settings of a ``cluster``, or a ``user``."""
    if key == "cluster":
        server = str(settings.get("server") or "")
        try:
            parts = urlsplit(server)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:  # an invalid port
            is_address = False
        if not server:
            yield "has no server"
        elif not is_address:
            yield f"has the server {server!r}, which is no address such as https://HOST:6443"
    for name, label in (_OF_CLUSTER if key == "cluster" else _OF_USER).items():
        if inline := settings.get(name + DATA):
            try:
                is_pem = _PEM in base64.b64decode("".join(str(inline).split()), validate=True)
            except ValueError:
                is_pem = False
            if not is_pem:
                yield f"has {name}{DATA} that is no {label} in base64"
        elif path := settings.get(name):
            try:
                content = Path(_place(folder, str(path))).read_bytes()
            except OSError as error:
                yield f"has its {label} in {path}, which can't be read ({error.strerror})"
                break
            if name != "tokenFile" and _PEM not in content:
                yield f"has its {label} in {path}, which holds none"
    login = settings.get("exec")
    if key == "user" and isinstance(login, Mapping):
        command = str(login.get("command") or "")
        # As in kubectl: a path is relative to the file, a mere name is looked up in PATH.
        place = _place(folder, command) if os.sep in command else command
        if not command:
            yield "logs in with no command: log in another way"
        elif shutil.which(place) is None:
            yield f"logs in with {command}, which isn't installed: install it, or log in another way"


_VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")


def proxy(server: str, configured: str | None = None) -> str | None:
    """Return the URL of the proxy to a server: the ``configured`` one, else that of the environment.

    As in kubectl, this machine itself needs no proxy, and ``NO_PROXY`` may name networks (10.0.0.0/8) and
    all hosts of a domain (.corp, *.corp); see golang.org/x/net/http/httpproxy. Raises ``ClusterError`` for a
    proxy that doesn't speak HTTP.
    """
    parts = urlsplit(server)
    url = configured or getproxies().get(parts.scheme)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    if not url or (not configured and _goes_directly(parts.hostname or "", port)):
        return None
    url = url if "://" in url else f"http://{url}"
    scheme = urlsplit(url).scheme
    if scheme not in ("http", "https"):
        raise ClusterError(f"{proxy_name(url, server)} speaks {scheme}: expected an http or https proxy")
    return url


def proxy_name(url: str, server: str) -> str:
    """Name the proxy to a cluster, without a password in its address, and where it is set."""
    spellings = (url, url.removeprefix("http://"))
    # Besides variables, urllib reads the proxy settings of macOS.
    other = (
        "the system's settings" if {*spellings} & {*getproxies().values()} else "proxy-url of the kubeconfig"
    )
    where = next((name for name in _VARIABLES if os.environ.get(name, "-") in spellings), other)
    return f"the proxy {urlsplit(url).netloc.rpartition('@')[2]} ({where}) to the cluster at {server}"


def _goes_directly(host: str, port: int) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if host == "localhost" or (address is not None and address.is_loopback) or proxy_bypass(f"{host}:{port}"):
        return True
    for entry in (os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "").lower().split(","):
        entry = entry.strip()
        if entry.startswith("*.") and host.endswith(entry[1:]):
            return True
        try:
            if address is not None and address in ipaddress.ip_network(entry, strict=False):
                return True
        except ValueError:  # it names a host
            continue
    return False
