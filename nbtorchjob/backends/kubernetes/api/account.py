"""The account of the pod we run in: what ``connection`` needs of a login, without the ``kubernetes`` package.

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
