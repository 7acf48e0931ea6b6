"""How nodes learn about each other, over a store of their own."""

import json
import math
import threading
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from nbtorchjob.runtime import facts
from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.rendezvous.alone import PeersEnded
from nbtorchjob.runtime.rendezvous.peers import END, LINGER_S, PREFIX, Peers
from nbtorchjob.runtime.rendezvous.signed import SignedStore
from tests.patience import LIMIT
from tests.runtime.rendezvous import gang

pytestmark = pytest.mark.torch


@pytest.fixture
def gangs(store):
    """Yield a function that makes nodes 0 and 1 in round 7; ``asking`` and ``watching`` are for node 1."""
    members = []

    def two(*, hosted=False, asking=None, watching=None, **configs):
        nodes = [
            gang.join(store, 0, hosted=hosted, **configs),
            gang.join(store, 1, asking=kept(asking), watching=kept(watching), **configs),
        ]
        members.extend(nodes)
        for node, peers in enumerate(nodes):
            peers.enter(7, (0, 1), node)
        return nodes

    yield two
    for peers in members:
        peers.close()


def eventually(condition):
    give_up = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def ended(peers):
    try:
        peers.check()
    except PeersEnded as exc:
        return exc.code
    return None


@pytest.mark.parametrize(
    ("word", "others"), [(1, 1), (2, 1), (200, 200), (201, 201), (202, 201)], ids=lambda code: str(code)
)
def test_a_node_of_a_fixed_size_job_takes_the_others_along(word, others, gangs):
    first, second = gangs()
    assert first.tell(word) == word
    eventually(lambda: ended(second))
    assert ended(second) == others
    assert ended(first) is None


@pytest.mark.parametrize("word", [201, 202])
def test_the_others_of_an_elastic_job_meet_again(word, gangs):
    first, second = gangs(elastic=True)
    first.tell(word)
    eventually(lambda: second.peer_lost)
    second.enter(8, (1,), 1)
    assert not second.peer_lost
    assert ended(second) is None


def test_a_node_that_the_others_went_on_without_meets_them_again(gangs):
    first, second = gangs(elastic=True)
    second.enter(7, (1,), 1)
    eventually(lambda: first.peer_lost)
    assert not second.peer_lost
    assert ended(first) is None


def test_a_node_that_the_others_went_on_without_ends_once_they_have_succeeded(gangs):
    first, second = gangs(elastic=True)
    second.enter(8, (1,), 1)
    second.finish(LIMIT)
    eventually(lambda: ended(first) is not None)
    assert ended(first) == exits.OK
    assert ended(second) is None


def test_a_failure_is_not_taken_back_by_who_has_returned(gangs):
    first, second = gangs()
    first.tell(exits.USER_ERROR)
    with pytest.raises(PeersEnded) as caught:
        second.finish(LIMIT)
    assert caught.value.code == exits.USER_ERROR


def test_the_first_word_stands(gangs):
    first, second = gangs()
    assert first.tell(exits.RECOVERABLE_ERROR) == exits.RECOVERABLE_ERROR
    assert second.tell(exits.USER_ERROR) == exits.RECOVERABLE_ERROR


def test_a_loss_isnt_told_where_another_word_stands(gangs):
    first, second = gangs()
    first.tell(exits.USER_ERROR)
    assert second.tell(exits.INFRASTRUCTURE_ERROR) == exits.USER_ERROR


class Kept:
    """A node's connection to the store, with some methods replaced by the test."""

    def __init__(self, store, **otherwise):
        self._store, self._otherwise = store, otherwise

    def below(self, prefix):
        return Kept(self._store.below(prefix), **self._otherwise)

    def __getattr__(self, name):
        own, method = self._otherwise.get(name), getattr(self._store, name)
        return partial(own, method) if own else method


def kept(otherwise):
    return partial(Kept, **(otherwise or {}))


def leaving_on_bye():
    """Return an event, and the methods of a store that is gone once the node has read the last word."""
    store_end = threading.Event()

    def say(method, key, value):
        method(key, value)
        if "bye" in key:
            store_end.set()

    def ask(method, *keys):
        if store_end.is_set():
            raise RuntimeError("Broken pipe")
        return method(*keys)

    return store_end, {"set": say, "get": ask, "check": ask}


def test_the_last_word_is_read_before_the_store_may_go(gangs):
    _, otherwise = leaving_on_bye()
    first, second = gangs(watching=otherwise)
    first.tell(exits.USER_ERROR)
    eventually(lambda: ended(second))
    assert ended(second) == exits.USER_ERROR


def test_who_looks_late_whether_all_have_returned_ends_well_without_the_store(gangs):
    store_end, otherwise = leaving_on_bye()

    def late(method, keys):
        if "done" in keys[0]:
            store_end.wait(LIMIT)
        return otherwise["check"](method, keys)

    first, second = gangs(watching=otherwise, asking={"check": late})
    with ThreadPoolExecutor() as pool:
        finishing = pool.submit(second.finish, LIMIT)
        first.finish(LIMIT)
        finishing.result()
    assert ended(second) is None


def test_a_node_that_is_silent_as_it_has_failed_isnt_lost(gangs):
    def unheard(method, keys):
        return keys != [END] and method(keys)

    first, second = gangs(silence=2, watching={"check": unheard})
    first.tell(exits.USER_ERROR)
    first.close()
    eventually(lambda: ended(second))
    assert ended(second) == exits.USER_ERROR


def test_a_wish_for_a_sample_may_come_while_another_is_looked_for(gangs, monkeypatch):
    check, wished = SignedStore.check, threading.Event()
    looked = threading.Event()

    def checked(store, keys):
        present = check(store, keys)
        if "sample" in keys[0] and not present and not wished.is_set():
            wished.set()
            first.want_sample("now")
        return present

    first, second = gangs()
    second.on_sample_wanted = lambda why: looked.set()
    monkeypatch.setattr(SignedStore, "check", checked)
    assert looked.wait(LIMIT)
    first.check()


def test_who_hosts_the_store_waits_for_none_that_ends_by_itself(gangs):
    first, second = gangs(hosted=True)
    looked = threading.Event()
    second.on_sample_wanted = lambda why: looked.set()
    first.want_sample("now")
    assert looked.wait(LIMIT)
    second.tell(exits.CANCELLED)
    second.close()
    began = time.monotonic()
    first.close()
    assert time.monotonic() - began < LINGER_S


def test_nodes_that_have_ended_well_have_nothing_to_leave(gangs):
    first, second = gangs()
    with ThreadPoolExecutor() as pool:
        finishing = pool.submit(second.finish, LIMIT)
        eventually(lambda: first.say("bound", "12"))
        assert first.say("bound", "12") == ["12", "0"]
        eventually(lambda: first.say("left", "1"))
        first.finish(LIMIT)
        finishing.result()


def test_a_node_that_never_beats_is_lost(gangs):
    first, _ = gangs(silence=2)
    first.enter(7, (0, 5), 0)
    eventually(lambda: ended(first))
    with pytest.raises(PeersEnded, match="node 5 has been silent for 2 s"):
        first.check()


def test_an_end_that_its_agent_does_not_heed_is_noticed(gangs):
    first, second = gangs(silence=math.inf)
    first.tell(exits.USER_ERROR)
    eventually(lambda: second.pulse(0.1))
    assert second.pulse(0.1).code == exits.USER_ERROR
    assert ended(second)
    assert second.pulse(0.0) is None


def test_a_connection_that_takes_long_to_open_is_no_silence(store):
    may_open = threading.Event()

    def late(connection):
        may_open.wait(LIMIT)
        return connection

    peers = gang.join(store, watching=late, beating=gang.unchanged, silence=2)
    assert [peers.pulse(0.0) for _ in range(5)] == [None] * 5
    may_open.set()
    peers.close()
    assert ended(peers) is None


def test_a_host_that_answers_no_more_before_the_first_round_is_gone_too(store, monkeypatch):
    monkeypatch.setattr("nbtorchjob.runtime.rendezvous.peers.LOOK_S", 0.001)
    may_answer = threading.Event()

    def late(check, keys):
        may_answer.wait(LIMIT)
        return check(keys)

    peers = gang.join(store, beating=kept({"check": late}), silence=2)
    give_up = time.monotonic() + LIMIT
    while not peers.pulse(0.0):
        assert time.monotonic() < give_up
        time.sleep(0.1)
    may_answer.set()
    assert ended(peers) == exits.INFRASTRUCTURE_ERROR
    peers.close()


def test_who_is_to_end_hears_first_that_a_sample_is_wanted(gangs):
    first, second = gangs()
    events = []
    second.on_sample_wanted = lambda why: events.append(why)
    second.on_end = lambda: events.append("end")
    first.want_sample("timeout")
    first.tell(exits.USER_ERROR)
    eventually(lambda: ended(second) == exits.of_peer(exits.USER_ERROR))
    assert events[:2] == ["timeout", "end"]


def test_so_does_one_that_joined_its_round_during_its_first_look(store):
    may_look, events = threading.Event(), []

    def late(check, keys):
        may_look.wait(LIMIT)
        return check(keys)

    first, second = gang.join(store, 0), gang.join(store, 1, watching=kept({"check": late}))
    second.on_sample_wanted = lambda why: events.append(why)
    second.on_end = lambda: events.append("end")
    for node, peers in enumerate((first, second)):
        peers.enter(7, (0, 1), node)
    first.want_sample("timeout")
    first.tell(exits.USER_ERROR)
    may_look.set()
    eventually(lambda: ended(second) == exits.of_peer(exits.USER_ERROR))
    assert events[:2] == ["timeout", "end"]
    first.close()
    second.close()


def test_a_node_knows_once_the_ranks_of_all_others_have_returned(gangs):
    first, second = gangs()
    assert not first.others_done()
    second.finish(0.0)
    assert first.others_done()
    assert not second.others_done()


def test_of_many_nodes_none_asks_for_every_other_one_as_it_waits_for_the_last(store, monkeypatch):
    monkeypatch.setattr("nbtorchjob.runtime.rendezvous.peers._EVERY", 1 << 30)
    nodes = range(20)
    requests: list[list[list[str]]] = [[] for _ in nodes]

    def counted(node):
        def count(check, keys):
            requests[node].append(keys)
            return check(keys)

        return kept({"check": count})

    peers = [gang.join(store, node, asking=counted(node), watching=counted(node)) for node in nodes]
    for node in nodes:
        peers[node].enter(7, nodes, node)
    with ThreadPoolExecutor(len(peers)) as pool:
        waiting = [pool.submit(peer.finish, LIMIT) for peer in peers[1:]]
        eventually(lambda: all(any("over" in keys[-1] for keys in part if keys) for part in requests[1:]))
        assert not any(future.done() for future in waiting)
        assert max(len(keys) for part in requests for keys in part) <= 2
        peers[0].finish(LIMIT)
        for future in waiting:
            future.result(LIMIT)
    words = words_of(store)
    assert words.check([END])  # a node that gave up waiting wouldn't set it
    assert words.get(END) == b"0"
    with ThreadPoolExecutor(len(peers)) as pool:
        pool.map(Peers.close, peers)


def test_a_sample_is_told_by_other_nodes_too_once_and_by_those_that_end(gangs, store, folder, monkeypatch):
    monkeypatch.setenv(facts.EVENTS, str(folder / "events.jsonl"))
    first, second = gangs()
    record = {"event": "Sampled", "node": 1, "round": 7, "why": "timeout", "samples": [], "time": 5.0}

    def told():
        return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]

    second.show_sample(record)
    first.show_sample({**record, "node": 0})
    eventually(lambda: (folder / "events.jsonl").exists() and len(told()) == 2)
    assert sorted(told(), key=lambda word: word["node"]) == [{**record, "node": 0}, record]
    for before in (32, 48):  # behind the mark, and the nonce, nothing can be read without the key
        with pytest.raises(zlib.error):
            zlib.decompress(store.get(f"{PREFIX}/7/seen/1")[before:])
    second.show_sample({**record, "time": 6.0})
    first.tell(exits.USER_ERROR)
    first.close()
    eventually(lambda: len(told()) == 3)
    assert told()[2] == {**record, "time": 6.0}


def test_one_node_gathers_what_all_do_and_leaves_nothing_of_it_behind(gangs, store):
    first, second = gangs()
    second.on_gather = lambda give: give({"node": 1, "time": 5.0})
    for _ in range(2):
        assert [(node, json.loads(zlib.decompress(data))) for node, data in first.gather(LIMIT)] == [
            (1, {"node": 1, "time": 5.0})
        ]
    began, keys = time.monotonic(), store.num_keys()
    second.on_gather = lambda give: None
    assert list(first.gather(0.2)) == []
    assert time.monotonic() - began < LIMIT
    assert store.num_keys() <= keys + 4  # news and heartbeats


def words_of(store):
    return gang.connect(store).below(PREFIX)


def test_of_two_who_ask_at_once_what_all_do_each_is_told(gangs):
    both_ask = threading.Event()

    def late(check, keys):
        if keys == ["7/gather"]:
            both_ask.wait(LIMIT)
        return check(keys)

    first, second = gangs(watching={"check": late})
    second.on_gather = lambda give: give({"node": 1})
    with ThreadPoolExecutor() as pool:
        asking = [pool.submit(lambda: [node for node, _ in first.gather(LIMIT)]) for _ in range(2)]
        time.sleep(0.2)
        both_ask.set()
        assert [future.result() for future in asking] == [[1], [1]]


def test_nothing_stays_of_what_is_told_late_or_to_who_has_left(gangs, store):
    sealed: list[str] = []
    gives: list[Callable[[dict[str, int]], None]] = []

    def note(seal, key, value):
        sealed.append(key)
        seal(key, value)

    first, second = gangs(asking={"seal": note})
    second.on_gather = gives.append
    eventually(lambda: list(first.gather(0.3)) == [] and gives)
    gives[0]({"node": 1})
    second.on_gather = lambda give: give({"node": 1})
    asking = first.gather(LIMIT)
    assert next(asking)[0] == 1
    asking.close()
    assert len(sealed) == 2
    assert [words_of(store).check([key]) for key in sealed] == [False, False]


def test_a_node_that_has_heard_that_ranks_ask_doesnt_wake_all_again(gangs, store):
    first, second = gangs()
    first.say_asks()
    eventually(lambda: second.asks)
    newest = words_of(store).get("news")
    first.say_asks()
    second.say_asks()
    assert words_of(store).get("news") == newest


def silent(method, key, value):
    """Set every key except a node's heartbeats and its goodbye."""
    if "beat" not in key and "bye" not in key:
        method(key, value)


@pytest.mark.parametrize("elastic", [False, True])
def test_a_node_in_place_of_one_that_was_killed_tells_the_others_before_they_notice(store, elastic):
    first = gang.join(store, 0, hosted=True, elastic=elastic, silence=60)
    killed = gang.join(store, 1, watching=kept({"set": silent}), elastic=elastic)
    for node, peers in enumerate((first, killed)):
        peers.enter(7, (0, 1), node)
    began = time.monotonic()
    anew = gang.join(store, 1, elastic=elastic, silence=2)

    eventually(lambda: first.peer_lost if elastic else ended(first) == exits.INFRASTRUCTURE_ERROR)
    for peers in (first, anew, killed):
        peers.close()
    assert time.monotonic() - began < LINGER_S


def test_a_node_in_place_of_one_that_still_beats_waits_for_its_end(gangs, store):
    looks = threading.Semaphore(0)

    def look(method, key):
        if "7/beat/1" in key:
            looks.release()
        return method(key)

    first, _ = gangs(silence=2)
    anew = gang.join(store, 1, beating=kept({"check": look, "get": look}), silence=2)
    for _ in range(5):
        assert looks.acquire(timeout=LIMIT)
    assert ended(first) is None
    anew.close()
