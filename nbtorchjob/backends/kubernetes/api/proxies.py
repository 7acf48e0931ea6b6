"""Find the proxy to an API server as kubectl does.

aiohttp could find one by itself (``trust_env``), again for each request, in a thread. But then it also takes
logins from the user's netrc, and sends no token beside them: an entry for ``default`` broke all requests
(3.14).
"""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from nbtorchjob.errors import ClusterError

_VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")


def to_server(server: str, configured: str | None = None) -> str | None:
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
        raise ClusterError(f"{named(url, server)} speaks {scheme}: expected an http or https proxy")
    return url


def named(url: str, server: str) -> str:
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
