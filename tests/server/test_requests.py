"""Who may ask, and what is no request."""

import pytest
from jupyter_server.auth.authorizer import Authorizer

from tests.server.conftest import Server, error, jobs

JOB = "local:train-2222"
ROUTES = [
    ("GET", jobs()),
    ("GET", jobs(JOB)),
    ("DELETE", jobs(JOB)),
    ("GET", jobs(JOB, "describe")),
    ("GET", jobs(JOB, "manifests")),
    ("GET", jobs(JOB, "logs", "0")),
    ("POST", jobs(JOB, "cancel")),
    ("POST", jobs(JOB, "suspend")),
    ("POST", jobs(JOB, "resume")),
]
ABOUT_ONE = [route for route in ROUTES if route[1] != jobs()]


class TestStrangers:
    """A server that lets its extensions decide for themselves who may ask, as is Jupyter's default."""

    @pytest.fixture
    def jp_server_config(self, jp_server_config):
        """Leave it to the handlers."""
        jp_server_config["ServerApp"]["allow_unauthenticated_access"] = True
        return jp_server_config

    @pytest.mark.parametrize(("method", "path"), ROUTES)
    async def test_a_stranger_is_told_nothing(self, server, method, path):
        stranger = Server(server.client, server.base, {"Cookie": "_xsrf=abc", "X-XSRFToken": "abc"})

        assert error(await stranger.ask(method, path)) == (403, "Forbidden")


@pytest.mark.parametrize(("method", "path"), ABOUT_ONE)
async def test_a_job_that_is_not_there_is_not_found(server, method, path):
    status, told = error(await server.ask(method, path))

    assert status == 404
    assert told == "there is no job named 'train-2222' on this machine"


@pytest.mark.parametrize("id", ["train-2222", "local:..", "local:../../etc", "slurm:a", "kubernetes:a", "%"])
@pytest.mark.parametrize(("method", "path"), ABOUT_ONE)
async def test_what_is_no_id_is_refused(server, method, path, id):
    status, told = error(await server.ask(method, path.replace(jobs(JOB), jobs(id))))

    assert status == 400
    assert repr(id) in told


async def test_a_path_leads_nowhere_else(server, state_dir):
    beside = state_dir / "jobs" / "beside"
    beside.mkdir(parents=True, exist_ok=True)
    for id in ("local:..", "local:../jobs/beside", "local:%2e%2e", "local:jobs/../beside"):
        assert error(await server.ask("DELETE", jobs(id)))[0] == 400

    assert (await server.ask("DELETE", f"{jobs()}/local:../jobs/beside")).code == 404
    assert (await server.ask("DELETE", f"{jobs()}/../jobs/beside")).code == 404
    assert beside.is_dir()
    beside.rmdir()


@pytest.mark.parametrize("rank", ["-1", "one", "..", "1e3"])
async def test_what_is_no_rank_is_refused(server, rank):
    status, told = error(await server.get(jobs(JOB, "logs", rank)))

    assert status == 400
    assert told.startswith(f"rank: got {rank!r}")


async def test_an_unknown_verb_is_not_found(server):
    assert error(await server.post(jobs(JOB, "explode"))) == (
        404,
        "a job can be asked to cancel, suspend, resume",
    )


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", jobs(JOB, "cancel")),
        ("POST", jobs()),
        ("POST", jobs(JOB)),
        ("POST", jobs(JOB, "describe")),
        ("POST", jobs(JOB, "logs", "0")),
        ("DELETE", jobs()),
    ],
)
async def test_a_route_takes_its_own_methods_only(server, method, path):
    assert error(await server.ask(method, path))[0] == 405


async def session(server):
    """Log in by a link with a token, as a browser does; give what it sends from then on."""
    token = server.headers["Authorization"].removeprefix("token ")
    answer = await Server(server.client, server.base, {}).get(f"api/me?token={token}")
    assert answer.code == 200
    cookies = [cookie.partition(";")[0] for cookie in answer.headers.get_list("Set-Cookie")]
    return Server(server.client, server.base, {"Cookie": "; ".join([*cookies, "_xsrf=abc"])})


@pytest.mark.parametrize(("method", "path"), ABOUT_ONE)
async def test_a_page_elsewhere_can_not_use_a_browsers_session(server, method, path):
    browser = await session(server)

    answers = [await browser.ask(method, path, headers=more) for more in ({}, {"X-XSRFToken": "abc"})]

    # What changes nothing needs no mark: another page may ask for it, but can't read the answer.
    assert [answer.code for answer in answers] == ([404, 404] if method == "GET" else [403, 404])


class Reader(Authorizer):
    """Lets everybody look, and writes down who was asked for what."""

    asked: list[tuple[str, str]] = []  # noqa: RUF012 shared with the test

    def is_authorized(self, handler, user, action, resource):
        """Say who may."""
        self.asked.append((action, resource))
        return action == "read"


class TestReaders:
    """A server on which some may only look."""

    @pytest.fixture
    def jp_server_config(self, jp_server_config):
        """Have the authorizer decide."""
        jp_server_config["ServerApp"]["authorizer_class"] = Reader
        return jp_server_config

    async def test_who_may_only_look_changes_nothing(self, server):
        Reader.asked.clear()
        found = {route: (await server.ask(*route)).code for route in ROUTES}

        assert {code for (method, _), code in found.items() if method != "GET"} == {403}
        assert {code for (method, _), code in found.items() if method == "GET"} == {200, 404}
        assert {resource for _, resource in Reader.asked} == {"nbtorchjob"}
        assert [action for action, _ in Reader.asked] == [
            "read" if method == "GET" else "write" for method, _ in ROUTES
        ]
