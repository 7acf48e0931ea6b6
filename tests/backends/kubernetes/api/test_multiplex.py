"""Most of many logs share connections if the server speaks HTTP/2."""

import asyncio
import resource
from contextlib import AsyncExitStack, suppress

import pytest
import yaml

from nbtorchjob.backends.kubernetes.api import connection, multiplex
from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.api.errors import OpenFilesError
from nbtorchjob.backends.kubernetes.objects.reading import PODS, Target
from nbtorchjob.errors import NotFoundError, UnreachableError
from nbtorchjob.machine import processes
from tests.backends.kubernetes.multiplexed import MultiplexedServer
from tests.backends.kubernetes.scripted import CLEAN, CUT, HANG, Reply, Server, Stream, kubeconfig, status

APART = connection._APART
LOG = Target(PODS, "ns", "p", "log")


@pytest.fixture
def serving(tls, tmp_path, monkeypatch):
    """Return a function that runs a coroutine function with a server and a reader of its logs."""

    def run(test, make=MultiplexedServer, base="", **options):
        async def work():
            async with make(tls, **options) as server:
                path = kubeconfig(tmp_path / "kubeconfig", server.url + base, token="first")
                content = yaml.safe_load((tmp_path / "kubeconfig").read_text())
                content["clusters"][0]["cluster"]["certificate-authority"] = str(tmp_path / "ca.crt")
                (tmp_path / "kubeconfig").write_text(yaml.safe_dump(content))
                monkeypatch.setenv("KUBECONFIG", path)
                client = Client(pause=0.001)
                try:
                    async with AsyncExitStack() as stack:
                        await asyncio.wait_for(test(server, Reader(client, stack)), 20)
                finally:
                    await client.close()

        asyncio.run(work())

    return run


class Reader:
    """A reader that keeps its logs open until the test ends."""

    def __init__(self, client, stack):
        self.client = client
        self._stack = stack

    async def open(self, target=LOG):
        log = self.client.stream("get", target, {"follow": "true"}, silence=10.0, many=True)
        return await self._stack.enter_async_context(log)

    async def shared(self):
        """Open as many logs as get connections of their own, then one more; return the last."""
        await asyncio.gather(*[self.open() for _ in range(APART)])
        return await self.open()


async def whole(answer):
    return b"".join([chunk async for chunk in answer.chunks()])


def test_many_logs_take_few_connections_and_each_gets_its_own_lines(serving):
    async def test(server, reader):
        pods = [f"p-{number}" for number in range(APART + 150)]
        goes_on = asyncio.Event()
        for pod in pods:
            server.on(f"/api/v1/namespaces/ns/pods/{pod}/log", Stream([b"begun\n", goes_on, pod.encode()]))

        answers = await asyncio.gather(*[reader.open(LOG._replace(name=pod)) for pod in pods])
        reading = [asyncio.ensure_future(whole(answer)) for answer in answers]
        await asyncio.sleep(0)
        goes_on.set()

        assert await asyncio.gather(*reading) == [b"begun\n" + pod.encode() for pod in pods]
        assert len(server.links) == 2
        assert {request.headers["authorization"] for request in server.asked} == {"Bearer first"}
        assert {request.query["follow"] for request in server.asked} == {"true"}

    serving(test)


def test_a_server_below_a_path_is_asked_there(serving):
    base = "/k8s/clusters/c-1"

    async def test(server, reader):
        server.on(base + LOG.path, *[Stream([], HANG)] * APART, Stream([b"a line"]))
        assert await whole(await reader.shared()) == b"a line"

    serving(test, base=base)


def test_no_connection_carries_more_than_the_server_lets_it(serving):
    async def test(server, reader):
        server.on(LOG.path, Stream([b"a"], HANG))
        await asyncio.gather(*[reader.open() for _ in range(APART + 10)])
        assert [len(link.answering) for link in server.links] == [4, 4, 2]

    serving(test, streams=4)


def test_a_connection_that_was_full_takes_logs_again(serving):
    async def test(server, reader):
        server.on(LOG.path, *[Stream([b"a"], HANG)] * APART, Stream([b"all"]), Stream([b"a"], HANG))
        first = await reader.shared()
        await asyncio.gather(*[reader.open() for _ in range(4)])
        await whole(first)
        await reader.open()
        assert [len(link.answering) for link in server.links] == [2, 2, 1]
        await reader.client.close()
        await asyncio.gather(*[asyncio.wait_for(link.ended.wait(), 10) for link in server.links])

    serving(test, streams=2)


def test_a_server_that_allows_no_stream_has_a_connection_for_each_log(serving):
    async def test(server, reader):
        server.on(LOG.path, Stream([b"a"]))
        assert await whole(await reader.shared()) == b"a"
        assert await whole(await reader.open()) == b"a"
        assert len(server.links) == 1

    serving(test, streams=0)


def test_a_server_that_shuts_down_as_it_is_reached_still_shares_connections_later(serving):
    async def test(server, reader):
        server.on(LOG.path, *[Stream([], HANG)] * APART, Stream([b"a"], HANG))
        with pytest.raises(UnreachableError):
            await reader.shared()
        await asyncio.gather(*[reader.open() for _ in range(4)])
        assert [len(link.answering) for link in server.links] == [0, 4]

    serving(test, leaving=1)


def test_a_header_that_isnt_text_cuts_no_log(serving):
    async def test(server, reader):
        goes_on = asyncio.Event()
        noted = Reply(200, b"noted", {"x-note": b"caf\xe9"})  # type: ignore[dict-item]
        server.on(LOG.path, *[Stream([], HANG)] * APART, Stream([goes_on, b"a line"]), noted)
        answer = await reader.shared()
        assert await whole(await reader.open()) == b"noted"
        goes_on.set()
        assert await whole(answer) == b"a line"
        assert len(server.links) == 1

    serving(test)


def test_a_log_that_nobody_reads_holds_up_no_other_and_all_of_it_comes(serving):
    async def test(server, reader):
        long = bytes(range(256)) * (8 * multiplex._ROOM // 256 // 8)
        server.on(LOG.path, *[Stream([b"a"], HANG)] * APART, Stream([long]), Stream([long]))
        unread, read = await reader.shared(), await reader.open()

        assert await whole(read) == long
        assert await whole(unread) == long
        assert len(server.links) == 1

    serving(test)


def test_a_server_that_shuts_down_lets_open_logs_end_and_takes_no_more_there(serving):
    async def test(server, reader):
        goes_on = asyncio.Event()
        server.on(LOG.path, *[Stream([], HANG)] * APART, Stream([goes_on, b"the end"]), Stream([b"new"]))
        answer = await reader.shared()
        link = server.links[0]
        link.h2.close_connection(last_stream_id=1)
        link.h2.state_machine.state = type(link.h2.state_machine.state).SERVER_OPEN
        link.flush()
        await asyncio.sleep(0.05)

        assert await whole(await reader.open()) == b"new"
        goes_on.set()
        assert await whole(answer) == b"the end"
        assert len(server.links) == 2

    serving(test)


@pytest.mark.parametrize("cut", ["link", "stream"])
def test_a_log_that_is_cut_is_told_from_one_that_has_ended(serving, cut):
    async def test(server, reader):
        goes_on = asyncio.Event()
        end = CUT if cut == "stream" else CLEAN
        server.on(LOG.path, *[Stream([], HANG)] * APART, Stream([b"half ", goes_on], end))
        answer = await reader.shared()
        chunks = answer.chunks()
        assert await anext(chunks) == b"half "
        if cut == "link":
            server.links[0].cut()
        goes_on.set()
        with pytest.raises(UnreachableError):
            await anext(chunks)

    serving(test)


def test_a_connection_that_has_died_without_a_word_is_found_out(serving, monkeypatch):
    monkeypatch.setattr(multiplex, "_SILENT_S", 0.05)
    monkeypatch.setattr(multiplex, "_PONG_S", 0.05)

    async def test(server, reader):
        server.on(LOG.path, Stream([], HANG))
        answer = await reader.shared()
        await asyncio.sleep(0.2)  # the server answers pings all the while
        server.links[0].flush = lambda: None
        with pytest.raises(UnreachableError):
            await whole(answer)

    serving(test)


def test_a_refusal_and_credentials_that_have_expired_are_what_they_are_elsewhere(serving):
    async def test(server, reader):
        unauthorized, not_found = Reply(401, b"who?"), status(404, 'pods "p" not found', "NotFound")
        server.on(LOG.path, *[Stream([], HANG)] * APART, unauthorized, Stream([b"a line"]), not_found)
        assert await whole(await reader.shared()) == b"a line"
        with pytest.raises(NotFoundError, match="pods"):
            await reader.open()

    serving(test)


def test_a_connection_without_logs_is_closed(serving):
    async def test(server, reader):
        server.on(LOG.path, *[Stream([], HANG)] * APART, Stream([b"all"]))
        await whole(await reader.shared())
        async with reader.client.stream("get", LOG, {}, silence=10.0, many=True) as answer:
            await whole(answer)
        await asyncio.wait_for(server.links[0].ended.wait(), 10)

    serving(test)


def test_where_connections_cant_be_shared_one_process_takes_half_of_its_files(serving, monkeypatch):
    monkeypatch.setattr(processes, "most_open_files", lambda: 2 * APART + 8)

    async def test(server, reader):
        server.on(LOG.path, Stream([b"a"], HANG))
        logs = await asyncio.gather(*[reader.open() for _ in range(APART + 4)])
        assert len(logs) == APART + 4
        with pytest.raises(OpenFilesError, match=f"may have only {2 * APART + 8} files open: raise that"):
            await reader.open()

    serving(test, Server)


def test_a_server_that_is_away_is_said_to_all_who_wait_at_once(serving):
    async def test(server, reader):
        server.on(LOG.path, Stream([], HANG))
        await asyncio.gather(*[reader.open() for _ in range(APART)])
        server._server.close()
        errors = await asyncio.gather(*[reader.open() for _ in range(50)], return_exceptions=True)
        assert {type(error) for error in errors} == {UnreachableError}

    serving(test)


def test_our_own_programs_raise_the_limit_of_open_files_and_jobs_keep_the_users():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, before[1]))
        processes.raise_open_files()
        assert processes.most_open_files() == before[1]
        assert processes.of_this_process()["RLIMIT_NOFILE"] == [300, before[1]]
        resource.setrlimit(resource.RLIMIT_NOFILE, (400, before[1]))
        assert processes.of_this_process()["RLIMIT_NOFILE"] == [400, before[1]]
    finally:
        processes._raised.clear()
        with suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
