"""Where data comes from: the web, a store of objects, the Hugging Face Hub, or what was sent with the job.

A source first says what there is (``look``): each file with its size, and a version that changes with the
content. Then it fetches one file at a time. All of it works with the standard library alone, apart from
stores, which need fsspec and its driver; huggingface_hub is used where it is installed.
"""

from __future__ import annotations

import abc
import errno
import fnmatch
import hashlib
import importlib
import json
import os
import socket
import ssl
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any, Dict, List, NamedTuple, Optional, Tuple
from urllib.parse import parse_qs, quote, unquote, urlsplit, urlunsplit

from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.store import store
from nbtorchjob.runtime.store.payload import PayloadError

PART = ".nbtorchjob-part"  # of a file on its way
_PIECE = 1 << 20
_WAIT_S = 30.0  # for a server to say something
_TRIES = 5  # in a row that bring nothing
_AGAIN_S = 1.0
_LATER = (408, 425, 429)  # and all above 499
FULL = (errno.ENOSPC, errno.EDQUOT)
_HUB = "https://huggingface.co"
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


class DataError(PayloadError):
    """Data can't be had; ``code`` is what its node ends with: another try may help, or not."""

    def __init__(self, text: str, code: int = exits.CONFIG_ERROR) -> None:
        super().__init__(text)
        self.code = code


class File(NamedTuple):
    """A file of a source by its relative path; ``size`` is None where nobody says it."""

    name: str
    size: Optional[int]


class Look(NamedTuple):
    """What a source has. Without a ``version`` nobody can tell whether a copy is still current."""

    version: str
    files: List[File]

    @property
    def size(self) -> Optional[int]:
        """All bytes, if they are known."""
        sizes = [file.size for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)


class Source(abc.ABC):
    """One place that data comes from."""

    def __init__(self, where: str) -> None:
        self.where = where

    @abc.abstractmethod
    def look(self) -> Look:
        """Say what there is; raises ``DataError``."""

    @abc.abstractmethod
    def fetch(self, file: File, folder: str) -> None:
        """Bring a file below a folder, whole or not at all; raises ``DataError`` and ``OSError``."""


def of(entry: Dict[str, Any]) -> Source:
    """Return the source of an entry of the payload's header: ``where``, or the ``list`` of what was sent."""
    where = str(entry["where"])
    if "list" in entry:
        return Sent(where, entry["list"])
    scheme = urlsplit(where).scheme
    if scheme in ("http", "https"):
        return Web(where)
    return _hub(where) if scheme == "hf" else Store(where)


class Web(Source):
    """A single file on a web server; what was cut off goes on where it stopped, if the server can do that."""

    def __init__(self, where: str, token: str = "") -> None:
        super().__init__(where)
        self._token = token
        self._etag = self._modified = ""

    def look(self) -> Look:
        """See the base class. A first byte is asked for: signed URLs refuse HEAD."""
        with self._opened({"Range": "bytes=0-0"}, patient=True) as response:
            headers = response.headers
            total = headers.get("Content-Range", "").rpartition("/")[2]
            size = total if response.status in (206, 416) else headers.get("Content-Length", "")
        self._etag, self._modified = headers.get("ETag", ""), headers.get("Last-Modified", "")
        name = os.path.basename(unquote(urlsplit(self.where).path)) or "data"
        version = self._etag or (self._modified and "%s %s" % (self._modified, size))
        return Look(version, [File(name, int(size) if size.isdigit() else None)])

    def fetch(self, file: File, folder: str) -> None:
        """See the base class."""
        target = os.path.join(folder, *file.name.split("/"))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        failures = 0
        with open(target + PART, "ab") as out:
            while True:
                before = out.tell()
                try:
                    whole = self._read_on(out, file.size)
                    why: object = "it ended after %d bytes" % out.tell()
                except (urllib.error.URLError, HTTPException, ConnectionError, socket.timeout) as exc:
                    whole, why = False, getattr(exc, "reason", None) or exc
                if whole:
                    break
                failures = failures + 1 if out.tell() <= before else 0
                if failures == _TRIES:
                    text = "%s was cut off %d times: %s" % (shown(self.where), _TRIES, why)
                    raise DataError(text, exits.RECOVERABLE_ERROR)
                time.sleep(_AGAIN_S * failures)
        os.replace(target + PART, target)

    def _read_on(self, out: Any, size: Optional[int]) -> bool:
        """Append what is missing; return whether the file is whole."""
        have = out.tell()
        if size is not None and have == size:
            return True
        # A weak ETag (W/…) isn't one that ranges can be compared by (RFC 9110, 13.1.5).
        same = self._modified if self._etag.startswith("W/") else self._etag or self._modified
        headers = {"Range": "bytes=%d-" % have, "If-Range": same} if have and same else {}
        with self._opened(headers) as response:
            continues = response.headers.get("Content-Range", "").startswith("bytes %d-" % have)
            if have and not (response.status == 206 and continues):
                out.seek(0)
                out.truncate()
            now = response.headers.get("ETag", "")
            if self._etag and now and now != self._etag:
                raise DataError(
                    "%s changed while it was fetched" % shown(self.where), exits.RECOVERABLE_ERROR
                )
            length = response.headers.get("Content-Length", "")
            expected = size if size is not None else out.tell() + int(length) if length.isdigit() else None
            while True:
                piece = response.read(_PIECE)
                if not piece:
                    return expected is None or out.tell() == expected
                out.write(piece)

    def _opened(self, headers: Dict[str, str], *, patient: bool = False) -> Any:
        """Send a request. Raises ``DataError``, and what a connection raises unless ``patient``."""
        request = urllib.request.Request(self.where, headers={"User-Agent": "nbtorchjob", **headers})
        if self._token:
            request.add_header("Authorization", "Bearer " + self._token)
        failures = 0
        while True:
            try:
                return _opener().open(request, timeout=_WAIT_S)
            except urllib.error.HTTPError as exc:
                if exc.code == 416:
                    return exc  # an empty file has no first byte
                exc.close()
                error = refused(self.where, exc.code)
                if error.code == exits.CONFIG_ERROR or not patient:
                    raise error from None
            except (urllib.error.URLError, HTTPException, ConnectionError, socket.timeout) as exc:
                reason = getattr(exc, "reason", None) or exc
                if isinstance(reason, ssl.SSLCertVerificationError):
                    raise DataError(
                        "%s has no certificate that is trusted here: %s" % (self.where, reason)
                    ) from None
                if not patient:
                    raise
                error = DataError(
                    "%s can't be reached: %s" % (shown(self.where), reason), exits.RECOVERABLE_ERROR
                )
            failures += 1
            if failures == _TRIES:
                raise error
            time.sleep(_AGAIN_S * failures)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but shows a token to no other host; 308 is new in Python 3.11."""

    def http_error_308(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        return self.http_error_307(req, fp, 307, msg, headers)

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and urlsplit(newurl).netloc != urlsplit(req.full_url).netloc:
            new.remove_header("Authorization")
        return new


def _opener() -> Any:
    return urllib.request.build_opener(_Redirects)


def shown(where: str) -> str:
    """Return a URL without its query, which may be a signature."""
    return urlunsplit(urlsplit(where)._replace(query="", fragment=""))


def refused(where: str, status: int) -> DataError:
    """Return the error for a server's refusal."""
    text = "%s answers %d" % (shown(where), status)
    if status in (404, 410):
        return DataError("nothing lies at %s (%d): check the name" % (shown(where), status))
    if status in (401, 403):
        how = (
            "set HF_TOKEN with --secret-env HF_TOKEN" if where.startswith(("hf:", _hub_url())) else "check it"
        )
        return DataError("%s: it is private, or the credentials are missing or wrong: %s" % (text, how))
    later = status in _LATER or status > 499
    return DataError(text, exits.RECOVERABLE_ERROR if later else exits.CONFIG_ERROR)


class Filtered(NamedTuple):
    """A URL, and which of its files are wanted: ``?include=*.json,*.safetensors&exclude=*.bin``."""

    url: str
    include: Tuple[str, ...]
    exclude: Tuple[str, ...]

    @classmethod
    def parse(cls, where: str) -> "Filtered":
        """Take the patterns off a URL."""
        parts = urlsplit(where)
        query = parse_qs(parts.query)
        wanted, unwanted = (
            tuple(pattern for text in query.get(key, ()) for pattern in text.split(",") if pattern)
            for key in ("include", "exclude")
        )
        return cls(urlunsplit(parts._replace(query="")), wanted, unwanted)

    def has(self, name: str) -> bool:
        """Return whether a file is wanted."""
        wanted = not self.include or any(fnmatch.fnmatch(name, pattern) for pattern in self.include)
        return wanted and not any(fnmatch.fnmatch(name, pattern) for pattern in self.exclude)

    def kept(self, files: List[File], where: str) -> List[File]:
        """Return the wanted files; raises ``DataError`` where there are none, or one that leads elsewhere."""
        kept = sorted(file for file in files if self.has(file.name))
        if not kept:
            why = "no file matches" if files else "no file lies there"
            raise DataError("%s: %s" % (where, why))
        for file in kept:
            if {"", ".", ".."} & set(file.name.split("/")):
                raise DataError("%s has a file that leads out of it: %r" % (where, file.name[:200]))
        return kept


class Store(Source):
    """An object, or all below a prefix, in a store that fsspec knows."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self._filtered = Filtered.parse(where)
        self._root = ""
        self._fs: Any = None
        self._single = False

    def look(self) -> Look:
        """See the base class."""
        url = self._filtered.url
        with _store_errors(url):
            core: Any = importlib.import_module("fsspec.core")
            self._fs, root = core.url_to_fs(url)
            self._root = root.rstrip("/")
            self._single = not url.endswith("/") and self._fs.isfile(self._root)
            if self._single:
                infos = {self._root.rpartition("/")[2]: self._fs.info(self._root)}
            else:
                self._fs.ls(self._root, detail=False)  # ``find`` takes what can't be had for empty (2026.9)
                found = self._fs.find(self._root, detail=True)
                infos = {path[len(self._root) :].lstrip("/"): info for path, info in found.items()}
        files = [File(name, info.get("size")) for name, info in infos.items() if name]
        kept = self._filtered.kept(files, url)
        marks = [[name, _mark(infos[name])] for name, _ in kept]
        return Look(hashlib.sha256(json.dumps(marks).encode()).hexdigest(), kept)

    def fetch(self, file: File, folder: str) -> None:
        """See the base class."""
        target = os.path.join(folder, *file.name.split("/"))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        path = self._root if self._single else "%s/%s" % (self._root, file.name)
        with _store_errors("%s/%s" % (self._filtered.url, file.name)):
            self._fs.get_file(path, target + PART)
        if file.size is not None and os.path.getsize(target + PART) != file.size:
            raise DataError("%s changed while it was fetched" % path, exits.RECOVERABLE_ERROR)
        os.replace(target + PART, target)


def _mark(info: Dict[str, Any]) -> str:
    """Return what changes with an object's content, as its store says it."""
    known = (
        "ETag",
        "etag",
        "md5Hash",
        "content_settings",
        "LastModified",
        "updated",
        "last_modified",
        "mtime",
    )
    return "%s %s" % (info.get("size"), next((info[key] for key in known if info.get(key)), ""))


class _store_errors:
    """Turns what a store's library raises into one line."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        return

    def __exit__(self, type_: Any, exc: Optional[BaseException], trace: Any) -> None:
        if exc is None or not isinstance(exc, Exception) or isinstance(exc, DataError):
            return
        name, url = type(exc).__name__, self._url
        if isinstance(exc, ImportError):
            scheme = urlsplit(url).scheme
            driver = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}.get(
                scheme, ""
            )
            need = " ".join(filter(None, ("fsspec", driver)))
            raise DataError(
                "%s needs %s, which this node lacks (%s): install it with --package %s"
                % (url, need, exc, driver or "fsspec")
            ) from None
        if isinstance(exc, FileNotFoundError) or "NoSuchBucket" in str(exc):
            raise DataError("nothing lies at %s: check the name" % url) from None
        if isinstance(exc, PermissionError) or "Credentials" in name or "Forbidden" in name:
            how = "pass them with --secret-env or --env-from"
            raise DataError(
                "%s: credentials are missing or wrong (%s: %s): %s" % (url, name, exc, how)
            ) from None
        if isinstance(exc, OSError) and exc.errno in FULL:  # a full disk of this node
            return
        final = isinstance(exc, ValueError)
        code = exits.CONFIG_ERROR if final else exits.RECOVERABLE_ERROR
        raise DataError("%s can't be had: %s: %s" % (url, name, exc), code) from None


class Sent(Source):
    """A folder of the notebook, whose files lie in the job's store by their digests."""

    def __init__(self, where: str, listed: Dict[str, Any]) -> None:
        super().__init__(where)
        self._listed = listed
        self._rows: Dict[str, Tuple[int, str, str]] = {}

    def look(self) -> Look:
        """See the base class; the list of files was signed with the payload, by its digest."""
        url, sha256, size = self._listed["url"], self._listed["sha256"], self._listed["size"]
        with _store_errors(url), store.opened(url) as file:
            text = file.read(size + 1)
        if hashlib.sha256(text).hexdigest() != sha256:
            raise DataError("%s at %s isn't what was sent: remove it there" % (self.where, url))
        for name, count, digest in json.loads(text.decode()):
            self._rows[name] = (count, digest, "%s/%s" % (url.rpartition("/")[0], digest))
        return Look(sha256, [File(name, row[0]) for name, row in self._rows.items()])

    def fetch(self, file: File, folder: str) -> None:
        """See the base class."""
        size, digest, url = self._rows[file.name]
        target = os.path.join(folder, *file.name.split("/"))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target + PART, "wb") as out, _store_errors(url):
            sha256 = store.digest(url, out, size)
        if sha256 != digest:
            raise DataError("%s at %s isn't what was sent: remove it there" % (file.name, url))
        os.replace(target + PART, target)


class _Repo(NamedTuple):
    """A repository of the Hub, and the folder or file in it that is wanted."""

    kind: str  # dataset, model or space
    id: str
    revision: str
    below: str

    @classmethod
    def parse(cls, url: str) -> "_Repo":
        parts = urlsplit(url)
        words = [parts.netloc, *filter(None, parts.path.split("/"))]
        kind = "model"
        if words[0] in ("datasets", "models", "spaces"):
            kind = words.pop(0)[:-1]
        if not any(words):
            raise DataError("%s names no repository: hf://datasets/ORG/NAME or hf://ORG/MODEL" % url)
        name = words[:2]
        revision = ""
        for index, word in enumerate(name):
            if "@" in word:
                name[index], _, revision = word.partition("@")
                name = name[: index + 1]
                break
        return cls(kind, "/".join(name), revision or "main", "/".join(words[len(name) :]))

    @property
    def path(self) -> str:
        """What stands in front of its id in the addresses of files."""
        return "" if self.kind == "model" else self.kind + "s/"


def _hub_url() -> str:
    return (os.environ.get("HF_ENDPOINT") or _HUB).rstrip("/")


def _hub(where: str) -> "Hub":
    try:
        library = importlib.import_module("huggingface_hub")
    except ImportError:
        return Hub(where)
    return LibraryHub(where, library)


class Hub(Source):
    """A repository of the Hugging Face Hub, at the commit that its revision stands for now."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self._filtered = Filtered.parse(where)
        self._repo = _Repo.parse(self._filtered.url)
        self._token = next((os.environ[name] for name in _TOKENS if os.environ.get(name)), "")
        self._commit = ""

    def look(self) -> Look:
        """See the base class."""
        self._commit, files = self._listed()
        below = self._repo.below
        if below:
            files = [file for file in files if file.name == below or file.name.startswith(below + "/")]
        return Look(self._commit, self._filtered.kept(files, self._filtered.url))

    def _listed(self) -> Tuple[str, List[File]]:
        repo = self._repo
        address = "%s/api/%ss/%s/revision/%s?blobs=true" % (
            *(_hub_url(), repo.kind, repo.id),
            quote(repo.revision, safe=""),
        )
        page = Web(address, self._token)
        try:
            with page._opened({}, patient=True) as response:
                told = json.loads(response.read().decode())
        except DataError as exc:
            raise self._named(exc) from None
        return str(told["sha"]), [File(row["rfilename"], row.get("size")) for row in told["siblings"]]

    def _named(self, exc: DataError) -> DataError:
        """Return an error with the repository's name in place of an address of the Hub's API."""
        text = str(exc)
        if "nothing lies" in text or "private" in text:
            # To whom it isn't shown, a private repository is one that doesn't exist.
            what = "%s %s at %s" % (self._repo.kind, self._repo.id, self._repo.revision)
            hint = "check the name, or, if it is private or gated, set HF_TOKEN with --secret-env HF_TOKEN"
            return DataError("the Hub shows no %s: %s" % (what, hint))
        return exc

    def fetch(self, file: File, folder: str) -> None:
        """See the base class."""
        address = "%s/%s%s/resolve/%s/%s" % (
            *(_hub_url(), self._repo.path, self._repo.id),
            *(self._commit, quote(file.name)),
        )
        Web(address, self._token).fetch(file, folder)


class LibraryHub(Hub):
    """The same through huggingface_hub, which knows the Hub's faster ways."""

    def __init__(self, where: str, library: Any) -> None:
        super().__init__(where)
        self._library = library

    def _listed(self) -> Tuple[str, List[File]]:
        repo = self._repo
        try:
            told = self._library.HfApi().repo_info(
                repo.id, repo_type=repo.kind, revision=repo.revision, files_metadata=True
            )
        except Exception as exc:  # the library's own, whatever its version calls them
            raise self._named(self._error(exc)) from None
        return str(told.sha), [File(row.rfilename, row.size) for row in told.siblings or ()]

    def fetch(self, file: File, folder: str) -> None:
        """See the base class."""
        try:
            self._library.hf_hub_download(
                self._repo.id,
                file.name,
                repo_type=self._repo.kind,
                revision=self._commit,
                local_dir=folder,
            )
        except Exception as exc:  # as above
            if isinstance(exc, OSError) and exc.errno in FULL:
                raise
            raise self._named(self._error(exc)) from None

    def _error(self, exc: Exception) -> DataError:
        status = getattr(getattr(exc, "response", None), "status_code", None)
        if isinstance(status, int):
            return refused(self._filtered.url, status)
        why = " ".join(str(exc).split())[:300]
        if isinstance(exc, ValueError):
            return DataError("%s: %s" % (self._filtered.url, why))
        return DataError("%s can't be had: %s" % (self._filtered.url, why), exits.RECOVERABLE_ERROR)
