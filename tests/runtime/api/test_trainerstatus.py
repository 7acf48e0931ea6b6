"""The status that a node posts to Kubeflow's trainer."""

import http.server
import json
import os
import shutil
import ssl
import subprocess
import threading
from typing import Any

import pytest

from nbtorchjob.runtime.api import trainerstatus
from nbtorchjob.runtime.api.trainerstatus import CA, TOKEN, URL, Poster
from nbtorchjob.runtime.facts import EVENTS
from nbtorchjob.runtime.store.stream import Pump
from tests.backends.kubernetes.stage import until


class Trainer:
    """A TLS server that answers with ``code``, and keeps each post."""

    def __init__(self, folder):
        self.code, self.location = 200, ""
        self.posts: list[tuple[str, str, dict[str, Any]]] = []
        key, self.certificate = folder / "key.pem", folder / "ca.crt"
        words = "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -subj /CN=trainer"
        arguments = [*words.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key]
        subprocess.run([*arguments, "-out", self.certificate], check=True, capture_output=True)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(handler):
                body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
                self.posts.append((handler.path, handler.headers["Authorization"], body["trainerStatus"]))
                handler.send_response(self.code)
                if self.location:
                    handler.send_header("Location", self.location)
                handler.end_headers()

            def log_message(handler, *_):
                pass

        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, key)
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    stub = Trainer(tmp_path)
    (tmp_path / "token").write_text("of the job\n")
    monkeypatch.setenv(URL, f"https://127.0.0.1:{stub.server.server_port}/namespaces/a/trainjobs/b/status")
    monkeypatch.setenv(CA, str(stub.certificate))
    monkeypatch.setenv(TOKEN, str(tmp_path / "token"))
    monkeypatch.setenv(EVENTS, str(tmp_path / "events.jsonl"))
    yield stub
    stub.server.shutdown()
    stub.server.server_close()


@pytest.fixture
def poster(trainer):
    thread = Poster()
    thread.start()
    yield thread
    thread.finish()


def reported(seq, round_=0, rank=0, **metrics):
    fields = {"rank": rank, "round": round_, "seq": seq, "metrics": metrics}
    return {"event": "Reported", "time": 100.0 + seq, **fields}


def test_the_newest_of_many_reports_is_posted_and_how_far_it_is(poster, trainer):
    poster.note({"event": "RankBegan", "rank": 0, "round": 0, "time": 99.0})
    poster.note(reported(0, step=0, steps=10, loss=2.0))
    until(lambda: trainer.posts)
    for seq in range(1, 5):
        poster.note(reported(seq, step=seq, loss=1 / seq))
        poster.note(reported(seq, rank=1, step=9))
    poster.finish()

    path = "/namespaces/a/trainjobs/b/status"
    first, last = trainer.posts
    assert first[:2] == last[:2] == (path, "Bearer of the job")
    assert first[2]["progressPercentage"] == 10
    assert last[2] == {
        "lastUpdatedTime": "1970-01-01T00:01:44Z",
        "metrics": [
            {"name": "step", "value": "4"},
            {"name": "steps", "value": "10"},
            {"name": "loss", "value": "0.25"},
        ],
        "progressPercentage": 50,
        "estimatedRemainingSeconds": 5,
    }


def test_a_metric_that_is_called_total_says_nothing_of_how_far_it_is(poster, trainer):
    poster.note(reported(0, step=0, total=0.53))
    poster.finish()

    assert "progressPercentage" not in trainer.posts[-1][2]


def test_a_new_round_begins_anew(poster, trainer):
    poster.note(reported(0, loss=2.0, **{"x" * 65: 1.0}))
    until(lambda: trainer.posts)
    poster.note(reported(0, round_=1, epoch=1, epochs=4, most=float("inf")))
    poster.note(reported(9, round_=0, loss=1.0))  # arrives late
    poster.finish()

    (_, _, first), (_, _, last) = trainer.posts
    assert first == {"lastUpdatedTime": "1970-01-01T00:01:40Z", "metrics": [{"name": "loss", "value": "2.0"}]}
    assert last["progressPercentage"] == 25
    assert "estimatedRemainingSeconds" not in last
    assert [metric["value"] for metric in last["metrics"]] == ["1", "4", "inf"]


def test_what_was_refused_is_posted_again_and_that_it_is_refused_is_told_once(trainer, monkeypatch, tmp_path):
    monkeypatch.setattr(trainerstatus, "_EVERY_S", 0.0)  # otherwise the test would wait for seconds
    trainer.code, poster = 403, Poster()
    poster.start()
    poster.note(reported(0, loss=2.0))
    until(lambda: len(trainer.posts) > 4)
    trainer.code = 200
    poster.finish()

    (notice,) = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert notice["text"] == "metrics can't be posted to the TrainJob's status: 403 Forbidden"
    assert not poster.is_alive()


def test_a_trainer_that_refuses_for_days_is_posted_to_again(monkeypatch, tmp_path):
    monkeypatch.setattr(trainerstatus, "_EVERY_S", 0.0)
    monkeypatch.setenv(EVENTS, str(tmp_path / "events.jsonl"))
    for name in (URL, TOKEN):
        monkeypatch.setenv(name, "")
    attempts: list[str] = []
    monkeypatch.setattr(trainerstatus, "urlsplit", attempts.append)
    poster = Poster()
    poster.start()
    poster.note(reported(0, loss=2.0))
    until(lambda: len(attempts) > 1100 or not poster.is_alive())
    assert poster.is_alive()
    poster.finish()


FORGED = [
    b"5",
    b"[" * 100_000,
    b"{}",
    b'{"event": []}',
    b'{"event": "WorkersStarted", "ranks": 5, "round": {}}',
    b'{"event": "ValueReady", "ref": "log#00", "round": "../..", "rank": 0}',
    b'{"event": "ValueReady", "ref": 7}',
    b'{"event": "Reported", "rank": 0, "round": 0}',
    b'{"event": "Reported", "rank": 0, "round": 0, "time": 1e300, "metrics": {"a": 1}}',
    b'{"event": "Reported", "rank": 0, "round": 0, "time": 1, "metrics": {"step": "x", "steps": 5}}',
    b'{"event": "Reported", "rank": 0, "round": 0, "time": 1, "metrics": [1]}',
    b'{"event": "Reported", "rank": 0, "round": "x", "time": 1, "metrics": {}, "url": "https://elsewhere/"}',
]


def test_forged_facts_of_ranks_neither_stop_what_is_posted_nor_lead_it_elsewhere(poster, trainer, tmp_path):
    good = json.dumps(reported(1, round_=1, loss=0.5)).encode()
    (tmp_path / "facts").write_bytes(b"\n".join([*FORGED, good, b""]))
    read, write = os.pipe()
    pump = Pump(str(tmp_path), str(tmp_path / "facts"), str(tmp_path / "output"), write, [poster.note])
    pump.start()
    pump.finish()
    poster.finish()
    os.close(write)

    with open(read, "rb") as file:
        assert good in file.read()  # a fact after the forged ones passes as usual
    assert {post[:2] for post in trainer.posts} == {("/namespaces/a/trainjobs/b/status", "Bearer of the job")}
    assert trainer.posts[-1][2]["metrics"] == [{"name": "loss", "value": "0.5"}]


def test_a_trainer_that_sends_it_elsewhere_is_not_followed(trainer):
    other = []

    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            other.append(self.headers["Authorization"])

    with http.server.HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        trainer.code, trainer.location = 307, f"http://127.0.0.1:{server.server_port}/"
        assert trainerstatus._post({"trainerStatus": {}}) == "307 Temporary Redirect"
        server.shutdown()
    assert other == []


def test_nobody_there_is_no_trouble_for_the_node(trainer, monkeypatch):
    monkeypatch.setenv(TOKEN, "/absent")
    poster = Poster()
    poster.start()
    poster.note(reported(0, loss=2.0))
    poster.finish()
    poster.join()

    assert trainer.posts == []
