"""A package index on this machine (PEP 503), which can be private, refuse and hang."""

import base64
import http.server
import threading
from collections.abc import Collection
from pathlib import Path
from urllib.parse import unquote

from nbtorchjob.runtime.install.environment import normalised

PAGE = "<!DOCTYPE html><html><body>%s</body></html>"


class Index:
    """A server of the archives in a folder, which runs while entered; ``asked`` are all requests' paths.

    ``login`` is the login that may read (``user:password``), ``yanked`` are names of files, ``code`` is the
    status that answers every request instead of a file; an index that ``hangs`` never answers.
    """

    def __init__(
        self,
        folder: Path,
        *,
        login: str = "",
        yanked: Collection[str] = (),
        code: int = 0,
        hangs: bool = False,
    ) -> None:
        self.asked: list[str] = []
        self._folder, self._yanked, self._code = folder, yanked, code
        self._login = f"Basic {base64.b64encode(login.encode()).decode()}" if login else ""
        self._hangs = hangs
        self._closing = threading.Event()

    def __enter__(self) -> "Index":
        index = self

        class Answers(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index._answer(self)

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=self._server.serve_forever).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def url(self, login: str = "") -> str:
        """Return the index's URL, which the emulator's pods reach, too; it contains the ``login``, if any."""
        user = f"{login}@" if login else ""
        return f"http://{user}localhost:{self._server.server_port}/simple"

    def _answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        self.asked.append(request.path)
        if self._hangs:
            self._closing.wait()
            return
        if self._code:
            request.send_error(self._code)
            return
        if self._login and request.headers.get("Authorization") != self._login:
            request.send_response(401)
            request.send_header("WWW-Authenticate", 'Basic realm="index"')
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        *_, folder, name = unquote(request.path).split("/")
        path = self._folder / name if folder == "files" else None
        if path is not None and path.is_file():
            self._send(request, path.read_bytes(), "application/octet-stream")
        elif path is None and (links := self._links(folder)):
            self._send(request, (PAGE % links).encode(), "text/html")
        else:
            request.send_error(404)

    def _links(self, project: str) -> str:
        names = sorted(path.name for path in self._folder.iterdir())
        return "".join(
            f'<a href="/files/{name}"{" data-yanked=" if name in self._yanked else ""}>{name}</a>'
            for name in names
            if normalised(name.partition("-")[0]) == project
        )

    @staticmethod
    def _send(request: http.server.BaseHTTPRequestHandler, data: bytes, what: str) -> None:
        request.send_response(200)
        request.send_header("Content-Type", what)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(data)
