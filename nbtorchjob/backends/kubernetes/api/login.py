"""Credentials and TLS of a cluster: from kubeconfig files, or the account of the pod we run in.

Only this module imports the ``kubernetes`` package, for what must work as in kubectl: contexts,
certificates, refreshed OIDC tokens, proxies (``kubernetes.aio``, which exists since release 37). Its typed
models would cost memory and time for every listed object.

So a process in a pod needs only aiohttp, which also comes in pure Python.

Files are merged as kubectl merges them: the first one that defines a name decides. The loader of the
``kubernetes`` package gets one context: it merges otherwise, and raises whatever it stumbles over (37.0:
``'NoneType' object does not support item assignment`` for an empty file). So problems are described here.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import ssl
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from nbtorchjob import errors
from nbtorchjob.backends.kubernetes.api import proxies
from nbtorchjob.backends.kubernetes.objects import from_yaml
from nbtorchjob.errors import ClusterError
from nbtorchjob.machine import loop
from nbtorchjob.text import words

if TYPE_CHECKING:
    import aiohttp


Entry: TypeAlias = Mapping[str, Any]

_PEM = b"-----BEGIN "
# Keys of credentials that name a file; with _DATA appended, they hold its content in base64.
_OF_USER = {
    "client-certificate": "client certificate",
    "client-key": "client key",
    "tokenFile": "token",
}
_OF_CLUSTER = {"certificate-authority": "certificate authority"}
_DATA = "-data"


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
                inline = "token" if label == "tokenFile" else label + _DATA
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
        if inline := settings.get(name + _DATA):
            try:
                is_pem = _PEM in base64.b64decode("".join(str(inline).split()), validate=True)
            except ValueError:
                is_pem = False
            if not is_pem:
                yield f"has {name}{_DATA} that is no {label} in base64"
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


_FRESH_S = 60.0  # the kubelet writes another token well before one expires


def server() -> str:
    """Return the URL of the API server of this pod. Raises ``LookupError`` where this is no pod."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}") for name in ("HOST", "PORT"))
    if not host or not port:
        raise LookupError("Service host/port is not set.")
    return f"https://{f'[{host}]' if ':' in host else host}:{port}"


class Account:
    """Sends requests with an account's token, reread now and then, to a server of the account's authority."""

    proxy_headers = None
    configuration = SimpleNamespace(tls_server_name=None)

    def __init__(self, folder: Path, unread: int, proxy: str | None) -> None:
        """Raise ``OSError`` where there is no such account."""
        self.proxy = proxy
        self._token = folder / "token"
        self._authority = folder / "ca.crt"
        self._unread = unread
        self._read: tuple[float, str] = (time.monotonic(), self._token.read_text().strip())
        self.ssl_context = self.tls()
        self._session: aiohttp.ClientSession | None = None

    def tls(self) -> ssl.SSLContext:
        """Make the SSL context of connections."""
        context = ssl.create_default_context(cafile=self._authority)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as in ``log_in``
        return context

    @property
    def rest_client(self) -> Account:
        """The object that sends requests: this one."""
        return self

    async def update_params_for_auth(self, headers: dict[str, str], *_: object) -> None:
        """Add the token."""
        if time.monotonic() - self._read[0] > _FRESH_S:
            self._read = time.monotonic(), self._token.read_text().strip()
        headers["Authorization"] = f"Bearer {self._read[1]}"

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: dict[str, str],
        body: Any,
        _request_timeout: aiohttp.ClientTimeout,
    ) -> SimpleNamespace:
        """Send a request; return once the answer's head has come."""
        with errors.needs_extra("kubernetes", "a cluster"):
            import aiohttp

        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self.ssl_context, limit=0)
            self._session = aiohttp.ClientSession(connector=connector, read_bufsize=self._unread)
        data = None if body is None else json.dumps(body)
        response = await self._session.request(
            method, url, headers=headers, data=data, timeout=_request_timeout, proxy=self.proxy
        )
        return SimpleNamespace(response=response)

    async def close(self) -> None:
        """Cut every connection."""
        if self._session is not None:
            await self._session.close()


# The most that a slow reader leaves unread in one stream; the package's 2 MiB would add up for 100 pods.
_UNREAD_BYTES = 1 << 17
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Login(NamedTuple):
    """Our identity at a server; ``api`` has the connections.

    ``api`` is a ``kubernetes.aio.client.ApiClient``, or an ``Account``.
    """

    api: Any
    server: str
    namespace: str
    context: str | None = None  # of a kubeconfig

    def tls(self) -> ssl.SSLContext:
        """Make an SSL context like that of its connections, which themselves must not speak HTTP/2."""
        if isinstance(self.api, Account):
            return self.api.tls()
        context: ssl.SSLContext = type(self.api.rest_client)(self.api.configuration).ssl_context
        return context


async def log_in(context: str | None) -> Login:
    """Read the credentials again; raises ``ClusterError`` if there are none, or none that can be used."""
    files = paths()
    if not files and not context:
        return _account()
    with errors.needs_extra("kubernetes", "a cluster"):
        from kubernetes.aio import client, config

    if not files:
        place = f"there is no kubeconfig at {search_path()}"
        raise ClusterError(f"no context {context!r}: {place}; log in, or set KUBECONFIG")
    merged = Kubeconfig(files)
    name = merged.check(context)
    settings = client.Configuration()
    settings.connection_pool_maxsize = 0  # no limit: each followed log holds a connection
    settings.client_session_kwargs = {"read_bufsize": _UNREAD_BYTES, "trust_env": False}
    # As in kubectl: the authorities of some EKS clusters lack key identifiers, which Python 3.13 demands.
    settings.disable_strict_ssl_verification = True
    own, cluster, user = merged.alone(name)
    command, failure = user.pop("exec", None), None
    if isinstance(command, Mapping):
        try:
            user.update(await _credential(command))
        except _LoginError as error:
            failure = error
    # One context, as the loader merges files in its own way (37.0): of two folders' paths it takes one's.
    document = {
        "contexts": [{"name": name, "context": {**own, "cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
    }
    try:
        await config.load_kube_config_from_dict(document, name, client_configuration=settings)
        if failure is not None and not settings.api_key and not settings.cert_file:
            raise ClusterError(
                f"the kubeconfig's login command failed: {failure}: run it by hand, or log in again"
            ) from failure
        # As in kubectl: a file with a token may end with a newline.
        settings.api_key = {key: value.strip() for key, value in settings.api_key.items()}
        settings.proxy = proxies.to_server(settings.host, settings.proxy)
        return Login(client.ApiClient(settings), settings.host, own.get("namespace") or "default", name)
    except ClusterError:
        raise
    except Exception as error:  # whatever the loader stumbles over
        why = f"`kubectl --context {name} version` may tell why"
        raise ClusterError(f"{merged} can't be used for the context {name}: {why}") from error


class _LoginError(Exception):
    """A login command gave no credential; the message says why."""


_LOGIN_S = 60.0  # for a login command, which may wait for a user and a browser
_REST_S = 0.5  # for what it wrote to stderr, which what it started may keep open
_SAID, _SAID_BYTES = 500, 4096  # of a login command's output: characters shown, and bytes kept


async def _credential(login: Entry) -> dict[str, Any]:
    """Run a login command (client.authentication.k8s.io/v1); return its credential as a user's settings.

    Not by the kubernetes package: it waits without an end, and keeps what the command asks of the user
    (37.0). Raises ``_LoginError``.
    """
    version = str(login.get("apiVersion") or "client.authentication.k8s.io/v1")
    request = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": sys.stdout.isatty()}}
    variables = {str(entry["name"]): str(entry["value"]) for entry in login.get("env") or ()}
    command = [str(login["command"]), *map(str, login.get("args") or ())]
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**os.environ, **variables, "KUBERNETES_EXEC_INFO": json.dumps(request)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise _LoginError(f"it can't be started ({error.strerror})") from error
    stdout, stderr = process.stdout, process.stderr
    assert stdout is not None
    assert stderr is not None
    kept = bytearray()

    async def listen() -> None:
        while part := await stderr.read(_SAID_BYTES):
            kept.extend(part)
            del kept[:-_SAID_BYTES]

    def with_words(text: str) -> str:
        printed = kept.decode(errors="replace").strip()
        return f"{text} and said: {words.line(printed, _SAID)}" if printed else text

    listening = asyncio.ensure_future(listen())
    try:
        async with loop.timeout(_LOGIN_S):
            output, code = await asyncio.gather(stdout.read(), process.wait())
        await asyncio.wait([listening], timeout=_REST_S)
    except asyncio.TimeoutError:
        raise _LoginError(with_words(f"it gave no credential within {_LOGIN_S:.0f} s")) from None
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        listening.cancel()
    if code != 0:
        raise _LoginError(with_words(f"it ended with code {code}"))
    return _parsed(output, version)


def _parsed(output: bytes, version: str) -> dict[str, Any]:
    """Return a printed credential as a user's settings. Raises ``_LoginError``."""
    try:
        printed = json.loads(output)
    except (ValueError, RecursionError):
        raise _LoginError("it printed no JSON") from None
    if not isinstance(printed, Mapping):
        raise _LoginError("it printed JSON that isn't a credential")
    for key in ("apiVersion", "kind", "status"):
        if key not in printed:
            raise _LoginError(f"it printed JSON without {key!r}")
    if printed["apiVersion"] != version:
        raise _LoginError(f"it printed a credential of {printed['apiVersion']}, expected {version}")
    status = printed["status"] if isinstance(printed["status"], Mapping) else {}
    settings: dict[str, Any] = {"token": str(status["token"])} if status.get("token") else {}
    if status.get("clientCertificateData") and status.get("clientKeyData"):
        for name in ("Certificate", "Key"):
            pem = str(status[f"client{name}Data"]).encode()
            settings[f"client-{name.lower()}{_DATA}"] = base64.b64encode(pem).decode()
    if not settings:
        raise _LoginError("it gave no credential")
    return settings


def _account() -> Login:
    try:
        where = server()
    except LookupError as error:
        place = f"there is no kubeconfig at {search_path()}, and this is no pod"
        raise ClusterError(f"no cluster is known: {place}; log in, or set KUBECONFIG") from error
    try:
        namespace = (ACCOUNT / "namespace").read_text().strip()
        account = Account(ACCOUNT, _UNREAD_BYTES, proxies.to_server(where))
        return Login(account, where, namespace)
    except OSError as error:
        why = error.strerror or "its certificate authority holds no certificate"
        raise ClusterError(f"this pod's account in {ACCOUNT} can't be read: {why}") from error
