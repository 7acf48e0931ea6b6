"""The choice of the proxy to an API server."""

import re

import pytest

from nbtorchjob.backends.kubernetes.api import kubeconfig
from nbtorchjob.errors import ClusterError

SERVER = "https://10.1.2.3:6443"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")


@pytest.mark.parametrize(
    ("server", "except_for", "proxied"),
    [
        (SERVER, "", True),
        (SERVER, "10.1.2.3", False),
        (SERVER, "192.168.0.0/16, 10.0.0.0/8", False),
        (SERVER, "192.168.0.0/16", True),
        (SERVER, "10.1.2.3:6443", False),
        (SERVER, "10.1.2.3:443", True),
        (SERVER, "*", False),
        ("https://[fd00::1]:6443", "fd00::/8", False),
        ("https://api.corp:6443", ".corp", False),
        ("https://api.corp:6443", "*.corp", False),
        ("https://api.corp:6443", "corp", False),
        ("https://api.corp", "*.org,10.0.0.0/8", True),
        ("https://localhost:6443", "", False),
        ("https://127.0.0.1:6443", "", False),
        ("https://[::1]:6443", "", False),
        ("http://10.1.2.3:8001", "", False),  # HTTPS_PROXY doesn't apply to http
    ],
)
def test_it_is_found_as_kubectl_finds_it(server, except_for, proxied, monkeypatch):
    monkeypatch.setenv("NO_PROXY", except_for)

    assert kubeconfig.proxy(server) == ("http://proxy:3128" if proxied else None)


def test_that_of_the_kubeconfig_comes_first_whatever_the_environment_says(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")

    assert kubeconfig.proxy(SERVER, "http://own:1") == "http://own:1"


def test_one_without_a_scheme_speaks_http(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "proxy:3128")

    assert kubeconfig.proxy(SERVER) == "http://proxy:3128"


@pytest.mark.parametrize("configured", [None, "socks5://me:secret@proxy:1080"])
def test_one_that_does_not_speak_http_is_refused_in_one_line(configured, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "" if configured else "socks5://me:secret@proxy:1080")
    where = "proxy-url of the kubeconfig" if configured else "HTTPS_PROXY"
    text = (
        f"the proxy proxy:1080 ({where}) to the cluster at {SERVER} speaks socks5: expected an http or https"
    )

    with pytest.raises(ClusterError, match=re.escape(text)):
        kubeconfig.proxy(SERVER, configured)


def test_one_of_the_settings_of_macos_is_not_named_after_the_kubeconfig(monkeypatch):
    monkeypatch.delenv("HTTPS_PROXY")
    monkeypatch.setattr(
        kubeconfig, "getproxies", lambda: {"https": "http://corp:3128"}
    )  # as urllib returns them on macOS

    assert kubeconfig.proxy(SERVER) == "http://corp:3128"
    assert "(the system's settings)" in kubeconfig.proxy_name("http://corp:3128", SERVER)
    assert "(proxy-url of the kubeconfig)" in kubeconfig.proxy_name("http://own:1", SERVER)
