"""Jobs of this machine through the server, with no kernel at all."""

import asyncio
import json
import pickle
import sys
import threading
import time
from pathlib import Path
from urllib.parse import quote

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob import Elastic, JobNotFoundError, JobSpec, NBTorchJobError, api, capture, submission
from nbtorchjob.backends.local.backend import LocalBackend
from nbtorchjob.frontends.server.app import ROUTES
from nbtorchjob.frontends.server.routes.jobs import window
from nbtorchjob.frontends.server.routes.logs import LogsSocket
from nbtorchjob.state import Phase
from nbtorchjob.ui import page
from tests.backends.kubernetes.stage import until
from tests.frontends.server.conftest import error, jobs
from tests.patience import LIMIT

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

LINES = 3
MANY = 3_000_000

pytestmark = pytest.mark.torch


def talk():
    for count in range(LINES):
        print(f"line {count} <b>&")
    return "told"


def hang(sign):
    print("hanging", flush=True)
    while not Path(sign).exists():
        time.sleep(0.02)
    return "let go"


def boom():
    raise ValueError("boom")


@pytest.fixture(scope="module")
def ended(state_dir):
    """Yield a job that has succeeded."""
    job = api.submit(talk)
    assert job.result(LIMIT) == "told"
    yield job
    job.delete()


@pytest.fixture(scope="module")
def big(state_dir):
    """Yield a job with a log of some megabytes."""
    job = api.submit(lambda: print("x" * MANY))
    job.result(LIMIT)
    yield job
    job.delete()


@pytest.fixture
def hanging(tmp_path):
    """Yield a job that runs until it is ended."""
    sign = tmp_path / "sign"
    job = api.submit(hang, str(sign))
    until(lambda: "hanging" in job.logs(0))
    yield job
    sign.touch()
    assert job.wait(LIMIT)


@pytest.fixture
def training():
    """Yield a job that trains until a value of its code is swapped."""
    text = """
import time
from nbtorchjob import report, swap_point
scale = 1.0
while scale < 5:
    report(step=1)
    time.sleep(0.01)
    swap_point()
scale
"""
    job = submission.submit(capture.from_cell(text, {}), JobSpec())
    until(lambda: job.state.series)
    yield job
    job.cancel()


def local(job):
    return f"local:{job.name}"


async def waited(job):
    """Wait for a job's end in a thread beside the server; return its phase."""
    assert await asyncio.to_thread(job.wait, LIMIT)
    return job.state.phase


async def test_all_jobs_are_listed_oldest_first(server, ended, hanging):
    answer = await server.get(jobs())

    listing = json.loads(answer.body)
    phases = {job["id"]: job["phase"] for job in listing["jobs"]}
    assert answer.headers["Content-Type"].startswith("application/json")
    assert (phases[local(ended)], phases[local(hanging)]) == ("SUCCEEDED", "RUNNING")
    assert list(phases).index(local(ended)) < list(phases).index(local(hanging))
    assert listing["notes"] == []


async def test_one_job_is_the_record_of_the_list(server, ended):
    record = json.loads((await server.get(jobs(local(ended)))).body)
    listed = json.loads((await server.get(jobs())).body)["jobs"]

    assert (record["name"], record["label"], record["terminal"]) == (ended.name, "talk()", True)
    assert record in listed


async def test_a_job_that_failed_says_why(server):
    job = api.submit(boom)
    assert await waited(job) is Phase.FAILED

    record = json.loads((await server.get(jobs(local(job)))).body)
    assert record["failure"] == "rank 0: ValueError: boom"


async def test_a_description_is_plain_text(server, ended):
    answer = await server.get(jobs(local(ended), "describe"))

    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.body.decode().startswith(f"torchjob {ended.name} succeeded in ")


async def test_a_page_of_a_job_is_titled_parts(server, ended):
    page = json.loads((await server.get(jobs(local(ended), "page"))).body)

    assert page["heading"].startswith(f"{ended.name} succeeded in ")
    titles = [part["title"] for part in page["parts"]]
    assert (titles[0], titles[-1]) == ("Job", "Options")


async def test_jobs_are_compared(server, ended):
    query = f"job={quote(local(ended))}"

    comparison = json.loads((await server.get(f"nbtorchjob/api/compare?{query}&{query}")).body)
    refusal = await server.get(f"nbtorchjob/api/compare?{query}")
    not_found = await server.get(f"nbtorchjob/api/compare?{query}&job=local:gone")

    assert comparison["heading"] == "2 jobs compared"
    titles = [part["title"] for part in comparison["parts"]]
    assert titles[-5:] == ["Options", "Code", "Captured data", "Packages", "Hosts"]
    assert error(refusal) == (400, "job: got 1, but it must be 2 to 8 jobs")
    assert error(not_found)[0] == 404


async def test_a_later_job_of_the_same_name_is_not_compared(server, ended):
    query, at = f"job={quote(local(ended))}", ended.info.created

    meant = await server.get(f"nbtorchjob/api/compare?{query}&{query}@{at}")
    namesake = await server.get(f"nbtorchjob/api/compare?{query}&{query}@{at - 100}")

    assert meant.code == 200
    assert error(namesake)[0] == 404


async def test_a_comparison_is_made_beside_the_event_loop(server, ended, monkeypatch):
    threads, compare = [], page.comparison

    def comparison(*arguments):
        threads.append(threading.current_thread())
        return compare(*arguments)

    monkeypatch.setattr(page, "comparison", comparison)
    query = f"job={quote(local(ended))}"

    assert (await server.get(f"nbtorchjob/api/compare?{query}&{query}")).code == 200

    assert len(threads) == 1
    assert threading.main_thread() not in threads


async def test_a_card_is_html_that_no_browser_opens_as_a_page(server, ended, hanging):
    answer = await server.get(jobs(local(ended), "card"))
    running = (await server.get(jobs(local(hanging), "card"))).body.decode()

    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert ">Succeeded</b>" in answer.body.decode()
    assert "nbtorchjob:attach" in running
    assert "<script" not in running


async def test_a_job_of_this_machine_has_no_manifests(server, ended):
    status, message = error(await server.get(jobs(local(ended), "manifests")))

    assert status == 409
    assert "this one runs on this machine" in message


async def test_a_whole_log_comes_as_it_was_written(server, ended):
    answer = await server.get(jobs(local(ended), "logs", "0"))

    assert answer.body.decode() == ended.logs(0)
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-store"


async def test_a_log_is_read_in_parts_each_from_where_the_last_ended(server, ended):
    whole, end, parts = ended.logs(0).encode(), 0, [b"?"]
    while parts[-1]:
        answer = await server.get(f"{jobs(local(ended), 'logs', '0')}?offset={end}&limit=7")
        parts.append(answer.body)
        end = int(answer.headers["X-Log-End"])

    assert b"".join(parts[1:]) == whole
    assert max(map(len, parts)) == 7
    assert end == len(whole)


async def test_a_log_can_be_read_from_an_offset_to_its_end(server, ended):
    path = jobs(local(ended), "logs", "0")

    assert (await server.get(f"{path}?offset=5")).body == ended.logs(0).encode()[5:]
    assert (await server.get(f"{path}?offset=5000")).body == b""


async def test_a_log_larger_than_a_piece_is_streamed_whole(server, big):
    log = bytearray()
    answer = await server.get(jobs(local(big), "logs", "0"), streaming_callback=log.extend)

    assert answer.code == 200
    assert "Content-Length" not in answer.headers
    assert len(log) == MANY + 1


async def test_a_reader_who_leaves_in_the_middle_disturbs_nobody(server, big, jp_http_port, caplog):
    reader, writer = await asyncio.open_connection("127.0.0.1", jp_http_port)
    path, token = server.base + jobs(local(big), "logs", "0"), server.headers["Authorization"]
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\n\r\n".encode())
    assert b"xxx" in await reader.readuntil(b"xxx")
    writer.close()
    await writer.wait_closed()

    assert (await server.get(jobs(local(big)))).code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("broken", [OSError("the disk is gone"), NBTorchJobError("the cluster is gone")])
async def test_a_log_that_breaks_off_says_so_at_its_end(server, ended, monkeypatch, broken):
    def log(*_):
        yield b"line 1\n"
        raise broken

    monkeypatch.setattr(LocalBackend, "log", log)  # no file breaks off in the middle
    answer = await server.get(jobs(local(ended), "logs", "0"))

    assert answer.body.decode() == f"line 1\n\n[the rest of the log can't be read: {broken}]\n"
    assert (await server.get(f"{jobs(local(ended), 'logs', '0')}?limit=99")).code >= 400


async def test_a_rank_that_wrote_nothing_has_an_empty_log(server, ended):
    answer = await server.get(jobs(local(ended), "logs", "17"))

    assert (answer.code, answer.body) == (200, b"")


@pytest.mark.parametrize("part", ["offset=-1", "limit=x", "limit=99999999", "offset=1&limit=1.5"])
async def test_a_part_of_a_log_that_is_none_is_refused(server, ended, part):
    status, message = error(await server.get(f"{jobs(local(ended), 'logs', '0')}?{part}"))

    assert status == 400
    assert message.startswith(("offset: got", "limit: got"))


async def test_a_running_job_is_cancelled_with_no_kernel(server, hanging):
    assert (await server.post(jobs(local(hanging), "cancel"))).code == 204

    assert await waited(hanging) is Phase.CANCELLED


async def test_cancelling_a_job_that_has_ended_changes_nothing(server, ended):
    assert (await server.post(jobs(local(ended), "cancel"))).code == 204

    record = json.loads((await server.get(jobs(local(ended)))).body)
    assert record["status"] == "SUCCEEDED"


@pytest.mark.parametrize("verb", ["suspend", "resume"])
async def test_what_this_machine_can_not_do_is_a_conflict(server, ended, verb):
    status, message = error(await server.post(jobs(local(ended), verb)))

    assert status == 409
    assert (
        message == f"{verb}: got {ended.name!r}, "
        "but it must be a job on another backend: this one runs on this machine"
    )


async def test_values_that_a_running_job_reads_are_told_and_set(server, training):
    path = jobs(local(training), "values")
    assert json.loads((await server.get(path)).body) == {"values": [{"name": "scale", "value": "1.0"}]}
    answer = await server.post(f"{path}?value=scale%3D7.5")
    assert answer.body.decode().startswith(f"{training.name}: swapped on all ranks at call ")

    assert await asyncio.to_thread(training.result, LIMIT) == 7.5
    assert json.loads((await server.get(path)).body) == {"values": []}


@pytest.mark.parametrize(
    ("asked", "status", "why"),
    [
        ("", 400, "value: got none, but it must be NAME=VALUE, once for each value"),
        ("value=scale", 409, "set: got 'scale', but it must be NAME=VALUE"),
        ("value=scale%3Dos", 409, "scale=os: expected a plain value"),
        ("value=scale%3D1", 409, "has ended: its code can't be changed any more"),
    ],
)
async def test_what_is_no_value_of_a_running_job_is_refused(server, ended, asked, status, why):
    code, message = error(await server.post(f"{jobs(local(ended), 'values')}?{asked}"))

    assert code == status
    assert why in message


async def test_a_running_job_can_be_deleted(server, hanging):
    assert (await server.ask("DELETE", jobs(local(hanging)))).code == 204

    assert error(await server.get(jobs(local(hanging))))[0] == 404
    with pytest.raises(JobNotFoundError):
        api.attach(hanging.name)


# All routes but the websocket's, which doesn't answer as the others do.
ABOUT_ONE = [
    pytest.param(method, route.path, id=f"{method} {route.path}")
    for route in ROUTES
    if "{id}" in route.path and route.handler is not LogsSocket
    for method in route.answers
]


@pytest.mark.parametrize(("method", "path"), ABOUT_ONE)
async def test_what_is_asked_of_a_deleted_job_is_not_asked_of_the_next_of_its_name(
    server, ended, method, path
):
    path = path.format(id=quote(local(ended), safe=""), rank=0, verb="cancel")
    query = "value=scale%3D1&file=artifacts"  # the parameters that routes need

    answer = await server.ask(method, f"nbtorchjob/api/{path}?{query}&created={ended.info.created - 60}")
    assert error(answer) == (404, f"{ended.name} was deleted; another job has its name")
    record = json.loads((await server.get(f"{jobs(local(ended))}?created={ended.info.created}")).body)
    assert record["created"] == ended.info.created


@pytest.mark.parametrize("created", ["now", "-1", "nan"])
async def test_what_is_no_time_of_a_job_is_refused(server, ended, created):
    code, message = error(await server.get(f"{jobs(local(ended))}?created={created}"))

    assert code == 400
    assert message.startswith(f"created: got {created!r}")


async def test_nothing_is_unpickled(server, ended, monkeypatch):
    def unpickle(*_, **__):
        raise AssertionError("somebody's code would run here")

    for module in (pickle, cloudpickle):
        for name in ("load", "loads", "Unpickler"):
            monkeypatch.setattr(module, name, unpickle, raising=False)  # whichever of them would be called
    for about in ((), ("describe",), ("page",), ("logs", "0")):
        assert (await server.get(jobs(local(ended), *about))).code == 200


async def test_all_ranks_have_a_log(server):
    job = api.submit(talk, spec=JobSpec(Elastic(nproc_per_node=2)))
    await waited(job)

    logs = [(await server.get(jobs(local(job), "logs", str(rank)))).body for rank in range(2)]
    assert [log.decode().count("line") for log in logs] == [LINES, LINES]
    job.delete()


@given(
    pieces=st.lists(st.binary(max_size=5), max_size=6),
    limit=st.none() | st.integers(0, 40),
)
def test_a_window_is_a_slice_however_the_log_comes(pieces, limit):
    parts = list(window(iter(pieces), limit))

    assert b"".join(parts) == b"".join(pieces)[:limit]
    assert all(parts)


def test_no_more_is_read_than_is_wanted():
    read = []

    def log():
        for piece in (b"abc", b"def", b"ghi"):
            read.append(piece)
            yield piece

    assert b"".join(window(log(), 4)) == b"abcd"
    assert read == [b"abc", b"def"]
