"""Files on web servers, which come piece by piece, however often the connection is cut."""

from __future__ import annotations

import email.utils
import os
import ssl
import time
import urllib.error
import urllib.request
from http.client import HTTPException, InvalidURL
from typing import Any, Dict, Optional
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from nbtorchjob.runtime.data.sources import PART, DataError, File, Look, Source, target
from nbtorchjob.runtime.facts import exits

_PIECE = 1 << 20
_WAIT_S = 30.0  # for a server to say something
_LATER = (408, 425, 429)  # and all above 499
_LONGEST_S = 300.0  # that a server may ask to wait: the Hub counts requests of five minutes


class Page:
    """What lies at an address. ``credentials`` says what to do where they are missing."""

    def __init__(self, address: str, token: str = "", credentials: str = "check it") -> None:
        self._address = address
        self._token = token
        self._credentials = credentials

    def open(self, headers: Dict[str, str]) -> Any:
        """Send a request; return the response, whose status may be 416, too. Raises ``DataError``."""
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
        except InvalidURL as exc:
            raise DataError("%s is no address: %s" % (shown(self._address), exc)) from None
        except (OSError, HTTPException) as exc:
            reason = getattr(exc, "reason", None) or exc
            if isinstance(reason, ssl.SSLCertVerificationError):
                text = "%s has no certificate that is trusted here: %s"
                raise DataError(text % (shown(self._address), reason)) from None
            raise DataError.later("%s can't be reached: %s" % (shown(self._address), reason)) from None

    def read(self, response: Any, size: Optional[int] = None) -> bytes:
        """Return the next bytes of a response, all that are left without ``size``. Raises ``DataError``."""
        try:
            piece: bytes = response.read(size)
        except (OSError, HTTPException) as exc:
            raise DataError.later("%s was cut off: %s" % (shown(self._address), exc)) from None
        return piece


class Web(Source):
    """A single file on a web server; what was cut off goes on where it stopped, if the server can do that.

    ``page`` is where it lies, if that isn't ``where``. What lies at a ``fixed`` address never changes.
    """

    def __init__(self, where: str, page: Optional[Page] = None, *, fixed: bool = False) -> None:
        super().__init__(where)
        self._page = page or Page(where)
        self._fixed = fixed
        self._etag = self._modified = ""

    def look(self) -> Look:
        """See the base class. A first byte is asked for: signed URLs refuse HEAD."""
        with self.patiently(lambda: self._page.open({"Range": "bytes=0-0"})) as response:
            headers = response.headers
            total = headers.get("Content-Range", "").rpartition("/")[2]
            size = total if response.status in (206, 416) else headers.get("Content-Length", "")
        self._etag, self._modified = headers.get("ETag", ""), headers.get("Last-Modified", "")
        name = os.path.basename(unquote(urlsplit(self.where).path)) or "data"
        version = self._etag or (self._modified and "%s %s" % (self._modified, size))
        return Look(version, [File(name, int(size) if size.isdigit() else None)])

    def fetch(self, file: File, folder: str) -> None:
        """See the base class."""
        path = target(file, folder)
        with open(path + PART, "ab") as out:
            self.patiently(lambda: self._read_on(out, file.size), out.tell)
        os.replace(path + PART, path)

    def _read_on(self, out: Any, size: Optional[int]) -> None:
        """Append what is missing."""
        have = out.tell()
        if size is not None and have == size:
            return
        # A weak ETag (W/…) isn't one that ranges can be compared by (RFC 9110, 13.1.5).
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
                raise DataError.later("%s begins elsewhere" % shown(self.where))
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
        if expected is not None and out.tell() != expected:
            raise DataError.later("%s was cut off after %d bytes" % (shown(self.where), out.tell()))


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but shows a token to no other host; 308 is new in Python 3.11."""

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
        name = "nothing lies at %s (%d): check the name" % (shown(where), status)
        login = "%s: it is private, or the credentials are missing or wrong: %s" % (text, credentials)
        error = DataError(login if status < 404 else name)
        error.hidden = True
        return error
    if status in _LATER or status > 499:
        return DataError.later(text, _wait(headers))
    return DataError(text)


def _wait(headers: Any) -> float:
    """Return how many seconds a server asks to wait: a number, or until a date (RFC 9110, 10.2.3)."""
    text = str((headers or {}).get("Retry-After") or "0")
    try:
        seconds = (
            float(text)
            if text.isdigit()
            else email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        )
    except (TypeError, ValueError):  # the one before Python 3.10
        seconds = 0.0
    return min(max(seconds, 0.0), _LONGEST_S)
