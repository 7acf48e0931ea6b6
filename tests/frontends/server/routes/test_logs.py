"""A job's logs over a websocket: each byte once, from the offset that a page asks for, whatever happens.

Also the files that ranks write, as a page browses them: during the job and after its end.
"""

import asyncio
import io
import json
import os
import random
import sys
import time
import zipfile
from pathlib import Path

import cloudpickle
import pytest
from jupyter_server.auth.authorizer import Authorizer
from tornado.httpclient import HTTPClientError
from tornado.iostream import StreamClosedError

from nbtorchjob import api, artifacts_dir, checkpoint_dir
from nbtorchjob.backends.local.backend import LocalBackend
from nbtorchjob.errors import UnreachableError
from nbtorchjob.frontends.server.routes import logs, streams
from nbtorchjob.frontends.server.routes.streams import PIECE_BYTES
from nbtorchjob.state import Phase
from tests.backends.kubernetes.stage import until
from tests.backends.local.acted import Acted
from tests.frontends.server.conftest import error, jobs
from tests.frontends.server.routes.test_jobs import boom, hang, local
from tests.frontends.server.sockets import followed_no_more, following
from tests.patience import LIMIT

HOSTILE = b"\xff\xfe\x00\x1b[31mred\x1b[2J\r\n\xe2\x82" + b'{"end": true}\n0.0.7\n' + b"x" * 100_000 + b"\xc3"
BIG = bytes(range(256)) * 4096  # four messages


async def refused(connecting):
    """Return the status and the message with which the server refuses a websocket."""
    with pytest.raises(HTTPClientError) as caught:
        await connecting
    return error(caught.value.response)


@pytest.fixture
def job():
    """Yield a job with a folder that the test writes."""
    job = Acted()
    yield job
    job.remove()


@pytest.mark.torch
async def test_a_job_that_has_ended_is_told_whole_and_then_it_is_over(connect):
    job = api.submit(boom)
    assert await asyncio.to_thread(job.wait, LIMIT)

    socket = await connect(local(job))
    logs = await socket.all()

    assert logs == {(0, 0): job.logs(0).encode()}
    assert socket.told[0]["job"]["id"] == local(job)
    assert socket.told[0]["job"]["phase"] == "FAILED"
    assert socket.told[0]["failed"] == {"rank": 0, "round": 0}
    assert socket.told[-1] == {"end": True}
    assert socket.socket.close_code == 1000


@pytest.mark.torch
async def test_a_job_that_is_cancelled_while_it_is_looked_at_ends_the_stream(server, connect, tmp_path):
    job = api.submit(hang, str(tmp_path / "never"))
    socket = await connect(local(job))
    await socket.until(lambda: (0, 0) in socket.logs)

    assert (await server.post(jobs(local(job), "cancel"))).code == 204
    await socket.all()

    assert [record["job"]["phase"] for record in socket.records][-1] == "CANCELLED"
    assert socket.told[-1] == {"end": True}
    assert await asyncio.to_thread(lambda: job.wait(LIMIT) and job.state.phase) is Phase.CANCELLED


async def test_what_is_written_on_comes_as_it_is_written(connect, job):
    socket = await connect(local(job))
    job.begin(ranks=(0, 1))
    job.log(b"one\n")
    await socket.until(lambda: socket.logs.get((0, 0)) == (0, b"one\n"))
    job.log(b"half a li")
    await socket.until(lambda: socket.logs.get((0, 0)) == (0, b"one\nhalf a li"))
    job.log(b"other\n", rank=1)
    job.log(b"ne\n")
    job.end()

    assert await socket.all() == {(0, 0): b"one\nhalf a line\n", (1, 0): b"other\n"}


async def test_the_record_comes_first_and_again_when_something_has_changed(connect, job):
    job.begin()
    job.log(b"text")
    socket = await connect(local(job))
    await socket.until(lambda: socket.logs)
    assert [record["failed"] for record in socket.records] == [None]

    job.begin(1)
    await socket.until(lambda: len(socket.records) == 2)
    job.fail(0, round=1)
    job.end()
    await socket.all()

    assert [record["job"]["restarts"]["used"] for record in socket.records[:2]] == [0, 1]
    assert socket.records[-1]["job"]["failure"] == "rank 0: ValueError: boom"
    assert socket.records[-1]["failed"] == {"rank": 0, "round": 1}


async def test_a_page_hears_that_there_is_nothing_new(connect, job, monkeypatch):
    monkeypatch.setattr(streams, "BEAT_S", 0.01)  # instead of 30 s
    job.begin()
    socket = await connect(local(job))
    await socket.until(lambda: {"loaded": True} in socket.told)
    start = len(socket.told)
    await socket.until(lambda: socket.told[start:].count({}) == 3)
    job.log(b"line\n")
    job.end()

    assert await socket.all() == {(0, 0): b"line\n"}
    assert socket.told[-1] == {"end": True}


async def test_a_page_that_is_cut_off_again_and_again_misses_nothing(connect, job):
    for round in (0, 1):
        job.begin(round, ranks=(0, 1))
        for rank in (0, 1):
            job.log(BIG[rank * 100 :], rank, round)
    job.end()

    socket = await connect(local(job))
    got: dict[tuple[int, int], bytes] = {}
    while True:
        cut = await socket.read() and await socket.read() and await socket.read()
        for log, (start, text) in socket.logs.items():
            assert start == len(got.get(log, b""))
            got[log] = got.get(log, b"") + text
        socket.socket.close()
        if not cut:
            break
        since = ",".join(f"{rank}.{round}.{len(text)}" for (rank, round), text in got.items())
        socket = await connect(local(job), since=since)

    assert got == {(rank, round): BIG[rank * 100 :] for rank in (0, 1) for round in (0, 1)}


async def test_a_log_that_is_cut_inside_goes_on_there(connect, job):
    job.begin()
    job.log(HOSTILE)
    job.end()

    first = await connect(local(job))
    await first.all()
    for offset in (1, 11, 100, len(HOSTILE) - 1, len(HOSTILE)):
        rest = await (await connect(local(job), since=f"0.0.{offset}")).all()
        assert b"".join(rest.values()) == HOSTILE[offset:]

    assert first.logs == {(0, 0): (0, HOSTILE)}
    assert first.since == f"0.0.{len(HOSTILE)}"
    assert first.told[-1] == {"end": True}


async def test_only_the_ranks_that_are_asked_for_come(connect, job):
    job.begin(ranks=(0, 1, 2, 3))
    for rank in range(4):
        job.log(b"%d" % rank, rank)
    job.end()

    assert await (await connect(local(job), ranks="1,3")).all() == {(1, 0): b"1", (3, 0): b"3"}


async def test_a_message_holds_a_part_of_a_long_log(connect, job):
    job.begin()
    job.log(BIG)
    job.log(b"!")
    job.end()

    socket = await connect(local(job))
    await socket.all()

    assert (len(socket.parts), max(socket.parts)) == (5, PIECE_BYTES)


async def test_a_page_that_takes_nothing_holds_up_nothing_and_is_let_go(server, connect, job):
    job.begin()
    for _ in range(40):
        job.log(BIG)
    before = following()
    slow = await connect(local(job))
    quick = await connect(local(job))
    await quick.until(lambda: sum(quick.parts) == 40 * len(BIG))

    assert (await server.get("api/status")).code == 200
    assert len(following() - before) >= 2
    for socket in (slow, quick):
        socket.socket.stream.close()  # without a closing handshake
    await followed_no_more(before)


async def test_a_job_that_is_deleted_ends_the_stream(connect, job):
    job.begin()
    job.log(b"text")
    socket = await connect(local(job))
    await socket.until(lambda: socket.logs)
    job.remove()

    assert await socket.all() == {(0, 0): b"text"}
    assert socket.records[-1]["job"]["status"] == "DELETED"
    assert socket.told[-1] == {"end": True}


async def test_what_goes_wrong_on_the_way_is_told(connect, job):
    job.begin()
    job.folder.rank_log(0, 0, 0).mkdir(parents=True)  # not a plain file
    before = following()
    socket = await connect(local(job))
    await socket.all()

    assert "it isn't a plain file" in socket.told[-1]["message"]
    assert socket.socket.close_code == 1011
    await followed_no_more(before)


async def test_what_a_page_says_is_not_heard(connect, job):
    job.begin()
    socket = await connect(local(job))
    await socket.socket.write_message("cancel")
    job.log(b"text")
    job.end()

    assert await socket.all() == {(0, 0): b"text"}


async def test_a_server_that_is_only_looked_at_counts_as_idle(jp_serverapp, connect, job):
    before = jp_serverapp.web_app.settings.get("api_last_activity")
    job.end()
    await (await connect(local(job))).all()

    assert jp_serverapp.web_app.settings.get("api_last_activity") == before


@pytest.mark.parametrize(
    "query",
    [{"since": "0.0"}, {"since": "0.0.-1"}, {"since": "0.0.1;1.0.1"}, {"ranks": "all"}, {"ranks": "0,-1"}],
)
async def test_what_is_no_place_in_a_log_is_refused(connect, job, query):
    status, message = await refused(connect(local(job), **query))

    assert status == 400
    assert message.startswith(f"{next(iter(query))}: got ")


async def test_what_is_no_job_is_refused(connect):
    assert (await refused(connect("local:../x")))[0] == 400
    assert await refused(connect("local:nobody-2222")) == (
        404,
        "there is no job named 'nobody-2222' on this machine",
    )


async def test_a_job_that_has_the_name_of_the_one_that_is_meant_is_refused(connect, job):
    assert await refused(connect(local(job), created=1.5)) == (
        404,
        f"{job.name} was deleted; another job has its name",
    )


async def test_another_request_is_told_to_use_a_websocket(server, job):
    status, message = error(await server.get(jobs(local(job), "logs")))

    assert status == 426
    assert message == "following logs needs a websocket; GET logs/RANK returns one log"


async def test_a_stranger_is_refused(connect, job):
    assert (await refused(connect(local(job), headers={})))[0] == 403


async def test_a_page_elsewhere_can_not_use_a_browsers_session(server, connect, job):
    token = server.headers["Authorization"].removeprefix("token ")
    answer = await server.client.fetch(f"{server.base}api/me?token={token}")
    cookies = "; ".join(cookie.partition(";")[0] for cookie in answer.headers.get_list("Set-Cookie"))
    job.end()

    elsewhere = {"Cookie": cookies, "Origin": "https://elsewhere.example"}
    assert (await refused(connect(local(job), headers=elsewhere)))[0] in (403, 404)
    assert (await (await connect(local(job), headers={"Cookie": cookies})).all()) == {}


class Nobody(Authorizer):
    """An authorizer that refuses every request and records it."""

    asked: list[tuple[str, str]] = []  # noqa: RUF012 shared with the test

    def is_authorized(self, handler, user, action, resource):
        """Record the request and refuse it."""
        self.asked.append((action, resource))
        return False


class TestStrict:
    """A server that lets users log in but read nothing."""

    @pytest.fixture
    def jp_server_config(self, jp_server_config):
        """Set the authorizer."""
        jp_server_config["ServerApp"]["authorizer_class"] = Nobody
        return jp_server_config

    async def test_who_may_not_read_is_refused(self, connect, job):
        Nobody.asked.clear()

        assert (await refused(connect(local(job))))[0] == 403
        assert Nobody.asked == [("read", "nbtorchjob")]


async def test_bytes_come_with_the_times_at_which_they_were_written(connect, job):
    job.begin()
    job.log(b"one\n", at=10.25)
    job.log(b"two\n", at=12.5)
    job.end()

    socket = await connect(local(job))
    await socket.all()

    assert socket.times == {(0, 0): [(4, 10_250), (8, 12_500)]}


async def test_it_is_told_once_that_what_was_there_is_loaded(connect, job):
    job.begin()
    job.log(b"old\n", at=10.0)
    socket = await connect(local(job))
    await socket.until(lambda: {"loaded": True} in socket.told)
    assert socket.logs == {(0, 0): (0, b"old\n")}

    job.log(b"new\n")
    job.end()
    await socket.all()

    assert socket.told.count({"loaded": True}) == 1


async def test_all_logs_come_as_an_archive(server, job):
    job.begin(ranks=(0, 1))
    job.log(BIG, rank=1)
    job.log(b"line\n", at=0.25)

    whole = await server.get(jobs(local(job), "logs.zip"))
    stamped = await server.get(f"{jobs(local(job), 'logs.zip')}?times=true")

    assert whole.headers["Content-Type"] == "application/zip"
    assert whole.headers["Content-Disposition"] == f"attachment; filename*=utf-8''{job.name}-logs.zip"
    with zipfile.ZipFile(io.BytesIO(whole.body)) as file:
        assert {name: file.read(name) for name in file.namelist()} == {
            f"{job.name}/rank-0.log": b"line\n",
            f"{job.name}/rank-1.log": BIG,
        }
    with zipfile.ZipFile(io.BytesIO(stamped.body)) as file:
        assert file.read(f"{job.name}/rank-0.log").endswith(b"00.250+00:00 line\n")
    assert error(await server.get(jobs("local:nobody-2222", "logs.zip")))[0] == 404


async def test_an_archive_that_can_not_be_read_to_its_end_is_cut_off(server, job, monkeypatch):
    def broken(self, name, rank, offset=0):
        yield random.Random(0).randbytes(1 << 20)
        raise UnreachableError("the cluster is gone")

    monkeypatch.setattr(LocalBackend, "log", broken)  # a real local log never breaks off
    with pytest.raises((HTTPClientError, StreamClosedError)):
        await server.get(jobs(local(job), "logs.zip"))


async def test_what_ranks_left_is_listed_and_comes_as_an_archive(server, job):
    job.begin()
    none = await server.get(jobs(local(job), "artifacts.zip"))
    assert error(none) == (409, f"{job.name} left no artifacts")
    assert json.loads((await server.get(jobs(local(job), "artifacts"))).body) == {"artifacts": []}

    for attempt, content in ((1, b"first"), (2, BIG)):
        path = job.folder.artifacts(0, attempt)
        path.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("runs/events", content)
        size = {"size": path.stat().st_size, "files": 1, "total": len(content)}
        job.folder.emit("ArtifactsReady", node=0, attempt=attempt, ref="here", **size)

    listed = json.loads((await server.get(jobs(local(job), "artifacts"))).body)
    newest = await server.get(jobs(local(job), "artifacts.zip"))
    first = await server.get(f"{jobs(local(job), 'artifacts.zip')}?attempt=1")

    assert listed == {"artifacts": [{"path": "runs/events", "size": len(BIG), "node": 0, "attempt": 2}]}
    assert newest.headers["Content-Disposition"] == f"attachment; filename*=utf-8''{job.name}-artifacts.zip"
    for answer, content in ((first, b"first"), (newest, BIG)):
        with zipfile.ZipFile(io.BytesIO(answer.body)) as file:
            assert {name: file.read(name) for name in file.namelist()} == {f"{job.name}/runs/events": content}
    assert error(await server.get(f"{jobs(local(job), 'artifacts')}?attempt=3"))[0] == 409
    assert error(await server.get(f"{jobs(local(job), 'artifacts')}?attempt=../1"))[0] == 400
    assert error(await server.get(jobs("local:nobody-2222", "artifacts.zip")))[0] == 404


# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.torch

PAGE = b"<script>alert(1)</script>"
BIG_FILE = os.urandom(logs.MOST_SHOWN + 10)


def writes(go):
    folder = artifacts_dir()
    (folder / "runs").mkdir()
    (folder / "runs" / "page.html").write_bytes(b"<script>alert(1)</script>")
    (folder / "blank ").write_bytes(b"blank")
    (folder / "key").symlink_to(folder.parent / "key")
    (checkpoint_dir() / "last.pt").write_bytes(b"weights")
    (folder / "ready").touch()
    while not Path(go).exists():
        time.sleep(0.02)


async def listed(server, job, **query):
    parameters = "&".join(f"{name}={value}" for name, value in query.items())
    answer = await server.get(f"{jobs(local(job), 'files')}?{parameters}")
    assert answer.code == 200
    listing = json.loads(answer.body)
    assert (listing["trouble"], listing["more"]) == ([], False)
    return {file["path"]: file["size"] for file in listing["files"]}


async def test_files_are_listed_and_read_while_ranks_run_and_after(server, state_dir, tmp_path):
    job = api.submit(writes, str(tmp_path / "go"))
    await asyncio.to_thread(until, lambda: job.files("artifacts/ready").files)
    sizes = {
        "artifacts/blank ": 5,
        "artifacts/ready": 0,
        "artifacts/runs/page.html": len(PAGE),
        "checkpoints/last.pt": 7,
    }

    for ends in (False, True):
        if ends:
            (tmp_path / "go").touch()
            assert await asyncio.to_thread(job.wait, LIMIT)
        assert await listed(server, job) == sizes
        assert await listed(server, job, file="artifacts/runs") == {"artifacts/runs/page.html": len(PAGE)}
        page = f"{jobs(local(job), 'file')}?file=artifacts/runs/page.html"
        part, whole = await server.get(f"{page}&node=0&limit=7"), await server.get(page)
        assert (part.body, part.headers["X-File-Size"], whole.body) == (PAGE[:7], str(len(PAGE)), PAGE)
        assert whole.headers["Content-Disposition"] == "attachment; filename*=utf-8''page.html"
        for answer in (part, whole):  # no browser may render it as a page of the server
            assert answer.headers["Content-Type"] == "application/octet-stream"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
        saved = await server.get(f"{jobs(local(job), 'file')}?file=checkpoints/last.pt")
        assert saved.body == b"weights"
        assert await listed(server, job, file="artifacts/blank%20") == {"artifacts/blank ": 5}
        blank = await server.get(f"{jobs(local(job), 'file')}?file=artifacts/blank%20&node=0")
        assert blank.body == b"blank"
        for wrong in ("artifacts/key", "artifacts/../key", "checkpoints/../key", "/etc/passwd", ""):
            code, message = error(await server.get(f"{jobs(local(job), 'file')}?file={wrong}"))
            assert code == 409
            assert wrong in message
        assert error(await server.get(f"{page}&node=5"))[0] == 409
        assert error(await server.get(f"{page}&limit={logs.MOST_SHOWN + 1}"))[0] == 400
        assert error(await server.get(f"{page}&node=x"))[0] == 400
    assert error(await server.get(jobs("local:nobody-2222", "files")))[0] == 404
    job.delete()


async def test_a_file_too_big_to_be_shown_is_downloaded_whole(server, state_dir):
    job = api.submit(lambda data: (artifacts_dir() / "big").write_bytes(data), BIG_FILE)
    assert await asyncio.to_thread(job.wait, LIMIT)
    big = f"{jobs(local(job), 'file')}?file=artifacts/big"

    assert (await server.get(f"{big}&limit={logs.MOST_SHOWN}")).body == BIG_FILE[: logs.MOST_SHOWN]
    assert (await server.get(big)).body == BIG_FILE
    job.delete()
