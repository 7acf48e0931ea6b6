"""Data that comes over HTTP: files on web servers, and repositories of the Hugging Face Hub.

A file is fetched piece by piece, however often the connection is cut. A repository is read with the Hub's
library if that is installed, and otherwise without it.
"""

from __future__ import annotations

import email.utils
import importlib
import json
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from http.client import HTTPException, InvalidURL
from typing import Any, Dict, List, NamedTuple, Optional, Tuple
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from nbtorchjob.runtime.data.sources import (
    FULL,
    DataError,
    File,
    FilteredUrl,
    Look,
    Source,
    left,
    part_of,
    target,
)
from nbtorchjob.runtime.facts import exits

_PIECE = 1 << 16  # what a connection that breaks loses at most
_WAIT_S = 30.0  # for a server to respond
_LATER = (408, 425, 429)  # and all above 499
_LONGEST_S = 300.0  # wait that a server may request: the Hub counts requests per five minutes


class Page:
    """The content at an address. ``credentials`` says what to do if credentials are missing."""

    def __init__(self, address: str, token: str = "", credentials: str = "check it") -> None:
        self._address = address
        self._token = token
        self._credentials = credentials

    def open(self, headers: Dict[str, str]) -> Any:
        """Send a request; return the response, whose status may also be 416. Raises ``DataError``."""
        url = quote(self._address, safe="%/:=&?~#+!$,;'@()*[]")
        request = urllib.request.Request(url, headers={"User-Agent": "nbtorchjob", **headers})
        if self._token:
            request.add_header("Authorization", "Bearer " + self._token)
        try:
            return urllib.request.build_opener(_Redirects).open(request, timeout=_WAIT_S)
        except urllib.error.HTTPError as exc:
            if exc.code == 416:
                return exc  # an empty file has no first byte
            exc.close()
            raise refused(self._address, exc.code, exc.headers, self._credentials) from None
        except (InvalidURL, ValueError) as exc:  # its own, or one that a server leads to
            raise DataError("%s isn't a valid address: %s" % (shown(self._address), exc)) from None
        except (OSError, HTTPException) as exc:
            reason = getattr(exc, "reason", None) or exc
            if isinstance(reason, ssl.SSLCertVerificationError):
                text = "%s has no certificate that is trusted here: %s"
                raise DataError(text % (shown(self._address), reason)) from None
            raise DataError.later("%s can't be reached: %s" % (shown(self._address), reason)) from None

    def read(self, response: Any, size: Optional[int] = None) -> bytes:
        """Return the next bytes of a response, or all that are left. Raises ``DataError``."""
        try:
            piece: bytes = response.read(size)
        except (OSError, HTTPException) as exc:
            raise DataError.later("%s was cut off: %s" % (shown(self._address), exc)) from None
        return piece


class Web(Source):
    """A single file on a web server; an interrupted transfer resumes where it stopped, if the server can.

    ``page`` is where it lies, if that isn't ``where``. The content of a ``fixed`` address never changes.
    """

    def __init__(self, where: str, page: Optional[Page] = None, *, fixed: bool = False) -> None:
        super().__init__(where)
        self._page = page or Page(where)
        self._fixed = fixed
        self._etag = self._modified = ""

    def look(self) -> Look:
        """See the base class. Requests the first byte: signed URLs refuse HEAD."""
        with self.patiently(lambda: self._page.open({"Range": "bytes=0-0"})) as response:
            headers = response.headers
            total = headers.get("Content-Range", "").rpartition("/")[2]
            size = total if response.status in (206, 416) else headers.get("Content-Length", "")
        self._etag, self._modified = headers.get("ETag", ""), headers.get("Last-Modified", "")
        name = os.path.basename(unquote(urlsplit(self.where).path))
        if name in ("", ".", "..") or "\0" in name:
            name = "data"
        version = self._etag or (self._modified and "%s %s" % (self._modified, size))
        return Look(version, [File(name, int(size) if size.isdigit() else None)])

    def fetch(self, file: File, folder: str) -> None:
        """See the base class."""
        path = target(file, folder)
        with open(part_of(path), "ab") as out:
            self.patiently(lambda: self._read_on(out, file.size), out.tell)
        os.replace(out.name, path)

    def _read_on(self, out: Any, size: Optional[int]) -> None:
        """Append what is missing."""
        have = out.tell()
        if size is not None and have == size:
            return
        # A weak ETag (W/…) can't validate a range (RFC 9110, 13.1.5).
        same = self._modified if self._etag.startswith("W/") else self._etag or self._modified
        headers = {"Range": "bytes=%d-" % have} if have and (same or self._fixed) else {}
        if headers and same:
            headers["If-Range"] = same
        with self._page.open(headers) as response:
            continues = response.headers.get("Content-Range", "").startswith("bytes %d-" % have)
            if have and not (response.status == 206 and continues):
                out.seek(0)
                out.truncate()
            if response.status not in (200, 206) or (response.status == 206 and not continues):
                raise DataError.later("%s answered with another part of the file" % shown(self.where))
            now = response.headers.get("ETag", "")
            if self._etag and now and now != self._etag:
                text = "%s changed while it was fetched" % shown(self.where)
                raise DataError(text, exits.RECOVERABLE_ERROR)
            length = response.headers.get("Content-Length", "")
            expected = size if size is not None else out.tell() + int(length) if length.isdigit() else None
            while not self.stopped.is_set():
                piece = self._page.read(response, _PIECE)
                if not piece:
                    break
                out.write(piece)
            else:
                raise left(shown(self.where))
        if expected is not None and out.tell() != expected:
            raise DataError.later("%s was cut off after %d bytes" % (shown(self.where), out.tell()))


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but sends the token to no other host; 308 is new in Python 3.11."""

    def http_error_308(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        return self.http_error_307(req, fp, 307, msg, headers)

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and urlsplit(newurl).netloc != urlsplit(req.full_url).netloc:
            new.remove_header("Authorization")
        return new


def shown(where: str) -> str:
    """Return a URL without its query, which may be a signature."""
    return urlunsplit(urlsplit(where)._replace(query="", fragment=""))


def refused(where: str, status: int, headers: Any, credentials: str) -> DataError:
    """Return the error for a server's refusal."""
    text = "%s answers %d" % (shown(where), status)
    if status in (401, 403, 404, 410):
        name = "nothing exists at %s (%d): check the name" % (shown(where), status)
        login = "%s: it is private, or the credentials are missing or wrong: %s" % (text, credentials)
        error = DataError(login if status < 404 else name)
        error.hidden = True
        return error
    if status in _LATER or status > 499:
        reason = str((headers or {}).get("Retry-After") or "0")
        try:
            seconds = (
                float(reason)
                if reason.isdigit()
                else email.utils.parsedate_to_datetime(reason).timestamp() - time.time()
            )
        except (TypeError, ValueError):  # TypeError before Python 3.10
            seconds = 0.0
        return DataError.later(text, min(max(seconds, 0.0), _LONGEST_S))
    return DataError(text)


_HUB = "https://huggingface.co"
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_CREDENTIALS = "set HF_TOKEN with --secret-env HF_TOKEN"
# As in fsspec's hf://: NAME or ORG/NAME, a revision, and a path below. Some revisions have slashes.
_PLACE = re.compile(r"([^/@]+(?:/[^/@]+)?)(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.*))?")


class _Repo(NamedTuple):
    """A repository of the Hub, and the folder or file in it that is wanted."""

    kind: str  # dataset, model or space
    id: str
    revision: str
    below: str

    @classmethod
    def parse(cls, url: str) -> "_Repo":
        parts = urlsplit(url)
        words = [*filter(None, (parts.netloc + parts.path).split("/"))]
        kind = words.pop(0)[:-1] if words[0] in ("datasets", "models", "spaces") else "model"
        place = _PLACE.fullmatch("/".join(words))
        if place is None:
            raise DataError("%s names no repository: hf://datasets/ORG/NAME or hf://ORG/MODEL" % url)
        name, revision, below = place.groups("")
        return cls(kind, name, unquote(revision) or "main", below)

    @property
    def path(self) -> str:
        """The part before its id in the addresses of files."""
        return "" if self.kind == "model" else self.kind + "s/"


def _hub_url() -> str:
    return (os.environ.get("HF_ENDPOINT") or _HUB).rstrip("/")


def hub(where: str) -> "Hub":
    """Return the source of a repository: through huggingface_hub if that is installed."""
    try:
        library = importlib.import_module("huggingface_hub")
    except ImportError:
        return Hub(where)
    return LibraryHub(where, library)


class Hub(Source):
    """A repository of the Hugging Face Hub, at the commit that its revision currently names."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self._filtered = FilteredUrl.parse(where)
        self._repo = _Repo.parse(self._filtered.url)
        token = next((os.environ[name] for name in _TOKENS if os.environ.get(name)), "")
        self._token = "".join(token.split())  # Secrets made from files end with a newline
        self._commit = ""

    def look(self) -> Look:
        """See the base class."""
        try:
            self._commit, files = self.patiently(self._listed)
        except DataError as exc:
            raise self._named(exc) from None
        below = self._repo.below
        if below:
            files = [file for file in files if file.name == below or file.name.startswith(below + "/")]
        return Look(self._commit, self._filtered.kept(files, self._filtered.url))

    def fetch(self, file: File, folder: str) -> None:
        """See the base class."""
        address = "%s/%s%s/resolve/%s/%s" % (
            *(_hub_url(), self._repo.path, self._repo.id),
            *(self._commit, quote(file.name)),
        )
        page = Web(address, self._page(address), fixed=True)
        page.stopped = self.stopped
        page.fetch(file, folder)

    def _listed(self) -> Tuple[str, List[File]]:
        """Return the commit, and its files."""
        repo = self._repo
        address = "%s/api/%ss/%s/revision/%s?blobs=true" % (
            *(_hub_url(), repo.kind, repo.id),
            quote(repo.revision, safe=""),
        )
        page = self._page(address)
        with page.open({}) as response:
            text = page.read(response)
        try:
            listing = json.loads(text.decode())
            return str(listing["sha"]), [
                File(row["rfilename"], row.get("size")) for row in listing["siblings"]
            ]
        except (ValueError, TypeError, LookupError, AttributeError) as exc:
            raise DataError.later("%s answered without a list of files: %r" % (address, exc)) from None

    def _page(self, address: str) -> Page:
        return Page(address, self._token, _CREDENTIALS)

    def _named(self, exc: DataError) -> DataError:
        """Return an error with the repository's name in place of an address of the Hub's API."""
        if exc.hidden:
            # Without access, a private repository looks like one that doesn't exist.
            repository = "%s %s at %s" % (self._repo.kind, self._repo.id, self._repo.revision)
            hint = "check the name, or, if it is private or gated, " + _CREDENTIALS
            return DataError("the Hub shows no %s: %s" % (repository, hint))
        return exc


class LibraryHub(Hub):
    """The same through huggingface_hub, which knows the Hub's faster protocols."""

    notes = ".cache/huggingface"

    def __init__(self, where: str, library: Any) -> None:
        super().__init__(where)
        self._library = library

    def fetch(self, file: File, folder: str) -> None:
        """See the base class."""

        def download() -> None:
            try:
                self._library.hf_hub_download(
                    self._repo.id,
                    file.name,
                    repo_type=self._repo.kind,
                    revision=self._commit,
                    local_dir=folder,
                )
            except Exception as exc:  # the library's own, whatever its version calls them
                # Only errors of this machine's own files have a file name.
                if isinstance(exc, OSError) and (exc.errno in FULL or exc.filename is not None):
                    raise
                raise self._error(exc) from None

        try:
            self.patiently(download)
        except DataError as exc:
            raise self._named(exc) from None

    def _listed(self) -> Tuple[str, List[File]]:
        repo = self._repo
        try:
            repository = self._library.HfApi().repo_info(
                repo.id, repo_type=repo.kind, revision=repo.revision, files_metadata=True
            )
        except Exception as exc:  # as above
            raise self._error(exc) from None
        return str(repository.sha), [File(row.rfilename, row.size) for row in repository.siblings or ()]

    def _error(self, exc: Exception) -> DataError:
        cause: Any = exc
        while cause is not None:  # for a file, the response may be in a cause of the library's error
            response = getattr(cause, "response", None)
            status = getattr(response, "status_code", None)
            if isinstance(status, int):
                headers = getattr(response, "headers", None)
                return refused(self._filtered.url, status, headers, _CREDENTIALS)
            cause = cause.__cause__ or cause.__context__
        text = "%s can't be fetched: %s" % (self._filtered.url, exc)
        if type(exc) is ValueError or type(exc).__name__ in ("HFValidationError", "OfflineModeIsEnabled"):
            return DataError(text)
        return DataError.later(text)
