"""Credentials and TLS of a cluster: from kubeconfig files, or the account of the pod we run in.

Only this module imports the ``kubernetes`` package, for what must work as in kubectl: contexts,
certificates, refreshed OIDC tokens, proxies (``kubernetes.aio``, which exists since release 37). Its typed
models would cost memory and time for every listed object.

So a process in a pod needs only aiohttp, which also comes in pure Python.

Its loader gets one context, as it merges files in its own way (37.0): for two folders' paths it takes one's.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from nbtorchjob import errors
from nbtorchjob.backends.kubernetes.api.kubeconfig import DATA, Entry, Kubeconfig, paths, proxy, search_path
from nbtorchjob.errors import ClusterError
from nbtorchjob.machine import loop
from nbtorchjob.text import words

if TYPE_CHECKING:
    import aiohttp


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
        settings.proxy = proxy(settings.host, settings.proxy)
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
    variables = {str(entry.get("name")): str(entry.get("value") or "") for entry in login.get("env") or ()}
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
            settings[f"client-{name.lower()}{DATA}"] = base64.b64encode(pem).decode()
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
        account = Account(ACCOUNT, _UNREAD_BYTES, proxy(where))
        return Login(account, where, namespace)
    except OSError as error:
        why = error.strerror or "its certificate authority holds no certificate"
        raise ClusterError(f"this pod's account in {ACCOUNT} can't be read: {why}") from error
