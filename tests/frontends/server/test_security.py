"""Who may use each route; the requests come from the server's own table of routes."""

import time
from urllib.parse import quote

import pytest
from jupyter_server.auth.authorizer import Authorizer

from nbtorchjob.backends.local import directory
from nbtorchjob.frontends.server.app import ROUTES
from nbtorchjob.state import JobInfo
from tests.frontends.server.conftest import Server, error

NAME = "train-2222"
MARK = {"X-XSRFToken": "abc"}  # together with a cookie of this value


def path(route, id=f"local:{NAME}", **parts):
    """Return the route's path below the server's base URL."""
    filled = {"id": quote(id, safe=""), "rank": "0", "verb": "cancel", **parts}
    query = "?job={id}&job={id}" if "job" in route.query else ""
    query = query or ("?value=lr%3D1" if "value" in route.query else "")
    return "nbtorchjob/api/" + (route.path + query).format(**filled)


REQUESTS = [(method, path(route)) for route in ROUTES for method in route.answers]
READS = [request for request in REQUESTS if request[0] == "GET"]
WRITES = [request for request in REQUESTS if request[0] != "GET"]
# For a job that doesn't exist or has no manifests, and for plain HTTP to a websocket's route.
READ = {200, 404, 409, 426}


@pytest.fixture
def job(state_dir):
    """Yield the folder of a job that no process supervises."""
    job = directory.create(directory.jobs_dir(), JobInfo(NAME, created=time.time()), lambda new: None)
    yield job.path
    assert job.path.is_dir()
    for file in job.path.iterdir():
        file.unlink()
    job.path.rmdir()


def contents(folder):
    return {file: file.stat().st_mtime_ns for file in folder.rglob("*")}


class TestStrangers:
    """A server that leaves authentication to its extensions, as Jupyter does by default."""

    @pytest.fixture
    def jp_server_config(self, jp_server_config):
        """Let handlers decide about unauthenticated requests."""
        jp_server_config["ServerApp"]["allow_unauthenticated_access"] = True
        return jp_server_config

    @pytest.mark.parametrize(("method", "path"), REQUESTS)
    async def test_a_stranger_is_told_nothing(self, server, method, path, job):
        before = contents(job)
        stranger = Server(server.client, server.base, {"Cookie": "_xsrf=abc", **MARK})

        assert error(await stranger.ask(method, path)) == (403, "Forbidden")
        assert contents(job) == before


def test_jupyter_server_finds_no_method_that_is_open_to_all(jp_serverapp):
    jp_serverapp.web_app.add_handlers("elsewhere$", [route.rule for route in ROUTES])  # warns otherwise


async def session(server):
    """Log in through a link with a token, as a browser does; return a client with the browser's cookies."""
    token = server.headers["Authorization"].removeprefix("token ")
    answer = await Server(server.client, server.base, {}).get(f"api/me?token={token}")
    assert answer.code == 200
    cookies = [cookie.partition(";")[0] for cookie in answer.headers.get_list("Set-Cookie")]
    return Server(server.client, server.base, {"Cookie": "; ".join([*cookies, "_xsrf=abc"])})


@pytest.mark.parametrize(("method", "path"), WRITES)
async def test_a_page_elsewhere_can_change_nothing_in_a_browsers_session(server, method, path):
    browser = await session(server)

    status, message = error(await browser.ask(method, path))
    assert (status, "XSRF" in message or "_xsrf" in message) == (403, True)
    assert error(await browser.ask(method, path, headers={"X-XSRFToken": "abd"}))[0] == 403
    done = await browser.ask(method, path, headers=MARK)
    assert done.code == (200 if path.endswith("/doctor") else 404)  # the job doesn't exist


@pytest.mark.parametrize(("method", "path"), REQUESTS)
async def test_a_page_elsewhere_is_told_nothing_in_a_browsers_session(server, method, path, job):
    browser, before = await session(server), contents(job)

    answer = await browser.ask(method, path, headers={**MARK, "Origin": "https://elsewhere.example"})
    assert error(answer) == (404, "Not Found")
    assert contents(job) == before


@pytest.mark.parametrize(("method", "path"), READS)
async def test_a_browsers_session_is_enough_to_look(server, method, path):
    assert (await (await session(server)).ask(method, path)).code in READ


class Reader(Authorizer):
    """An authorizer that allows only reading, and records each request."""

    asked: list[tuple[str, str]] = []  # noqa: RUF012 shared with the test

    def is_authorized(self, handler, user, action, resource):
        """Record the request; allow only reading."""
        self.asked.append((action, resource))
        return action == "read"


class TestReaders:
    """A server with users who may only read."""

    @pytest.fixture
    def jp_server_config(self, jp_server_config):
        """Set the authorizer."""
        jp_server_config["ServerApp"]["authorizer_class"] = Reader
        return jp_server_config

    async def test_who_may_only_look_changes_nothing(self, server, job):
        Reader.asked.clear()
        before = contents(job)

        assert {(await server.ask(*request)).code for request in READS} <= READ
        assert {error(await server.ask(*request))[0] for request in WRITES} == {403}
        assert Reader.asked == [
            *(
                (action, "nbtorchjob")
                for action, requests in (("read", READS), ("write", WRITES))
                for _ in requests
            )
        ]
        assert contents(job) == before


async def test_to_look_changes_nothing(server, job, jp_root_dir):
    before = contents(directory.jobs_dir()), contents(jp_root_dir)
    for request in READS:
        await server.ask(*request)

    assert (contents(directory.jobs_dir()), contents(jp_root_dir)) == before


HOSTILE = (
    *("..", ".", "../..", "local:..", "local:../../etc/passwd", "local:train-2222/../..", "/etc/passwd"),
    *("local:train-2222\0", "local:\0", "local:train-2222\n", "local:train\r\nX-Evil: 1", "local:\u202e"),
    *("local:trаin-2222", "local:ｔｒａｉｎ", "local:" + "a" * 5000, "local:~", "local:$HOME", "local:*"),
    *("kubernetes:../train", "kubernetes:c/../train", "kubernetes:ml/..", "kubernetes:c\0/ml/train"),
    *("%2e%2e", "%", "kubernetes:ml/train?x=y", "kubernetes:ml/train#"),
    "kubernetes:" + "c" * 5000 + "/ml/train",
)  # fmt: skip


@pytest.mark.parametrize("route", [row for row in ROUTES if "{id}" in row.path], ids=lambda row: row.path)
async def test_what_is_no_id_leads_nowhere(server, route, state_dir):
    before = contents(state_dir)
    for id in HOSTILE:
        for method in route.answers:
            # The header that a websocket's route needs; other routes ignore it.
            answer = await server.ask(method, path(route, id), headers={"Upgrade": "websocket"})
            status, message = error(answer)
            assert status in (400, 404), (id, message)
            assert len(message) < 300
    assert contents(state_dir) == before


async def test_an_id_that_is_not_unicode_is_refused(server):
    assert error(await server.get("nbtorchjob/api/jobs/local:%ff%fe"))[0] == 400
