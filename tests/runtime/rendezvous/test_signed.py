"""A store that anybody can write: a value that isn't the job's own is an error before it is used."""

import base64
import os
import pickle
import random
from contextlib import ExitStack
from datetime import datetime, timezone

import pytest
from torch.distributed import HashStore, PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous.api import RendezvousStateError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState

from nbtorchjob.runtime.facts import exits, injected
from nbtorchjob.runtime.rendezvous import rendezvous
from nbtorchjob.runtime.rendezvous.alone import PeersEnded
from nbtorchjob.runtime.rendezvous.peers import END, PREFIX
from nbtorchjob.runtime.rendezvous.rendezvous import dynamic
from nbtorchjob.runtime.rendezvous.signed import SignedStore
from nbtorchjob.runtime.start import node as start

KEY, OTHER = b"k" * 32, b"o" * 32
STATE = "torch.rendezvous.job"  # torch's own key for its state


@pytest.fixture
def shared():
    return HashStore()


def test_what_one_agent_writes_another_reads(shared):
    store, other_store = SignedStore(shared, KEY), SignedStore(shared, KEY)
    first, second = PrefixStore("round-1", store), PrefixStore("round-1", other_store)
    first.set("a", "1")
    first.multi_set(["b", "c"], ["2", "3"])
    assert first.compare_set("d", "", "4") == b"4"
    assert first.compare_set("d", "4", "5") == b"5"
    assert first.compare_set("d", "4", "6") == b"5"
    second.wait(["a"])
    assert second.multi_get(["a", "b", "c", "d"]) == [b"1", b"2", b"3", b"5"]
    assert second.check(["a", "d"])
    assert not second.check(["a", "e"])
    assert second.check([]) == shared.check([])


FORGED = {
    "nobody's": lambda store: store.set("word", "1"),
    "too short": lambda store: store.set("word", "x"),
    "another job's": lambda store: SignedStore(store, OTHER).set("word", "1"),
    "replayed from another part": lambda store: store.set("word", of_part(store, "word")),
    "of another name": lambda store: store.set("word", moved(store, "other", "word")),
}
READERS = {
    "get": lambda store: store.get("word"),
    "multi_get": lambda store: store.multi_get(["word"]),
    "check": lambda store: store.check(["word"]),
    "compare_set": lambda store: store.compare_set("word", "", "mine"),
}


def of_part(store, name):
    """Return the value that the job wrote by that name in another part of its store."""
    SignedStore(store, KEY).below("nbtorchjob/lab/1").set(name, "1")
    return store.get(f"nbtorchjob/lab/1/{name}")


def moved(store, name, _):
    SignedStore(store, KEY).set(name, "1")
    return store.get(name)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_what_no_agent_of_the_job_wrote_is_an_error(forge, read, shared):
    forge(shared)
    with pytest.raises(PeersEnded, match="word isn't signed") as caught:
        read(SignedStore(shared, KEY))
    assert caught.value.code == exits.INFRASTRUCTURE_ERROR


HERE = {injected.RUN: "run", injected.ATTEMPT: "1"}
ELSEWHERE = {
    "another job of the payload": ({**HERE, injected.RUN: "retry"}, "id", KEY),
    "another attempt": ({**HERE, injected.ATTEMPT: "2"}, "id", KEY),
    "another rendezvous": (HERE, "other", KEY),
    "another payload": (HERE, "id", OTHER),
}


@pytest.mark.parametrize(("env", "run_id", "key"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_what_nodes_wrote_elsewhere_passes_for_nothing_here(env, run_id, key, shared, monkeypatch):
    keys: list[bytes] = []
    monkeypatch.setattr(rendezvous, "dynamic", lambda *arguments: keys.append(arguments[-1]))
    launch = {"nodes": (2, 2), "endpoint": "127.0.0.1:1", "conf": {}}
    for where, id_, own in ((HERE, "id", KEY), (env, run_id, key)):
        for name, value in where.items():
            monkeypatch.setenv(name, value)
        start._rendezvous({**launch, "run_id": id_}, 0, own)
    store, other_store = (SignedStore(shared, derived) for derived in keys)
    other_store.set("word", "1")

    with pytest.raises(PeersEnded, match="word isn't signed"):
        store.get("word")


@pytest.mark.parametrize("data", [b"", b"train.py: step() ", b"train.py: step()" * 5000])
def test_what_is_sealed_is_read_by_agents_of_the_job_alone(data, shared):
    store = SignedStore(shared, KEY)
    store.seal("seen", data)
    first = shared.get("seen")
    assert SignedStore(shared, KEY).unseal("seen") == data
    store.seal("seen", data)

    assert data == b"" or shared.get("seen")[-len(data) :] not in (first[-len(data) :], data)
    assert b"train.py" not in first
    with pytest.raises(PeersEnded, match="seen isn't signed"):
        SignedStore(shared, OTHER).unseal("seen")
    shared.set("seen", first[:-1] + bytes([first[-1] ^ 1]))
    with pytest.raises(PeersEnded, match="seen isn't signed"):
        store.unseal("seen")


class Bomb:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (self.mark,)


def written_by_another_user(name):
    def write(store, mark):
        store.set(name, base64.b64encode(pickle.dumps(Bomb(mark))).decode())

    return write


@pytest.mark.torch
@pytest.mark.parametrize(
    "attack",
    [
        written_by_another_user(STATE),
        written_by_another_user(f"{PREFIX}/{END}"),
        lambda store, mark: SignedStore(store, KEY).set(STATE, base64.b64encode(pickle.dumps(Bomb(mark)))),
    ],
    ids=["state", "word", "state of who has the key"],
)
def test_nothing_in_the_store_of_a_rendezvous_is_unpickled(attack, folder, monkeypatch):
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # restored, as ``dynamic`` sets it
    monkeypatch.setattr(rendezvous, "_FORMER_S", 0.0)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    attack(store, str(folder / "code ran"))

    def meet(left):
        met = dynamic(f"127.0.0.1:{store.port}", "job", (2, 2), None, {"is_host": 0}, KEY)
        left.callback(met.peers.close)  # else a thread outlives the store, and its library logs that
        met.next_rendezvous()

    with ExitStack() as left, pytest.raises((PeersEnded, RendezvousStateError)) as caught:
        meet(left)
    assert "isn't signed" in str(caught.value) or "is damaged" in str(caught.value)
    assert list(folder.iterdir()) == []


# --- what nodes know of each other ------------------------------------------------------------------


def a_state(seed):
    rng = random.Random(seed)
    nodes = [_NodeDesc(f"host-{n}", rng.randrange(1 << 22), n) for n in range(rng.randrange(6))]
    state = _RendezvousState()
    state.round, state.complete, state.closed = rng.randrange(9), rng.random() < 0.5, rng.random() < 0.5
    state.deadline = rng.choice([None, datetime.now(timezone.utc)])
    state.participants = {node: rank for rank, node in enumerate(nodes) if rng.random() < 0.8}
    state.wait_list = {node for node in nodes if rng.random() < 0.3}
    state.redundancy_list = {node for node in nodes if rng.random() < 0.3}
    state.last_heartbeats = {node: datetime.now(timezone.utc) for node in nodes}
    return state


@pytest.mark.parametrize("seed", range(20))
def test_the_state_of_a_rendezvous_comes_back_as_it_was(seed):
    state = a_state(seed)
    text = rendezvous.encode(state)
    assert vars(rendezvous.decode(text)) == vars(state)
    assert (
        rendezvous.encode(rendezvous.decode(text)) == text
    )  # torch compares the text it wrote with the text it reads


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"round": 1}', pickle.dumps(_RendezvousState()), b"\xff"]
)
def test_what_is_no_state_is_refused(text):
    with pytest.raises(RendezvousStateError, match="is damaged"):
        rendezvous.decode(text)
