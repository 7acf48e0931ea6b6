"""A port of a rank in a pod, forwarded here through ``pods/exec``."""

import socket
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from nbtorchjob.backends import backend
from nbtorchjob.backends.links import Forward
from tests.backends.kubernetes.stage import until

PART = """
import http.server, os, socket, tempfile, threading
from nbtorchjob.runtime.ask import answering, questions
from nbtorchjob.runtime.facts import injected

folder = tempfile.mkdtemp(prefix="nbtorchjob-")
os.chdir(folder)
with open("page", "wb") as file:
    file.write(bytes(range(256)) * 4000)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
def answer(asked):
    from nbtorchjob.runtime.ask import ports  # its payload lacks it: it comes with the question
    return ports.answer(asked)
answering.serve(folder, questions.node_key(KEY, injected.run(), NODE), {"forward": answer})
begin()
sign("port-%d" % server.server_port)
wait("go")
value(1)
"""


def test_a_port_of_a_pod_is_reached_by_many_connections(stage):
    job = stage.submit(PART)
    (sign,) = until(lambda: [*stage.signs.glob("port-*")])
    port = int(sign.name.removeprefix("port-"))
    kubernetes = backend("kubernetes")
    opened = Forward(kubernetes, kubernetes.snapshot(job.name), port, 0, None)

    assert opened.listens is True
    with ThreadPoolExecutor(4) as pool:
        pages = list(pool.map(lambda _: urllib.request.urlopen(f"{opened.url}/page").read(), range(4)))
    assert pages == [bytes(range(256)) * 4000] * 4
    with socket.create_connection(("127.0.0.1", opened.local)) as peer:
        peer.sendall(b"GET /none HTTP/1.0\r\n\r\n")
        peer.shutdown(socket.SHUT_WR)
        assert peer.recv(12) == b"HTTP/1.0 404"
    opened.close()
    assert not opened.open
