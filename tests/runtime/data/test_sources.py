"""Sources of data: the web with all its failures, and the Hub with and without its library."""

import collections
import contextlib
import errno
import json
import os
import shutil
import ssl
import threading
from http.client import HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from nbtorchjob.runtime.api import mirror
from nbtorchjob.runtime.api.artifacts import DATA
from nbtorchjob.runtime.data import cache, provide, sources, web
from nbtorchjob.runtime.data.sources import DataError, FilteredUrl, Store
from nbtorchjob.runtime.data.web import Hub, LibraryHub, Page, Web
from nbtorchjob.runtime.facts import EVENTS, exits
from nbtorchjob.runtime.facts.injected import STREAM
from tests.patience import LIMIT

BLOB = os.urandom(300_000)
COMMIT = "c" * 40


class Server(ThreadingHTTPServer):
    """A server of ``BLOB`` and ``files`` that records paths and headers in ``requests``."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.cuts = 0  # how many responses to cut in the middle
        self.etag = '"one"'
        self.ranges = True
        self.lengths = True  # whether responses say how long they are
        self.status = 200
        self.busy: list[tuple[int, str]] = []  # the next files' statuses and Retry-After headers
        self.listing = b""  # the Hub API's answer, if not the list of files
        self.token = ""
        self.files = {"train.json": b"train", "data/part-0.bin": BLOB, "data/old.h5": b"old"}
        self.location = ""

    def url(self, path):
        return f"http://127.0.0.1:{self.server_port}/{path}"

    def gets(self, path):
        return [headers for target, headers in self.requests if target == path]


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        server, path = self.server, unquote(urlsplit(self.path).path)
        server.requests.append((path, dict(self.headers)))
        if server.status != 200:
            self._send(server.status, b"no")
        elif server.busy and not path.startswith("/api/") and self.headers.get("Range") != "bytes=0-0":
            status, again = server.busy.pop(0)
            self._send(status, b"busy", {"Retry-After": again})
        elif path == "/moved":
            self.send_response(302)
            self.send_header("Location", server.location)
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif path.startswith("/api/"):
            self._api(path)
        elif path.startswith(("/datasets/org/squad/resolve/", "/org/model/resolve/")):
            self._content(server.files.get(path.partition(COMMIT + "/")[2]))
        else:
            self._content(
                BLOB if path == "/blob.bin" or path.startswith("/any/") else b"" if path == "/empty" else None
            )

    def _api(self, path):
        server = self.server
        if path not in (
            f"/api/{kind}/revision/{ref}"
            for kind in ("datasets/org/squad", "models/org/model")
            for ref in ("main", COMMIT, "refs/convert/parquet")
        ):
            self._send(404, b"{}")
        elif server.token and self.headers.get("Authorization") != f"Bearer {server.token}":
            self._send(401, b"{}")
        else:
            rows = [{"rfilename": name, "size": len(data)} for name, data in server.files.items()]
            info = {
                "id": "squad",
                "sha": COMMIT,
                "siblings": rows,
                "private": False,
                "downloads": 0,
                "likes": 0,
                "tags": [],
            }
            listing = server.listing or json.dumps(info).encode()
            self._send(200, listing, {"Content-Type": "application/json"})

    def _content(self, data):
        if data is None:
            self._send(404, b"none")
            return
        headers = {"X-Repo-Commit": COMMIT}
        if self.server.etag:
            headers["ETag"] = self.server.etag
        byte_range = self.headers.get("Range", "")
        fits = self.headers.get("If-Range", self.server.etag) == self.server.etag
        if byte_range and self.server.ranges and fits:
            begin, _, end = byte_range.removeprefix("bytes=").partition("-")
            first, last = int(begin), min(int(end) if end else len(data) - 1, len(data) - 1)
            if first >= len(data):
                self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
                return
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
            self._send(206, data[first : last + 1], headers)
        else:
            self._send(200, data, headers)

    def _send(self, status, data, headers=()):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        if self.server.lengths:
            self.send_header("Content-Length", str(len(data)))
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.server.cuts and len(data) > 1000:
            self.server.cuts -= 1
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
        else:
            self.wfile.write(data)

    def log_message(self, *_):
        return


@pytest.fixture(autouse=True)
def let_go():
    """Release the cached data that this process, as a node, would hold until it ends."""
    yield
    while provide._used:
        provide._used.pop().close()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(sources, "_AGAIN_S", 0.0)
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", server.url("").rstrip("/"))
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        yield server
        server.shutdown()


def fetched(source, folder):
    look = source.look()
    for file in look.files:
        source.fetch(file, str(folder))
    return look, {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".cache" not in path.parts
    }


def test_a_file_of_the_web_is_known_by_its_etag_and_comes_whole(server, tmp_path):
    look, files = fetched(Web(server.url("blob.bin?sig=1")), tmp_path)
    assert (look.version, look.size, files) == ('"one"', len(BLOB), {"blob.bin": BLOB})
    server.etag = '"two"'
    assert Web(server.url("blob.bin")).look().version == '"two"'
    server.etag = ""
    assert Web(server.url("blob.bin")).look().version == ""
    assert fetched(Web(server.url("empty")), tmp_path / "empty")[1] == {"empty": b""}


def test_a_file_that_is_cut_off_goes_on_where_it_stopped(server, tmp_path):
    source = Web(server.url("blob.bin"))
    source.look()
    server.cuts = 3
    assert fetched(source, tmp_path / "a")[1] == {"blob.bin": BLOB}
    begins = [headers.get("Range") for headers in server.gets("/blob.bin")[2:]]
    assert begins == [None, "bytes=150000-", "bytes=225000-", "bytes=262500-"]

    server.ranges, server.cuts = False, 1  # without ranges, the download starts over
    assert fetched(Web(server.url("blob.bin")), tmp_path / "b")[1] == {"blob.bin": BLOB}


def test_a_file_that_never_comes_whole_is_one_line_and_may_come_at_the_next_attempt(server, tmp_path):
    source = Web(server.url("blob.bin"))
    (file,) = source.look().files
    server.ranges, server.cuts = False, 100
    with pytest.raises(
        DataError, match=r"blob\.bin was cut off after 150000 bytes \(tried 5 times\)"
    ) as raised:
        source.fetch(file, str(tmp_path))
    assert raised.value.code == exits.RECOVERABLE_ERROR
    server.cuts, server.etag = 0, '"two"'
    with pytest.raises(DataError, match="changed while it was fetched"):
        source.fetch(file, str(tmp_path))


@pytest.mark.parametrize(
    ("status", "says", "code"),
    [
        (404, "nothing exists at .* check the name", exits.CONFIG_ERROR),
        (403, "the credentials are missing or wrong", exits.CONFIG_ERROR),
        (503, "answers 503", exits.RECOVERABLE_ERROR),
        (429, "answers 429", exits.RECOVERABLE_ERROR),
    ],
)
def test_what_a_server_refuses_is_one_line_without_the_signature(server, status, says, code):
    server.status = status
    with pytest.raises(DataError, match=says) as raised:
        Web(server.url("blob.bin?X-Amz-Signature=hunter2")).look()
    assert raised.value.code == code
    assert "hunter2" not in str(raised.value)


def test_a_server_that_is_not_there_may_be_there_later(server):
    port = server.server_port
    server.shutdown()
    server.server_close()
    with pytest.raises(DataError, match=r"can't be reached: .*refused") as raised:
        Web(f"http://127.0.0.1:{port}/x").look()
    assert raised.value.code == exits.RECOVERABLE_ERROR


@pytest.mark.parametrize("location", [f"http://{'a' * 64}.org/x", "http://h:port/x"])
def test_a_server_that_leads_to_no_address_is_refused(server, location):
    server.location = location
    with pytest.raises(DataError, match="moved isn't a valid address: ") as raised:
        Web(server.url("moved")).look()
    assert raised.value.code == exits.CONFIG_ERROR


@pytest.mark.parametrize("path", ["", "%2E%2E", "a%2F.", "a%00b"])
def test_a_page_whose_name_no_file_can_have_is_named_data(server, path):
    assert Web(server.url(f"any/{path}")).look().files == [sources.File("data", len(BLOB))]


def test_a_page_may_have_a_name_as_long_as_any(server, tmp_path):
    assert fetched(Web(server.url(f"any/{'n' * 255}")), tmp_path)[1] == {"n" * 255: BLOB}


def test_what_a_library_says_in_many_lines_is_one_of_bounded_length():
    assert str(DataError("it\nfailed:\r\n  " + "x" * 5000)) == "it failed: " + "x" * 989


class Waits(threading.Event):
    """An event by which a source waits: it returns at once and records the seconds."""

    def __init__(self):
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout=None):
        self.seconds.append(timeout)
        return False


def test_a_file_that_a_busy_server_refuses_is_asked_for_again_when_it_says(server, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_AGAIN_S", 2.0)
    source = Web(server.url("blob.bin"))
    source.stopped = Waits()
    (file,) = source.look().files
    server.busy = [(503, "7"), (429, "Wed, 21 Oct 2015 07:28:00 GMT"), (500, "soon"), (503, "999999999")]
    source.fetch(file, str(tmp_path))
    assert (tmp_path / "blob.bin").read_bytes() == BLOB
    assert source.stopped.seconds == [7, 4, 8, 300]

    source.stopped.seconds.clear()
    server.busy = [(503, "0")] * 9
    with pytest.raises(DataError, match=r"blob\.bin answers 503 \(tried 5 times\)") as raised:
        source.fetch(file, str(tmp_path / "other"))
    assert raised.value.code == exits.RECOVERABLE_ERROR
    assert source.stopped.seconds == [2, 4, 8, 16]

    server.busy = [(403, "0")]
    with pytest.raises(DataError, match="answers 403: it is private") as raised:
        source.fetch(file, str(tmp_path / "other"))
    assert raised.value.code == exits.CONFIG_ERROR


@pytest.mark.parametrize("error", [OSError(errno.EHOSTUNREACH, "No route"), ssl.SSLError(1, "bad record")])
def test_a_connection_that_breaks_as_it_is_read_is_no_disk_that_breaks(server, tmp_path, monkeypatch, error):
    read, breaks = HTTPResponse.read, [error]

    def broken(response, *size):
        if breaks and response.status == 206 and response.length != 1:
            raise breaks[0]
        piece = read(response, *size)
        if breaks and len(piece) > 1:
            response.close()
            raise breaks[0]
        return piece

    monkeypatch.setattr(HTTPResponse, "read", broken)  # no server can break a connection like this
    entry = {"name": "web", "where": server.url("blob.bin")}
    with pytest.raises(DataError, match=r"--data web: .*blob\.bin was cut off: ") as raised:
        provide.provide(header(tmp_path, entry), str(tmp_path), 0)
    assert raised.value.code == exits.RECOVERABLE_ERROR
    breaks.clear()
    provide.provide(header(tmp_path, entry), str(tmp_path), 0)


def test_connections_that_each_bring_a_little_before_they_break_bring_all(server, tmp_path, monkeypatch):
    read, requested = HTTPResponse.read, collections.Counter[HTTPResponse]()

    def breaks(response, size=None):
        requested[response] += size or 0
        if requested[response] > 100_000:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        return read(response, size)

    monkeypatch.setattr(HTTPResponse, "read", breaks)
    assert fetched(Web(server.url("blob.bin")), tmp_path)[1] == {"blob.bin": BLOB}
    assert len(server.gets("/blob.bin")) > 5


def test_a_token_is_shown_to_no_other_host(server, tmp_path):
    with Server() as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        server.location = other.url("blob.bin")
        Web(server.url("moved"), Page(server.url("moved"), "secret")).look()
        other.shutdown()
    assert server.gets("/moved")[0]["Authorization"] == "Bearer secret"
    assert "Authorization" not in other.gets("/blob.bin")[0]


def source_of(where, library):
    return LibraryHub(where, pytest.importorskip("huggingface_hub")) if library else Hub(where)


@pytest.fixture(params=[False, True], ids=["stdlib", "library"])
def library(request, server, monkeypatch, tmp_path):
    if request.param:
        constants = pytest.importorskip("huggingface_hub.constants")
        monkeypatch.setattr(constants, "ENDPOINT", os.environ["HF_ENDPOINT"])
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            os.environ["HF_ENDPOINT"] + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return request.param


def test_a_dataset_and_a_model_of_the_hub(server, library, tmp_path):
    look, files = fetched(source_of("hf://datasets/org/squad", library), tmp_path / "all")
    assert (look.version, files) == (COMMIT, server.files)
    _, files = fetched(source_of("hf://datasets/org/squad/data?exclude=*.h5", library), tmp_path / "some")
    assert [*files] == ["data/part-0.bin"]
    _, files = fetched(
        source_of(f"hf://models/org/model@{COMMIT}?include=*.json", library), tmp_path / "model"
    )
    assert files == {"train.json": b"train"}
    _, files = fetched(source_of("hf://org/model/train.json", library), tmp_path / "file")
    assert files == {"train.json": b"train"}


def test_a_revision_with_slashes_and_a_file_of_it(server, library, tmp_path):
    for ref in ("refs/convert/parquet", "refs%2Fconvert%2Fparquet"):
        source = source_of(f"hf://datasets/org/squad@{ref}/train.json", library)
        assert fetched(source, tmp_path / ref)[1] == {"train.json": b"train"}


def test_a_file_of_the_hub_that_is_cut_off_goes_on_where_it_stopped(server, tmp_path):
    source = Hub("hf://datasets/org/squad/data?exclude=*.h5")
    (file,) = source.look().files
    server.cuts = 2
    server.requests.clear()
    source.fetch(file, str(tmp_path))
    assert (tmp_path / "data" / "part-0.bin").read_bytes() == BLOB
    assert [headers.get("Range") for _, headers in server.requests] == [
        None,
        "bytes=150000-",
        "bytes=225000-",
    ]


def test_a_hub_that_is_busy_or_unclear_may_be_better_later(server, library, tmp_path):
    source = source_of("hf://datasets/org/squad", library)
    server.files.update({f"{number:060}": b"" for number in range(20)})  # a longer list, so that it is cut
    server.cuts = 1
    assert len(source.look().files) == 23

    server.busy = [(503, "0")]
    source.fetch(sources.File("train.json", 5), str(tmp_path))
    assert (tmp_path / "train.json").read_bytes() == b"train"

    server.listing = b"<html>please log in</html>"
    with pytest.raises(DataError) as raised:
        source.look()
    assert raised.value.code == exits.RECOVERABLE_ERROR


def test_what_an_old_library_says_of_a_network_is_nothing_final(server, tmp_path):
    class LocalEntryNotFoundError(FileNotFoundError, ValueError):  # as before huggingface_hub 1.0
        pass

    class HFValidationError(ValueError):
        pass

    class Library:
        error: Exception = LocalEntryNotFoundError("check your connection")

        def hf_hub_download(self, *_, **__):
            raise self.error

    library = Library()
    source = LibraryHub("hf://datasets/org/squad", library)
    for error, code in (
        (library.error, exits.RECOVERABLE_ERROR),
        (HFValidationError("org/a b is no name"), exits.CONFIG_ERROR),
    ):
        library.error = error
        with pytest.raises(DataError) as raised:
            source.fetch(sources.File("train.json", 5), str(tmp_path))
        assert raised.value.code == code
    library.error = PermissionError(errno.EACCES, "Permission denied", "/data/train.json")
    with pytest.raises(PermissionError):
        source.fetch(sources.File("train.json", 5), str(tmp_path))


def test_what_the_hub_does_not_show_says_what_to_do(server, library, monkeypatch):
    with pytest.raises(
        DataError, match="the Hub shows no dataset org/squid at main: check the name, or, if it is private"
    ):
        source_of("hf://datasets/org/squid", library).look()
    with pytest.raises(DataError, match="no file matches"):
        source_of("hf://datasets/org/squad?include=*.png", library).look()
    server.token = "right"
    with pytest.raises(DataError, match="set HF_TOKEN") as raised:
        source_of("hf://datasets/org/squad", library).look()
    assert raised.value.code == exits.CONFIG_ERROR
    monkeypatch.setenv("HF_TOKEN", "right\n")
    if not library:
        assert source_of("hf://datasets/org/squad", library).look().version == COMMIT


def test_a_store_is_fetched_by_what_it_says_of_its_files(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    store.pipe({"/bucket/a/one.txt": b"one", "/bucket/a/b/two.bin": b"two"})
    _, files = fetched(Store("memory://bucket/a"), tmp_path / "all")
    assert files == {"one.txt": b"one", "b/two.bin": b"two"}
    assert fetched(Store("memory://bucket/a/one.txt"), tmp_path / "one")[1] == {"one.txt": b"one"}
    store.pipe(f"/bucket/long/{'é' * 127}", b"long")
    assert fetched(Store("memory://bucket/long"), tmp_path / "long")[1] == {"é" * 127: b"long"}
    assert fetched(Store("memory://bucket/a?exclude=*.bin"), tmp_path / "some")[1] == {"one.txt": b"one"}
    with pytest.raises(DataError, match="nothing exists at memory://bucket/none: check the name"):
        Store("memory://bucket/none").look()
    with pytest.raises(DataError, match="needs fsspec"):
        Store("abfs://container/x").look()
    store.rm("/bucket", recursive=True)


def test_an_object_that_is_cut_off_goes_on_where_it_stopped(server, tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    fs = fsspec.filesystem("memory")
    fs.pipe({"/bucket/blob.bin": BLOB, "/bucket/none": b""})
    monkeypatch.setattr(sources, "_RANGE", 40_000)
    cat, begins, fails = type(fs).cat_file, [], [200_000, 240_000]

    def flaky(fs, path, start=None, end=None, **options):
        begins.append(start)
        if start in fails:
            fails.remove(start)
            raise ConnectionResetError("cut off")
        return cat(fs, path, start=start, end=end, **options)

    monkeypatch.setattr(type(fs), "cat_file", flaky)  # a store that loses the connection
    assert fetched(Store("memory://bucket/blob.bin"), tmp_path / "one")[1] == {"blob.bin": BLOB}
    assert [begins.count(begin) for begin in (160_000, 200_000, 280_000)] == [1, 2, 2]
    assert fetched(Store("memory://bucket"), tmp_path / "all")[1] == {"blob.bin": BLOB, "none": b""}
    fs.rm("/bucket", recursive=True)


def test_an_object_that_is_left_goes_on_where_it_stopped(tmp_path):
    fs = pytest.importorskip("fsspec").filesystem("memory")
    fs.pipe("/bucket/big", BLOB)
    source = Store("memory://bucket")
    (file,) = source.look().files
    part = tmp_path / f"big{sources.PART}"
    part.write_bytes(BLOB[:1000])

    source.stopped.set()
    with pytest.raises(DataError, match="memory://bucket/big was left"):
        source.fetch(file, str(tmp_path))

    assert part.read_bytes() == BLOB[:1000]
    assert not (tmp_path / "big").exists()
    fs.rm("/bucket", recursive=True)


def test_an_object_that_changes_while_it_is_fetched_is_fetched_anew(tmp_path, facts, monkeypatch):
    fs = pytest.importorskip("fsspec").filesystem("memory")
    fs.pipe({"/bucket/big": BLOB, "/bucket/small": b"small"})
    monkeypatch.setattr(sources, "_RANGE", 40_000)
    cat, later = type(fs).cat_file, bytes(len(BLOB) + 1)

    def changing(fs, path, start=None, end=None, **options):
        if start == 200_000 and fs.cat(path) != later:
            fs.pipe("/bucket/big", later)
        return cat(fs, path, start=start, end=end, **options)

    monkeypatch.setattr(type(fs), "cat_file", changing)
    entry = {"name": "data", "where": "memory://bucket"}
    with pytest.raises(DataError, match="--data data: memory://bucket changed while it was") as raised:
        provide.provide(header(tmp_path, entry), str(tmp_path), 0)
    assert raised.value.code == exits.RECOVERABLE_ERROR
    assert [path.name for path in tmp_path.glob("cache/*.partial/*")] == []

    provide.provide(header(tmp_path, entry), str(tmp_path), 0)
    assert Path(places()["data"], "big").read_bytes() == later
    fs.rm("/bucket", recursive=True)


def test_a_placeholder_of_a_folder_is_no_file(tmp_path, monkeypatch):
    fs = pytest.importorskip("fsspec").filesystem("memory")
    fs.pipe({"/bucket/a/sub/one.txt": b"one"})
    find = type(fs).find

    def with_placeholder(fs, path, *args, detail=False, **options):  # as s3fs finds one (2026.9)
        placeholder = {"/bucket/a/sub/": {"name": "/bucket/a/sub/", "size": 0, "type": "file"}}
        objects = {**placeholder, **find(fs, path, *args, detail=True, **options)}
        return objects if detail else [*objects]

    monkeypatch.setattr(type(fs), "find", with_placeholder)

    assert fetched(Store("memory://bucket/a"), tmp_path / "all")[1] == {"sub/one.txt": b"one"}
    mirror.Mirror("memory://bucket/a", str(tmp_path / "here")).fill()
    assert (tmp_path / "here/sub/one.txt").read_bytes() == b"one"
    fs.rm("/bucket", recursive=True)


@pytest.fixture
def facts(tmp_path, monkeypatch):
    monkeypatch.setenv(EVENTS, str(tmp_path / "events"))
    return lambda: [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]


def header(tmp_path, *entries):
    return {"cache": str(tmp_path / "cache"), "place": "the claim data", "entries": [*entries]}


def places():
    return json.loads(os.environ[DATA])


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    monkeypatch.setenv(DATA, "{}")


def test_several_nodes_at_once_fetch_once_and_find_the_same(server, tmp_path, facts):
    entry = {"name": "web", "where": server.url("blob.bin")}
    threads = [
        threading.Thread(
            target=provide.provide, args=(header(tmp_path, entry), str(tmp_path / f"{node}"), node)
        )
        for node in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = [headers for headers in server.gets("/blob.bin") if headers.get("Range") != "bytes=0-0"]
    assert len(whole) == 1
    fetches = [fact for fact in facts() if fact["event"] == "Fetched"]
    assert sorted(fact["kept"] for fact in fetches) == [False, True, True, True]
    assert {(fact["size"], fact["files"], fact["place"]) for fact in fetches} == {
        (len(BLOB), 1, "the claim data")
    }
    folder = places()["web"]
    assert (Path(folder, "blob.bin").read_bytes() == BLOB, os.listdir(folder)) == (True, ["blob.bin"])
    assert os.stat(f"{folder}/blob.bin").st_mode & 0o777 == 0o444

    server.etag = '"two"'  # a later version is fetched beside it
    provide.provide(header(tmp_path, entry), str(tmp_path), 0)
    assert places()["web"] != folder


@pytest.mark.parametrize("etag", ['"one"', ""])
def test_a_file_of_unknown_size_is_fetched_and_is_complete_once_it_is_there(server, tmp_path, facts, etag):
    server.etag, server.ranges, server.lengths = etag, False, False
    look = Web(server.url("blob.bin")).look()
    assert look.files == [sources.File("blob.bin", None)]
    assert not provide.is_complete(str(tmp_path), look)

    provide.provide(header(tmp_path, {"name": "web", "where": server.url("blob.bin")}), str(tmp_path), 0)
    assert Path(places()["web"], "blob.bin").read_bytes() == BLOB
    assert provide.is_complete(places()["web"], look)


def test_half_a_fetch_is_not_there_and_the_next_one_completes_it(server, tmp_path, facts, monkeypatch):
    fetch = Hub.fetch

    def fails(self, file, folder):
        if file.name == "train.json":
            raise DataError("the line was cut", exits.RECOVERABLE_ERROR)
        fetch(self, file, folder)

    monkeypatch.setattr(web, "hub", Hub)
    monkeypatch.setattr(provide, "_AT_ONCE", 1)
    monkeypatch.setattr(Hub, "fetch", fails)
    entry = {"name": "squad", "where": "hf://datasets/org/squad"}
    with pytest.raises(DataError, match="--data squad: the line was cut") as raised:
        provide.provide(header(tmp_path, entry), str(tmp_path), 0)
    assert raised.value.code == exits.RECOVERABLE_ERROR
    assert [name for name in os.listdir(tmp_path / "cache") if "." not in name] == []

    monkeypatch.setattr(Hub, "fetch", fetch)
    before = len(server.requests)
    provide.provide(header(tmp_path, entry), str(tmp_path), 0)
    assert [path.rpartition("/")[2] for path, _ in server.requests[before + 1 :]] == ["train.json"]
    assert sorted(os.listdir(places()["squad"])) == ["data", "train.json"]


@pytest.mark.parametrize("cluster", [False, True])
def test_a_disk_without_room_is_one_line_before_and_after(server, tmp_path, facts, monkeypatch, cluster):
    monkeypatch.setenv(STREAM, "1") if cluster else monkeypatch.delenv(STREAM, raising=False)
    # Another host of a cluster may have room, but locally there is only this machine.
    code = exits.INFRASTRUCTURE_ERROR if cluster else exits.CONFIG_ERROR
    entry = {"name": "web", "where": server.url("blob.bin")}
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as small:
        small.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100_000))
        with pytest.raises(
            DataError, match=r"^--data web: it needs 1 MiB in .* \(the claim data\), where 0 MiB are free"
        ) as raised:
            provide.provide(header(tmp_path, entry), str(tmp_path), 0)
    assert raised.value.code == code

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Web, "fetch", full)
    with pytest.raises(DataError, match=r"the disk of .* is full") as raised:
        provide.provide(header(tmp_path, entry), str(tmp_path), 0)
    assert raised.value.code == code


def test_a_disk_that_is_full_to_the_last_byte_gets_room_first(server, tmp_path, facts, monkeypatch):
    entry = {"name": "web", "where": server.url("blob.bin")}
    provide.provide(header(tmp_path, entry), str(tmp_path), 0)
    old, usage, makedirs, describe = places()["web"], shutil.disk_usage(tmp_path), os.makedirs, cache.describe
    provide._used.pop().close()  # as if its node had ended

    def with_room(do):
        def checked(path, *args, **options):
            if os.path.exists(old) and not os.path.isdir(getattr(path, "name", path)):
                raise OSError(errno.ENOSPC, "No space left on device")
            return do(path, *args, **options)

        return checked

    free = usage.total * 3 // 4
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: usage._replace(free=0 if os.path.exists(old) else free)
    )
    monkeypatch.setattr(os, "makedirs", with_room(makedirs))
    monkeypatch.setattr(cache, "describe", with_room(describe))
    server.etag = '"two"'
    provide.provide(header(tmp_path, entry), str(tmp_path), 0)
    assert (Path(places()["web"], "blob.bin").read_bytes() == BLOB, os.path.exists(old)) == (True, False)


def test_a_cache_that_lost_a_file_gets_it_back_and_can_be_removed(server, tmp_path, facts, monkeypatch):
    monkeypatch.setattr(web, "hub", Hub)
    entry = {"name": "squad", "where": "hf://datasets/org/squad"}
    provide.provide(header(tmp_path, entry), str(tmp_path), 0)
    folder = Path(places()["squad"])
    modes = [path.stat().st_mode & 0o777 for path in (folder, folder / "data", folder / "train.json")]
    assert modes == [0o755, 0o755, 0o444]

    (folder / "data" / "part-0.bin").unlink()
    (folder / "train.json").chmod(0o644)
    (folder / "train.json").write_bytes(b"")
    before = len(server.requests)
    provide.provide(header(tmp_path, entry), str(tmp_path), 0)
    assert places()["squad"] == str(folder)
    assert (folder / "data" / "part-0.bin").read_bytes() == BLOB
    assert (folder / "train.json").read_bytes() == b"train"
    fetches = sorted(path.rpartition("/")[2] for path, _ in server.requests[before + 1 :])
    assert fetches == ["part-0.bin", "train.json"]
    assert [fact["kept"] for fact in facts() if fact["event"] == "Fetched"] == [False, False]


def test_a_librarys_notes_go_and_the_data_beside_them_stays(server, tmp_path, facts, library, monkeypatch):
    monkeypatch.setattr(web, "hub", lambda where: source_of(where, library))
    server.files[".cache/own.txt"] = b"own"
    entry = {"name": "squad", "where": "hf://datasets/org/squad?exclude=*.h5,*.bin"}
    provide.provide(header(tmp_path, entry), str(tmp_path), 0)
    folder = Path(places()["squad"])
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == {
        "train.json",
        ".cache/own.txt",
    }


def test_data_where_a_library_keeps_its_notes_stays(server, tmp_path, facts, library, monkeypatch):
    monkeypatch.setattr(web, "hub", lambda where: source_of(where, library))
    server.files[".cache/huggingface/.gitignore"] = b"*"  # as people commit it
    entry = {"name": "squad", "where": "hf://datasets/org/squad?exclude=*.h5,*.bin"}
    provide.provide(header(tmp_path, entry), str(tmp_path), 0)
    assert (Path(places()["squad"]) / ".cache" / "huggingface" / ".gitignore").read_bytes() == b"*"


def test_a_source_that_brings_other_than_it_lists_is_refused(tmp_path, facts, monkeypatch):
    class Less(sources.Source):
        def look(self):
            return sources.Look("1", [sources.File("a", 2)])

        def fetch(self, file, folder):
            Path(sources.target(file, folder)).write_bytes(b"1")

    monkeypatch.setattr(sources, "of", lambda entry: Less(entry["where"]))
    with pytest.raises(DataError, match="--data less: what was fetched isn't what x://y lists"):
        provide.provide(header(tmp_path, {"name": "less", "where": "x://y"}), str(tmp_path), 0)


def test_what_was_there_before_a_fetch_says_nothing_of_its_rate(server, tmp_path, facts):
    entry = {"name": "web", "where": server.url("blob.bin")}
    server.ranges, server.cuts = False, 99
    with pytest.raises(DataError, match="cut off"):
        provide.provide(header(tmp_path, entry), str(tmp_path), 0)
    server.ranges, server.cuts = True, 0
    begin = len(facts())
    provide.provide(header(tmp_path, entry), str(tmp_path), 0)
    first = facts()[begin]
    assert (first["event"], first["had"], first["done"]) == ("Fetching", 150_000, 150_000)


def test_after_a_file_that_fails_the_others_are_not_waited_for(tmp_path, facts, monkeypatch):
    begun = threading.Barrier(3)

    class Slow(sources.Source):
        def look(self):
            return sources.Look("1", [sources.File(name, 1) for name in ("bad", "long", "longer")])

        def fetch(self, file, folder):
            begun.wait(LIMIT)
            if file.name == "bad":
                raise DataError("it is bad")
            assert self.stopped.wait(LIMIT)

    monkeypatch.setattr(sources, "of", lambda entry: Slow(entry["where"]))
    with pytest.raises(DataError, match="--data slow: it is bad"):
        provide.provide(header(tmp_path, {"name": "slow", "where": "x://y"}), str(tmp_path), 0)


def test_other_nodes_may_take_as_long_as_the_data_is_big(server, tmp_path, facts):
    entry = {"name": "web", "where": server.url("blob.bin")}
    path_entry = {"name": "there", "where": "", "path": str(tmp_path)}
    assert provide.provide(header(tmp_path, path_entry), str(tmp_path), 0) == 0
    assert 0 < provide.provide(header(tmp_path, path_entry, entry), str(tmp_path), 0) < 1
    many = [{"name": f"{number}", "where": server.url("empty")} for number in range(3)]
    assert provide.provide(header(tmp_path, *many), str(tmp_path), 0) == 0


def test_what_lies_on_the_node_is_led_to_or_refused(tmp_path, facts):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "one.txt").write_text("one")
    entries = (
        {"name": "folder", "where": "./here", "path": str(tmp_path / "here")},
        {"name": "file", "where": "./here/one.txt", "path": str(tmp_path / "here" / "one.txt")},
    )
    provide.provide(header(tmp_path, *entries), str(tmp_path / "node"), 0)
    assert places()["folder"] == str(tmp_path / "here")
    assert (tmp_path / "node" / "data-of-file" / "one.txt").read_text() == "one"
    with pytest.raises(DataError, match="--data gone: there is no /nowhere on this node"):
        provide.provide(header(tmp_path, {"name": "gone", "where": "", "path": "/nowhere"}), str(tmp_path), 0)


def test_a_folder_that_was_sent_is_checked_by_digest(tmp_path, facts):
    import hashlib

    store = tmp_path / "store"
    store.mkdir()
    file_digest = hashlib.sha256(b"one").hexdigest()
    (store / file_digest).write_bytes(b"one")
    listed = json.dumps([["a/one.txt", 3, file_digest]]).encode()
    digest = hashlib.sha256(listed).hexdigest()
    (store / digest).write_bytes(listed)
    entry = {
        "name": "big",
        "where": "./big",
        "list": {"url": str(store / digest), "sha256": digest, "size": len(listed)},
    }
    provide.provide(header(tmp_path, entry), str(tmp_path), 0)
    with open(places()["big"] + "/a/one.txt") as file:
        assert file.read() == "one"

    (store / file_digest).write_bytes(b"two")
    with contextlib.suppress(FileNotFoundError):
        os.chmod(places()["big"], 0o755)
        os.rename(places()["big"], tmp_path / "away")
    with pytest.raises(DataError, match="isn't what was sent"):
        provide.provide(header(tmp_path, entry), str(tmp_path), 0)


def test_a_pattern_may_have_a_plus():
    filtered = FilteredUrl.parse("hf://org/model?include=model+lora.bin,a%20b&exclude=c+d")
    assert filtered.include == ("model+lora.bin", "a b")
    assert filtered.exclude == ("c+d",)
