"""A container's log comes whole and once, wherever it is cut."""

import asyncio
import base64
import gzip
import json
import random
from contextlib import aclosing

import pytest

from nbtorchjob.backends.kubernetes.podlog import Life, follow, read_all
from nbtorchjob.errors import ClusterError
from tests.backends.kubernetes.scripted import CLEAN, CUT, HANG, SHARED, Reply, Stream, scripted, status

PATH = "/api/v1/namespaces/ns/pods/p/log"
WAITING = status(400, 'container "main" in pod "p" is waiting to start: ContainerCreating', "BadRequest")
UNKNOWN = status(400, 'container "main" in pod "p" is not available', "BadRequest")
TERMINATED = status(400, 'container "main" in pod "p" is terminated', "BadRequest")
NO_KUBELET = status(500, "dial tcp 10.0.0.1:10250: connect: connection refused")
LOST = b"unable to retrieve container logs for containerd://2f49fbc1"
recordings = pytest.mark.skipif(not SHARED.is_dir(), reason="no recordings beside the checkout")


def stamp(seconds):
    """Return a timestamp that many seconds after the full minute."""
    return f"2026-11-21T11:15:{seconds:012.9f}Z".encode()


def lines(*seconds):
    """Return a line for each time, in that order."""
    return [(stamp(at), b"line %d" % index) for index, at in enumerate(seconds)]


def raw(entries):
    """Return lines as the API server sends them."""
    return b"".join(stamp + b" " + data + b"\n" for stamp, data in entries)


def since(entries, asked):
    """Return the lines from a request's sinceTime on."""
    start = asked.query.get("sinceTime", "")[:19].encode()
    return [line for line in entries if line[0][:19] >= start]


def told(*lives):
    """Return an ``ended`` that returns one life after the other; the last one stays."""
    left = list(lives)

    async def ended():
        return left.pop(0) if len(left) > 1 else left[0]

    return ended


RUNS, OVER, GONE = Life(), Life(ended=True), Life(missing=True)


async def collect(stream):
    return [line for batch in [batch async for batch in stream] for line in batch]


async def followed(client, *lives, **patience):
    return await collect(follow(client, "ns", "p", "main", ended=told(*lives), **patience))


@scripted
async def test_the_log_of_a_container_that_has_ended_takes_one_request(server, client):
    entries = lines(1.5, 1.6, 2)
    server.on(PATH, Stream([raw(entries)[:-1]]))

    assert await collect(read_all(client, "ns", "p", "main")) == entries
    assert server.asked[0].query == {"container": "main", "timestamps": "true"}
    assert client.requests == 1


@scripted
async def test_a_pod_that_has_not_started_is_waited_for(server, client):
    entries = lines(1)
    server.on(PATH, Reply(204), UNKNOWN, WAITING, Reply(429), Stream([raw(entries)]))

    assert await followed(client, RUNS, RUNS, RUNS, RUNS, OVER) == entries
    assert {request.query["follow"] for request in server.asked[:4]} == {"true"}


@scripted
async def test_a_pod_that_never_started_has_no_log(server, client):
    server.on(PATH, WAITING)

    assert await followed(client, RUNS, OVER) == []


@scripted
async def test_of_a_container_that_its_host_lost_there_is_no_more(server, client):
    entries = lines(1)
    server.on(PATH, Stream([raw(entries)], CUT), TERMINATED)

    assert await followed(client, RUNS, RUNS, OVER) == entries
    assert await collect(read_all(client, "ns", "p", "main")) == []


@scripted
async def test_a_pod_that_is_gone_is_not_asked(server, client):
    server.on(PATH, status(404, 'pods "p" not found', "NotFound"))

    assert await followed(client, GONE) == []
    assert server.asked == []
    assert await followed(client, RUNS) == []
    assert len(server.asked) == 1


@scripted
async def test_a_gateways_own_404_ends_no_log(server, client):
    first, second = lines(1), lines(5)
    page = Reply(404, b"<html>default backend - 404</html>")
    server.on(PATH, Stream([raw(first)], CUT), page, Stream([raw(second)]))

    assert await followed(client, RUNS, RUNS, RUNS, OVER) == first + second

    server.on(PATH, page)
    with pytest.raises(ClusterError, match="doesn't serve pods"):
        await followed(client, RUNS, tries=3)


@scripted
async def test_a_log_that_may_not_be_read_is_an_error(server, client):
    server.on(PATH, status(403, 'User "u" cannot get resource "pods/log" in API group ""', "Forbidden"))

    with pytest.raises(ClusterError, match="pods/log"):
        await followed(client, RUNS)


@scripted
async def test_a_clean_end_proves_nothing(server, client):
    """A kubelet that restarts ends the stream cleanly, and refuses for a while."""
    entries = lines(1, 2, 3, 4)
    server.on(
        PATH, Stream([raw(entries[:2])]), NO_KUBELET, lambda request: Stream([raw(since(entries, request))])
    )

    assert await followed(client, RUNS, RUNS, RUNS, OVER) == entries
    assert [request.query.get("sinceTime") for request in server.asked[1:]] == [
        "2026-11-21T11:15:01Z"
    ] * 2 + ["2026-11-21T11:15:03Z"]


@scripted
async def test_half_a_line_at_the_end_of_a_stream_is_asked_for_again(server, client):
    entries = lines(1, 2)
    whole = raw(entries)
    server.on(PATH, Stream([whole[:-4]]), Stream([whole]))

    assert await followed(client, RUNS, OVER) == entries


@pytest.mark.parametrize("seed", range(12))
@scripted
async def test_nothing_is_lost_or_doubled_wherever_it_is_cut(server, client, seed):
    chance = random.Random(seed)
    # Timestamps close together, some swapped, as two streams of one container come.
    times = sorted(chance.uniform(1, 4) for _ in range(300))
    for index in range(0, 298, 7):
        times[index], times[index + 1] = times[index + 1], times[index]
    entries = lines(*times)
    visible = iter(sorted(chance.randrange(300) for _ in range(15)))

    def some(request):
        if "follow" not in request.query:
            return Stream([raw(since(entries, request))])
        text = raw(since(entries[: next(visible)], request))
        text = text[: chance.randint(0, len(text))]
        pieces = [text[at : at + 700] for at in range(0, len(text), 700)]
        return Stream(pieces, chance.choice([CUT, CLEAN]))

    server.on(PATH, some)

    assert await followed(client, *[RUNS] * 15, OVER) == entries


@scripted
async def test_lines_of_one_stamp_are_told_apart_by_their_number(server, client):
    same = [(stamp(1), b"one"), (stamp(1), b"two")]
    server.on(PATH, Stream([raw(same[:1])], CUT), Stream([raw(same)]))

    assert await followed(client, RUNS, RUNS, OVER) == same


@scripted
async def test_the_torn_end_of_a_long_line_is_no_line(server, client):
    """With sinceTime the log lacks those pieces of a line that were stored before."""
    entries = [(stamp(1), b"x" * 40_000), *lines(3.9, 4)]
    torn = (stamp(2.5), b"x" * 7_232)
    server.on(PATH, Stream([raw(entries[:2])]), Stream([raw([torn, *entries[1:]])]))

    assert await followed(client, RUNS, OVER) == entries


@scripted
async def test_after_a_restart_the_rest_of_the_first_container_comes_first(server, client):
    first, second = lines(1, 2), [(stamp(5), b"again"), (stamp(6), b"end")]

    def answer(request):
        if "previous" in request.query:
            return Stream([raw(since(first, request))])
        return Stream([raw(since(second, request))])

    server.on(PATH, Stream([raw(first[:1])]), answer)

    assert await followed(client, RUNS, Life(restarts=1), Life(restarts=1, ended=True)) == [*first, *second]


@pytest.mark.parametrize(
    "lost", [Stream([LOST]), status(400, 'previous terminated container "main" in pod "p" not found')]
)
@scripted
async def test_a_log_that_is_lost_is_not_taken_for_text(server, client, lost):
    second = lines(5)
    server.on(PATH, lambda request: lost if "previous" in request.query else Stream([raw(second)]))

    assert await followed(client, Life(restarts=2, ended=True)) == second


@scripted
async def test_silence_is_normal_and_asked_about(server, client):
    entries = lines(1, 2)
    server.on(PATH, Stream([raw(entries[:1])], HANG), Stream([raw(entries)]))

    assert await followed(client, RUNS, RUNS, OVER, silence=0.05) == entries


@scripted
async def test_a_host_that_is_gone_for_good_ends_it(server, client):
    server.on(PATH, NO_KUBELET)

    with pytest.raises(ClusterError, match="connection refused"):
        await followed(client, RUNS, RUNS, OVER, tries=3)


@scripted
async def test_a_line_that_rotation_emptied_is_asked_for_again(server, client):
    entries = lines(1, 2, 3)
    damaged = [entries[0], (entries[1][0], b""), entries[2]]
    server.on(
        PATH,
        lambda request: Stream([raw(damaged if "follow" in request.query else since(entries, request))]),
    )

    assert await followed(client, RUNS, OVER) == entries
    assert "follow" not in server.asked[1].query


@scripted
async def test_really_empty_lines_are_asked_for_ever_less(server, client):
    empties = [(stamp(at / 100), b"") for at in range(100, 164)]
    gaps = [asyncio.Event() for _ in empties]
    pieces = [piece for line, gap in zip(empties, gaps, strict=True) for piece in (raw([line]), gap)]
    server.on(
        PATH,
        lambda request: Stream(pieces) if "follow" in request.query else Stream([raw(empties)]),
    )

    entries: list[tuple[bytes, bytes]] = []
    async with aclosing(follow(client, "ns", "p", "main", ended=told(RUNS, OVER))) as log:
        async for batch in log:
            entries += batch
            for gap in gaps[: len(entries)]:
                gap.set()

    assert entries == empties
    assert len(server.asked) < 12


@scripted
async def test_who_reads_slowly_is_not_overrun(server, client):
    sent = 0

    def flood():
        nonlocal sent
        piece = raw([(stamp(1), b"x" * 1000)] * 60)
        for _ in range(1000):
            sent += 1
            yield piece

    server.on(PATH, Stream(flood()))

    async with aclosing(follow(client, "ns", "p", "main", ended=told(RUNS))) as log:
        await anext(log)
        before = -1
        while sent != before:
            before = sent
            for _ in range(200):
                await asyncio.sleep(0)
        assert sent < 500
    assert client.requests == 1


def body(name):
    """Return the bytes of a recorded log."""
    folder = SHARED / "recordings" / "logs-api"
    record = json.loads((folder / f"{name}.json").read_text())["response"]
    if "body_file" in record:
        return gzip.decompress((folder / record["body_file"]).read_bytes())
    return b"".join(
        base64.b64decode(chunk["base64"]) if "base64" in chunk else chunk["text"].encode()
        for chunk in record["chunks"]
    )


@recordings
@scripted
async def test_a_recorded_rotation_loses_one_line_and_we_mend_it(server, client):
    recorded = body("follow-rotation")
    lost = b"2026-11-21T11:17:53.008503953Z "
    whole = recorded.replace(lost, lost + b"011304 found")
    server.on(PATH, lambda request: Stream([recorded if "follow" in request.query else whole]))

    entries = await followed(client, RUNS, OVER)

    numbers = [int(line[1][:6]) for line in entries]
    assert numbers == list(range(24_000)) or numbers == list(range(1, 24_001))


@recordings
@pytest.mark.parametrize("name", ["odd-bytes", "long-lines", "since-all", "ended-follow"])
@scripted
async def test_recorded_logs_keep_every_byte(server, client, name):
    recorded = body(name)
    server.on(PATH, Stream([recorded]))

    entries = await collect(read_all(client, "ns", "p", "main"))

    again = raw(entries)
    assert again == (recorded if recorded.endswith(b"\n") else recorded + b"\n")


@recordings
@pytest.mark.parametrize("name", ["previous", "previous-current-ended"])
@scripted
async def test_a_recorded_loss_is_no_text(server, client, name):
    server.on(PATH, Stream([body(name)]))

    assert await collect(read_all(client, "ns", "p", "main")) == []
