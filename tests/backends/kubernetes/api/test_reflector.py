"""One list and watch for all subscribers: the changes that each receives, however the watch ends."""

import asyncio
import json
from contextlib import aclosing
from itertools import chain

import pytest

from nbtorchjob.backends.kubernetes.api.reflector import Pace, Reflector
from nbtorchjob.backends.kubernetes.objects.reading import EVENTS, PODS
from nbtorchjob.errors import ClusterError, UnreachableError
from tests.backends.kubernetes.scripted import CUT, HANG, SHARED, Reply, Stream, event, scripted, status

PATH = "/api/v1/namespaces/ns/pods"
FORBIDDEN = status(403, 'pods is forbidden: User "u" cannot watch resource "pods"', "Forbidden")
EXPIRED = status(410, "too old resource version: 1 (14648)", "Expired")


def pod(name, version="1", **more):
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": version, **more}, "spec": {}}


def listing(*items, version="10"):
    return Reply(body={"metadata": {"resourceVersion": version}, "items": list(items)})


def bookmark(version):
    return event("BOOKMARK", {"metadata": {"resourceVersion": version}, "spec": None})


def watching(*events):
    return Stream(events, HANG)


def everything(_):
    return True


async def take(changes, count):
    """Return the next changes: type, name and version."""
    triples = []
    async for change in changes:
        meta = change.object.get("metadata", {})
        triples.append((change.type, meta.get("name"), meta.get("resourceVersion")))
        if len(triples) == count:
            break
    return triples


async def hear(reflector, count, api=PODS, wants=everything, fields=""):
    """Subscribe, return the first changes, and unsubscribe."""
    async with aclosing(reflector.subscribe(api, wants, fields=fields)) as changes:
        return await take(changes, count)


def versions(server):
    """Return the resourceVersion from which each watch started; "list" for a list."""
    return [request.query.get("resourceVersion", "list") for request in server.asked]


@scripted
async def test_first_comes_all_there_is_then_each_change(server, client):
    gate = asyncio.Event()
    server.on(
        PATH,
        listing(pod("a")),
        watching(gate, event("ADDED", pod("b", "12")) + event("DELETED", pod("a", "13"))),
    )

    async with aclosing(Reflector(client, "ns").subscribe(PODS, everything)) as changes:
        assert await take(changes, 2) == [("ADDED", "a", "1"), ("SYNCED", None, None)]
        gate.set()
        assert await take(changes, 2) == [("ADDED", "b", "12"), ("DELETED", "a", "13")]


@scripted
async def test_only_our_own_objects_are_requested_and_the_selected_events(server, client):
    server.on(PATH, listing(), watching(bookmark("11")))
    server.on("/api/v1/namespaces/ns/events", listing(), watching(bookmark("11")))
    reflector = Reflector(client, "ns", Pace(watch=60))

    await hear(reflector, 1)
    await hear(reflector, 1, EVENTS, fields="type=Warning")

    pods, events = server.asked[0].query, server.asked[-1].query
    assert pods["labelSelector"] == "app.kubernetes.io/managed-by=nbtorchjob"
    assert events["fieldSelector"] == "type=Warning"


@scripted
async def test_a_watch_asks_for_bookmarks_and_an_end(server, client):
    server.on(PATH, listing(), watching(event("ADDED", pod("a", "11"))))

    await hear(Reflector(client, "ns", Pace(watch=60)), 2)

    query = server.asked[1].query
    assert (query["watch"], query["allowWatchBookmarks"], query["timeoutSeconds"]) == ("1", "true", "60")
    assert query["resourceVersion"] == "10"


@scripted
async def test_a_hundred_jobs_share_one_watch(server, client):
    server.on(PATH, listing(*(pod(f"job-{i}") for i in range(100))), watching(bookmark("11")))
    reflector = Reflector(client, "ns")

    def only(name):
        return lambda obj: obj["metadata"]["name"] == name

    streams = [reflector.subscribe(PODS, only(f"job-{i}")) for i in range(100)]
    histories = await asyncio.gather(*(take(stream, 2) for stream in streams))
    assert reflector.watches == 1
    for stream in streams:
        await stream.aclose()

    assert histories == [[("ADDED", f"job-{i}", "1"), ("SYNCED", None, None)] for i in range(100)]
    assert reflector.watches == 0
    assert len(server.asked) <= 2


@scripted
async def test_who_comes_later_hears_what_is_known(server, client):
    server.on(PATH, listing(pod("a")), watching(event("ADDED", pod("b", "11"))))
    reflector = Reflector(client, "ns")

    async with aclosing(reflector.subscribe(PODS, everything)) as first:
        await take(first, 3)
        replay = [("ADDED", "a", "1"), ("ADDED", "b", "11"), ("SYNCED", None, None)]
        assert await hear(reflector, 3) == replay
        assert reflector.watches == 1


@scripted
async def test_a_slow_subscriber_gets_the_newest_of_each_object(server, client):
    gate, last = asyncio.Event(), asyncio.Event()
    burst = b"".join(event("MODIFIED", pod("a", str(n))) for n in range(11, 1000))
    server.on(PATH, listing(pod("a")), watching(gate, burst, last, event("ADDED", pod("z", "1000"))))
    reflector = Reflector(client, "ns")

    async with (
        aclosing(reflector.subscribe(PODS, everything)) as slow,
        aclosing(
            reflector.subscribe(PODS, lambda obj: obj["metadata"]["resourceVersion"] == "999")
        ) as watcher,
    ):
        await take(slow, 2)
        await take(watcher, 1)
        gate.set()
        await take(watcher, 1)
        last.set()
        assert await take(slow, 2) == [("MODIFIED", "a", "999"), ("ADDED", "z", "1000")]


@scripted
async def test_an_object_that_nobody_heard_of_stays_added(server, client):
    gate = asyncio.Event()
    server.on(
        PATH, listing(), watching(gate, event("ADDED", pod("a", "11")) + event("MODIFIED", pod("a", "12")))
    )

    async with aclosing(Reflector(client, "ns").subscribe(PODS, everything)) as changes:
        await take(changes, 1)
        gate.set()
        assert await take(changes, 1) == [("ADDED", "a", "12")]


@scripted
async def test_a_watch_that_ends_goes_on_from_its_bookmark(server, client):
    server.on(PATH, listing(), Stream([bookmark("15")]), watching(event("ADDED", pod("a", "16"))))

    await hear(Reflector(client, "ns"), 2)

    assert versions(server) == ["list", "10", "15"]


@scripted
async def test_a_watch_that_is_cut_goes_on_from_its_last_event(server, client):
    gap = asyncio.Event()
    cut = Stream([event("ADDED", pod("a", "12")), gap], CUT)
    server.on(PATH, listing(), cut, watching(event("MODIFIED", pod("a", "13"))))

    async with aclosing(Reflector(client, "ns").subscribe(PODS, everything)) as changes:
        await take(changes, 2)
        gap.set()
        assert await take(changes, 1) == [("MODIFIED", "a", "13")]

    assert versions(server) == ["list", "10", "12"]


@pytest.mark.parametrize("expired", [EXPIRED, Stream([event("ERROR", EXPIRED.body)])], ids=["http", "stream"])
@scripted
async def test_after_an_expired_version_what_vanished_is_told(server, client, expired):
    first = listing(pod("stays"), pod("changes"), pod("goes", "2"))
    again = listing(pod("stays"), pod("changes", "18"), pod("new", "19"), version="20")
    server.on(PATH, first, expired, again, watching(bookmark("21")))

    async with aclosing(Reflector(client, "ns").subscribe(PODS, everything)) as changes:
        await take(changes, 4)
        triples = await take(changes, 3)

    assert triples == [("DELETED", "goes", "2"), ("MODIFIED", "changes", "18"), ("ADDED", "new", "19")]


@scripted
async def test_a_server_that_restarts_is_waited_for(server, client):
    away = [Reply(end=CUT), status(503, "starting"), status(500, "etcd"), FORBIDDEN]
    server.on(PATH, listing(pod("a")), Stream([], CUT), *away, EXPIRED, listing(version="30"), watching())

    assert (await hear(Reflector(client, "ns", Pace(poll=0)), 3))[-1] == ("DELETED", "a", "1")


@scripted
async def test_a_silent_connection_is_cut(server, client):
    server.on(PATH, listing(), Stream([], HANG), watching(event("ADDED", pod("a", "11"))))

    assert (await hear(Reflector(client, "ns", Pace(watch=0, late=0.05)), 2))[-1] == ("ADDED", "a", "11")


@scripted
async def test_a_watch_without_any_word_is_not_trusted(server, client):
    """A server that was reset to an earlier state waits silently for a resourceVersion from the future."""
    server.on(PATH, listing(version="99"), Stream([]), listing(pod("a"), version="5"), watching())

    assert (await hear(Reflector(client, "ns"), 2))[-1] == ("ADDED", "a", "1")
    assert versions(server)[:3] == ["list", "99", "list"]


@scripted
async def test_garbage_is_as_good_as_a_cut(server, client):
    server.on(PATH, listing(), Stream([b"<html>\n"]), watching(event("ADDED", pod("a", "11"))))

    assert (await hear(Reflector(client, "ns"), 2))[-1] == ("ADDED", "a", "11")


@scripted
async def test_pages_between_good_watches_are_forgotten(server, client):
    page = Reply(400, b"<html>\n")
    watches = [Stream([event("ADDED", pod(f"p{number}", str(number)))]) for number in range(2, 10)]
    server.on(PATH, listing(pod("a")), *chain.from_iterable((watch, page) for watch in watches), watching())

    assert (await hear(Reflector(client, "ns"), 10))[-1] == ("ADDED", "p9", "9")


@scripted
async def test_who_may_only_list_is_served_by_lists(server, client):
    lists = [listing(pod("a")), FORBIDDEN, listing(pod("a", "2")), FORBIDDEN, listing(), FORBIDDEN]
    server.on(PATH, *lists)
    reflector = Reflector(client, "ns", Pace(poll=0))

    async with aclosing(reflector.subscribe(PODS, everything)) as changes:
        assert await take(changes, 4) == [
            ("ADDED", "a", "1"),
            ("SYNCED", None, None),
            ("MODIFIED", "a", "2"),
            ("DELETED", "a", "2"),
        ]


@scripted
async def test_who_may_not_even_list_is_told_so(server, client):
    server.on(PATH, FORBIDDEN)
    reflector = Reflector(client, "ns")

    with pytest.raises(ClusterError, match="pods"):
        await hear(reflector, 1)
    assert reflector.watches == 0
    assert len(server.asked) == 1


@scripted
async def test_a_permission_that_is_taken_away_is_told_in_the_end(server, client):
    server.on(PATH, listing(pod("a")), FORBIDDEN)

    with pytest.raises(ClusterError):
        await hear(Reflector(client, "ns", Pace(poll=0)), 3)


@scripted
async def test_a_server_that_never_answered_is_told(server, client):
    server.on(PATH, Reply(end=CUT))

    with pytest.raises(UnreachableError):
        await hear(Reflector(client, "ns"), 1)


@pytest.mark.skipif(not SHARED.is_dir(), reason="no recordings beside the checkout")
@pytest.mark.parametrize("name", ["watch-selector-leave", "watch-bookmark-before-timeout"])
@scripted
async def test_recorded_watches_are_understood(server, client, name):
    recorded = json.loads((SHARED / f"recordings/api/{name}.json").read_text())["response"]["lines"]
    events = [event(line["type"], line["object"]) for line in recorded]
    after = event("ADDED", pod("after", "99999"))
    server.on(PATH, listing(), Stream(events), watching(after))

    async with aclosing(Reflector(client, "ns").subscribe(PODS, everything)) as changes:
        triples = []
        while ("ADDED", "after", "99999") not in triples:
            triples += await take(changes, 1)

    assert versions(server)[-1] == recorded[-1]["object"]["metadata"]["resourceVersion"]
