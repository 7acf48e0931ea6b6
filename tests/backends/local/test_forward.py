"""A rank's port, forwarded here: many connections, half-closed ones, and what is refused."""

import contextlib
import os
import socket
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from nbtorchjob import AskError, JobEndedError, SpecError
from nbtorchjob.backends.links import Forward
from nbtorchjob.runtime.ask import answering, ports, questions
from tests.backends.kubernetes.stage import until

KEY = b"k" * 32
PAGE = os.urandom(3_000_000)


class Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def do_POST(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "1")
        self.end_headers()
        self.wfile.write(b"y" if data == PAGE else b"n")

    def log_message(self, *_):
        return


@contextlib.contextmanager
def serving(handle):
    """Serve each connection by ``handle``; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run():
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = listener.accept()
                    threading.Thread(target=handle, args=(peer,), daemon=True).start()

        threading.Thread(target=run, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def forward(act, here):
    """Yield a job, and a function that forwards a port of one of its ranks."""
    job = act()
    job.folder.key.write_bytes(KEY)
    job.begin()
    job.folder.node(0).mkdir()
    own = questions.node_key(KEY, job.folder.info().run, 0)
    answering.serve(str(job.folder.node(0)), own, {"forward": ports.answer})
    opened = []

    def make(port, rank=0, local=None):
        opened.append(Forward(here, here.snapshot(job.name), port, rank, local))
        return opened[-1]

    yield SimpleNamespace(of=make, job=job)
    for forward in opened:
        forward.close()


def test_many_connections_at_once_carry_megabytes_both_ways(forward):
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server, ThreadPoolExecutor(8) as pool:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        opened = forward.of(server.server_port)
        assert opened.listens is True
        assert opened.local != server.server_port  # that one is taken here

        gets = [pool.submit(lambda: urllib.request.urlopen(opened.url).read()) for _ in range(8)]
        assert all(got.result() == PAGE for got in gets)
        assert urllib.request.urlopen(opened.url, PAGE).read() == b"y"
        server.shutdown()
    assert until(lambda: opened.connections == 0)


def test_a_connection_may_be_half_closed_and_one_that_is_not_read_delays_no_other(forward):
    def last_words(peer):
        with peer:
            words = b""
            while data := peer.recv(1 << 16):
                words += data
            peer.sendall(b"%d" % len(words))

    def flood(peer):
        with peer, contextlib.suppress(OSError):
            while True:
                peer.sendall(b"x" * (1 << 16))

    with serving(last_words) as port, serving(flood) as flooding:
        stuck = socket.create_connection(("127.0.0.1", forward.of(flooding).local))
        opened = forward.of(port)
        with socket.create_connection(("127.0.0.1", opened.local)) as peer:
            peer.sendall(b"y" * 1_000_000)
            peer.shutdown(socket.SHUT_WR)
            assert peer.recv(100) == b"1000000"
            assert peer.recv(100) == b""
        stuck.close()
    assert until(lambda: opened.connections == 0)


def test_a_port_that_nobody_listens_at_is_said_and_works_once_somebody_does(forward):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    opened = forward.of(port)
    assert opened.listens is False
    with (
        socket.create_connection(("127.0.0.1", opened.local)) as peer,
        contextlib.suppress(ConnectionError),
    ):
        assert peer.recv(10) == b""
    assert opened.trouble == f"nothing answers at port {port} of rank 0: Connection refused"

    opened.close()
    again = forward.of(port, local=opened.local)  # a closed port can be used again
    assert (again.local, again.open, opened.open) == (opened.local, True, False)


def test_a_node_that_is_replaced_is_found_by_the_next_connection(forward):
    def echo(peer):
        with peer:
            peer.sendall(peer.recv(10))

    def said():
        with socket.create_connection(("127.0.0.1", opened.local)) as peer:
            peer.sendall(b"hello")
            return peer.recv(10)

    with serving(echo) as port:
        opened = forward.of(port)
        assert said() == b"hello"
        opened._talk.close()  # like a connection that is cut
        assert until(lambda: opened._talk is None)
        assert said() == b"hello"

        answering.close(str(forward.job.folder.node(0)))
        forward.job.lose()
        opened._talk.close()
        assert until(lambda: opened._talk is None)
        with contextlib.suppress(ConnectionError):
            assert said() == b""
        assert until(lambda: not opened.open)


def test_a_port_of_a_deleted_job_never_leads_to_a_later_job_of_its_name(forward, act):
    opened = forward.of(6006)
    answering.close(str(forward.job.folder.node(0)))
    forward.job.remove()
    act(forward.job.name).begin()
    opened._talk.close()
    assert until(lambda: opened._talk is None)

    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", opened.local)) as peer:
        assert peer.recv(1) == b""
    assert until(lambda: not opened.open)
    assert opened.trouble == f"{forward.job.name} was deleted; another job has its name"


def test_what_can_not_be_forwarded_is_refused(forward):
    with pytest.raises(AskError, match=r"rank 7 of .* isn't running now"):
        forward.of(6006, rank=7)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(SpecError, match=r"local-port: got .* a port that is free here"),
    ):
        forward.of(6006, local=listener.getsockname()[1])
    with pytest.raises(SpecError, match="another port than the rank's"):
        forward.of(6006, local=6006)
    forward.job.lose()
    with pytest.raises(JobEndedError):
        forward.of(6006)
