"""Credentials and TLS of a cluster: from kubeconfig files, or the account of the pod we run in.

Only this module imports the ``kubernetes`` package, for what works as with kubectl: contexts,
certificates, login commands, proxies (``kubernetes.aio``, which exists since release 37). Its typed
models would cost memory and time for every listed object.

So a pod needs nothing but aiohttp, which has a form in pure Python.
"""

from __future__ import annotations

import json
import os
import ssl
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from nbtorchjob.machine import extras

if TYPE_CHECKING:
    import aiohttp


import ast
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from nbtorchjob.backends.kubernetes.api import kubeconfig
from nbtorchjob.errors import ClusterError
from nbtorchjob.text import words

_FRESH_S = 60.0  # the kubelet writes another token well before one expires


def server() -> str:
    """Return where a pod finds its API server. Raises ``LookupError`` where this is no pod."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}") for name in ("HOST", "PORT"))
    if not host or not port:
        raise LookupError("Service host/port is not set.")
    return f"https://{f'[{host}]' if ':' in host else host}:{port}"


class Account:
    """Sends requests with a token, which is read anew now and then, to the server of that authority."""

    proxy = None
    proxy_headers = None
    configuration = SimpleNamespace(tls_server_name=None)

    def __init__(self, folder: Path, unread: int) -> None:
        """Raise ``OSError`` where there is no such account."""
        self._token = folder / "token"
        self._unread = unread
        self._read: tuple[float, str] = (time.monotonic(), self._token.read_text().strip())
        self.ssl_context = ssl.create_default_context(cafile=folder / "ca.crt")
        self._session: aiohttp.ClientSession | None = None

    @property
    def rest_client(self) -> Account:
        """What sends: this itself."""
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
        """Send a request; the answer's head has come."""
        with extras.needed("kubernetes", "a cluster"):
            import aiohttp

        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self.ssl_context, limit=0)
            self._session = aiohttp.ClientSession(
                connector=connector, trust_env=True, read_bufsize=self._unread
            )
        data = None if body is None else json.dumps(body)
        response = await self._session.request(
            method, url, headers=headers, data=data, timeout=_request_timeout
        )
        return SimpleNamespace(response=response)

    async def close(self) -> None:
        """Cut every connection."""
        if self._session is not None:
            await self._session.close()


# What a slow reader leaves unread of one stream; the package's own 2 MiB would add up over a hundred pods.
_UNREAD_BYTES = 1 << 17
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Login(NamedTuple):
    """Who we are at which server; ``api`` has the connections.

    It is a ``kubernetes.aio.client.ApiClient``, or an ``Account``.
    """

    api: Any
    server: str
    namespace: str


async def log_in(context: str | None) -> Login:
    """Read the credentials anew; raises ``ClusterError`` where there are none, or none that can be used."""
    files = kubeconfig.paths()
    if not files and not context:
        return _account()
    with extras.needed("kubernetes", "a cluster"):
        from kubernetes.aio import client, config

    if not files:
        place = f"there is no kubeconfig at {kubeconfig.wanted()}"
        raise ClusterError(f"no context {context!r}: {place}; log in, or set KUBECONFIG")
    merged = kubeconfig.Kubeconfig(files)
    name = merged.check(context)
    settings = client.Configuration()
    settings.connection_pool_maxsize = 0  # no limit: each followed log holds a connection
    settings.client_session_kwargs = {"read_bufsize": _UNREAD_BYTES}
    try:
        with _complaints() as complaints:
            loader = await config.load_kube_config(
                os.pathsep.join(files), name, client_configuration=settings, persist_config=False
            )
        if complaints and not settings.api_key and not settings.cert_file:
            failure = _said(complaints[-1])
            raise ClusterError(
                f"the kubeconfig's login command failed: {failure}: run it by hand, or log in again"
            )
        namespace = loader.current_context["context"].get("namespace") or "default"
        return Login(client.ApiClient(settings), settings.host, namespace)
    except ClusterError:
        raise
    except Exception as error:  # whatever else the loader stumbles over
        why = f"`kubectl --context {name} version` may tell why"
        raise ClusterError(f"{merged} can't be used for the context {name}: {why}") from error


def _said(complaint: str) -> str:
    """Say in plain words what the package says of a login command (kubernetes 37)."""
    if returned := re.fullmatch(r"exec: process returned (-?\d+)(?:\. (b(['\"]).*\3))?", complaint):
        printed = ast.literal_eval(returned[2]).decode(errors="replace") if returned[2] else ""
        return f"it ended with code {returned[1]}" + (
            f" and said: {words.line(printed, _SAID)}" if printed else ""
        )
    if re.fullmatch(r"exec: failed to decode process output: .*", complaint, re.DOTALL):
        return "it printed no JSON"
    if lacking := re.fullmatch(r"exec: malformed response\. missing key '(\w+)'", complaint):
        return f"it printed JSON without {lacking[1]!r}"
    if re.fullmatch(r"argument of type '\w+' is not (a container or )?iterable", complaint):
        return "it printed JSON that is no credential"
    return "it gave no credential"


_SAID = 500  # characters of what a login command says


def _account() -> Login:
    try:
        where = server()
    except LookupError as error:
        place = f"there is no kubeconfig at {kubeconfig.wanted()}, and this is no pod"
        raise ClusterError(f"no cluster is known: {place}; log in, or set KUBECONFIG") from error
    try:
        namespace = (ACCOUNT / "namespace").read_text().strip()
        return Login(Account(ACCOUNT, _UNREAD_BYTES), where, namespace)
    except OSError as error:
        why = error.strerror or "its certificate authority holds no certificate"
        raise ClusterError(f"this pod's account in {ACCOUNT} can't be read: {why}") from error


class _Complaints(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(" ".join(record.getMessage().split()))


@contextmanager
def _complaints() -> Iterator[list[str]]:
    """Collect what the loader only logs: when a login command fails, it goes on without credentials."""
    logger = logging.getLogger("kubernetes.aio.config.kube_config")
    handler = _Complaints()
    logger.addHandler(handler)
    try:
        yield handler.texts
    finally:
        logger.removeHandler(handler)
