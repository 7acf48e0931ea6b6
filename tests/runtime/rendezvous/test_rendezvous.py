"""How a node joins its job's store: one that goes away, comes late, or belongs to a job that is over."""

import select
import socket
import socketserver
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.rendezvous import rendezvous
from nbtorchjob.runtime.rendezvous.alone import PeersEnded
from nbtorchjob.runtime.rendezvous.peers import END, PREFIX
from nbtorchjob.runtime.rendezvous.rendezvous import Endpoint, dynamic
from nbtorchjob.runtime.rendezvous.signed import SignedStore
from tests.patience import LIMIT
from tests.runtime.rendezvous import gang
from tests.runtime.rendezvous.gang import KEY

pytestmark = pytest.mark.torch


def meet(port, host="127.0.0.1", **configs):
    conf = {"is_host": 0, "join_timeout": 30, **configs}
    return dynamic(f"{host}:{port}", "job", (2, 2), None, conf, KEY)


@pytest.mark.parametrize(("word", "code"), [(exits.CONFIG_ERROR, exits.USER_ERROR), (exits.OK, exits.OK)])
def test_who_comes_to_a_job_that_is_over_ends_as_it_did(word, code, store):
    SignedStore(store, KEY).below(PREFIX).set(END, str(word))
    with pytest.raises(PeersEnded) as caught:
        meet(store.port)
    assert caught.value.code == code


@pytest.mark.parametrize("name", ["was/0", END])
def test_a_node_passes_by_a_job_that_had_its_name_before_and_still_ends(name, store, monkeypatch):
    former = gang.serve()
    SignedStore(former, b"o" * 32).below(PREFIX).set(name, "0")
    places = [former.port, former.port, store.port]  # as a name may resolve to pods of both jobs
    monkeypatch.setattr(rendezvous, "_await", lambda *_: (("127.0.0.1", places.pop(0)), "127.0.0.1"))
    monkeypatch.setattr(rendezvous, "_AGAIN_S", 0.0)

    met = Endpoint("node-0.same:29400", timedelta(seconds=LIMIT), KEY).join(LIMIT, lambda link: link)
    met.set("word", "1")
    assert (places, store.check(["word"]), former.check(["word"])) == ([], True, False)


def test_the_name_of_node_0_may_be_unknown_again_once_it_has_answered(store, monkeypatch):
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # restored, as ``dynamic`` sets it
    lookup = socket.getaddrinfo
    # torch asks the system's resolver itself, which doesn't know the name.
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda _, *more, **options: lookup("127.0.0.1", *more, **options)
    )
    peers = meet(store.port, "node-0.invalid", read_timeout=1).peers
    assert peers.tell(exits.USER_ERROR) == exits.USER_ERROR
    peers.close()


class Cut(socketserver.ThreadingTCPServer):
    """A proxy of the store at a port that cuts one connection after ``left`` bytes to the store."""

    daemon_threads = True

    def __init__(self, port, left):
        super().__init__(("127.0.0.1", 0), Passing)
        self.store, self.left = port, left


class Passing(socketserver.BaseRequestHandler):
    server: Cut

    def handle(self):
        with socket.create_connection(("127.0.0.1", self.server.store)) as store:
            while True:
                for end in select.select([self.request, store], [], [])[0]:
                    data = end.recv(4096)
                    if end is self.request and self.server.left is not None:
                        data = data[: self.server.left]
                        self.server.left -= len(data)
                    if not data:
                        return
                    (store if end is self.request else self.request).sendall(data)
                    if self.server.left == 0:
                        self.server.left = None
                        return


# torch 2.13 sends a greeting of 10 bytes, and then its requests.
@pytest.mark.parametrize("after", [10, 60, 120])
def test_a_store_that_goes_while_a_node_arrives_is_that_of_a_node_0_to_be_replaced(after, store, monkeypatch):
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # restored, as ``dynamic`` sets it
    with Cut(store.port, after) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        peers = meet(server.server_address[1]).peers
        assert peers.tell(exits.USER_ERROR) == exits.USER_ERROR
        assert server.left is None
        peers.close()
        server.shutdown()


def test_who_comes_early_waits_for_the_next_node_0(monkeypatch):
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # restored, as ``dynamic`` sets it
    old = gang.serve()
    port = old.port
    SignedStore(old, KEY).below(PREFIX).set(END, str(exits.INFRASTRUCTURE_ERROR))
    with pytest.raises(TimeoutError, match="node 0 to start anew"):
        meet(port, join_timeout=0)
    with ThreadPoolExecutor() as pool:
        met = pool.submit(meet, port)
        del old
        new = gang.serve(port)
        peers = met.result(LIMIT).peers
    assert peers.tell(exits.USER_ERROR) == exits.USER_ERROR
    peers.close()
    assert SignedStore(new, KEY).below(PREFIX).get(END) == b"1"


def test_who_takes_a_lost_nodes_place_while_its_gang_still_ends_waits_for_the_next_one(monkeypatch):
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # restored, as ``dynamic`` sets it
    old = gang.serve()
    port = old.port
    SignedStore(old, KEY).below(PREFIX).set("was/0", "7")
    late = meet(port)
    with ThreadPoolExecutor() as pool:
        future = pool.submit(late.next_rendezvous)
        SignedStore(old, KEY).below(PREFIX).set(END, str(exits.INFRASTRUCTURE_ERROR))
        del old
        new = gang.serve(port)
        other = meet(port)
        assert other.next_rendezvous().world_size == future.result(LIMIT).world_size == 2
    for member in (late, other):
        member.peers.close()
        member.shutdown()
    del new
