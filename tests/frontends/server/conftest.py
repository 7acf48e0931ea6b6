"""A Jupyter Server with the extension, and a client that sends requests as a page in a browser does."""

import json
import logging
from urllib.parse import quote

import pytest

# Only here, and not as a plugin of all tests: the plugin gives each test an event loop, and closes it.
from pytest_jupyter.jupyter_server import *  # noqa: F403
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from tests.backends.kubernetes.conftest import cluster, crds, stage  # noqa: F401
from tests.frontends.server.sockets import Socket
from tests.patience import LIMIT


class Server:
    """A client of the server; ``headers`` are sent each time."""

    def __init__(self, client, base, headers):
        self.client, self.base, self.headers = client, base, headers

    async def ask(self, method, path, *, headers=None, body=None, **more):
        """Send a request; return the response, whatever its status."""
        if method == "POST":
            body = ""
        elif method == "PUT" and body is None:
            body = json.dumps({"note": "", "tags": []})  # the one route that takes a body
        sent = {**self.headers, **(headers or {})}
        url = f"{self.base}{path}"
        return await self.client.fetch(
            url, method=method, headers=sent, body=body, raise_error=False, request_timeout=LIMIT, **more
        )

    async def get(self, path, **more):
        """Send a GET request."""
        return await self.ask("GET", path, **more)

    async def post(self, path, **more):
        """Send a POST request."""
        return await self.ask("POST", path, **more)


def jobs(*parts):
    """Return the path of all jobs, of a job, or of a part of it."""
    return "/".join(["nbtorchjob/api/jobs", *(quote(part, safe="") for part in parts)])


def error(answer):
    """Return the status and the message of an error, which is JSON and one line."""
    body = json.loads(answer.body)
    assert "\n" not in body["message"]
    return answer.code, body["message"]


@pytest.fixture(name="jp_server_config")
def server_config():
    """Load the extension as its installed file does, in a server that authenticates every request."""
    # The terminals extension, which the server would load by itself, has a route without authentication.
    extensions = {"nbtorchjob": True, "jupyter_server_terminals": False}
    return {
        "ServerApp": {"jpserver_extensions": extensions, "allow_unauthenticated_access": False},
        "TorchJobApp": {"tend": False},
    }


@pytest.fixture(autouse=True)
def no_loggers_left():
    """Remove the logger that each server creates for its events, under a name of its own and for good.

    A captured call takes the settings of all loggers along.
    """
    loggers = logging.root.manager.loggerDict
    before = {*loggers}
    yield
    for name in loggers.keys() - before:
        if name.startswith("jupyter_events.logger."):
            del loggers[name]


@pytest.fixture(name="jp_environ")
def warm_environ(jp_environ, monkeypatch):
    """Remove the PYTHONPATH of ``jp_environ``: with another one than the pool's, each job starts cold."""
    monkeypatch.delenv("PYTHONPATH")
    return jp_environ


@pytest.fixture
def server(jp_serverapp, http_server_client, jp_base_url, jp_auth_header):
    """Return a client that has the server's token."""
    return Server(http_server_client, jp_base_url, jp_auth_header)


@pytest.fixture
def connect(server, jp_http_port):
    """Yield a function that opens a websocket, by default with the headers of the server's own user."""

    opened = []

    async def connect(job, headers=None, **query):
        parameters = "&".join(f"{name}={value}" for name, value in query.items())
        url = f"ws://127.0.0.1:{jp_http_port}{server.base}{jobs(job, 'logs')}?{parameters}"
        request = HTTPRequest(url, headers=server.headers if headers is None else headers)
        opened.append(await websocket_connect(request))
        return Socket(opened[-1])

    yield connect
    for socket in opened:
        socket.close()
