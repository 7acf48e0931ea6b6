"""Repositories of the Hugging Face Hub, with and without its library."""

from __future__ import annotations

import importlib
import json
import os
import re
from typing import Any, List, NamedTuple, Tuple
from urllib.parse import quote, unquote, urlsplit

from nbtorchjob.runtime.data.sources import FULL, DataError, File, Filtered, Look, Source
from nbtorchjob.runtime.data.web import Page, Web, refused

_HUB = "https://huggingface.co"
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_CREDENTIALS = "set HF_TOKEN with --secret-env HF_TOKEN"
# As fsspec's hf:// has it: NAME or ORG/NAME, a revision, and what is below. Some revisions have slashes.
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
        """What stands in front of its id in the addresses of files."""
        return "" if self.kind == "model" else self.kind + "s/"


def _hub_url() -> str:
    return (os.environ.get("HF_ENDPOINT") or _HUB).rstrip("/")


def hub(where: str) -> "Hub":
    """Return the source of a repository: through huggingface_hub where it is installed."""
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
            raise DataError.later("%s answers without a list of files: %r" % (address, exc)) from None

    def _page(self, address: str) -> Page:
        return Page(address, self._token, _CREDENTIALS)

    def _named(self, exc: DataError) -> DataError:
        """Return an error with the repository's name in place of an address of the Hub's API."""
        if exc.hidden:
            # To whom it isn't shown, a private repository is one that doesn't exist.
            what = "%s %s at %s" % (self._repo.kind, self._repo.id, self._repo.revision)
            hint = "check the name, or, if it is private or gated, " + _CREDENTIALS
            return DataError("the Hub shows no %s: %s" % (what, hint))
        return exc


class LibraryHub(Hub):
    """The same through huggingface_hub, which knows the Hub's faster ways."""

    notes = ".cache/huggingface"

    def __init__(self, where: str, library: Any) -> None:
        super().__init__(where)
        self._library = library

    def fetch(self, file: File, folder: str) -> None:
        """See the base class."""
        try:
            self.patiently(lambda: self._download(file, folder))
        except DataError as exc:
            raise self._named(exc) from None

    def _listed(self) -> Tuple[str, List[File]]:
        repo = self._repo
        try:
            repository = self._library.HfApi().repo_info(
                repo.id, repo_type=repo.kind, revision=repo.revision, files_metadata=True
            )
        except Exception as exc:  # the library's own, whatever its version calls them
            raise self._error(exc) from None
        return str(repository.sha), [File(row.rfilename, row.size) for row in repository.siblings or ()]

    def _download(self, file: File, folder: str) -> None:
        try:
            self._library.hf_hub_download(
                self._repo.id,
                file.name,
                repo_type=self._repo.kind,
                revision=self._commit,
                local_dir=folder,
            )
        except Exception as exc:  # as above
            # Only what this machine's files raise names one.
            if isinstance(exc, OSError) and (exc.errno in FULL or exc.filename is not None):
                raise
            raise self._error(exc) from None

    def _error(self, exc: Exception) -> DataError:
        cause: Any = exc
        while cause is not None:  # what the library raises of a file may only tell of its cause
            response = getattr(cause, "response", None)
            status = getattr(response, "status_code", None)
            if isinstance(status, int):
                headers = getattr(response, "headers", None)
                return refused(self._filtered.url, status, headers, _CREDENTIALS)
            cause = cause.__cause__ or cause.__context__
        text = "%s can't be had: %s" % (self._filtered.url, " ".join(str(exc).split())[:300])
        if type(exc) is ValueError or type(exc).__name__ in ("HFValidationError", "OfflineModeIsEnabled"):
            return DataError(text)
        return DataError.later(text)
