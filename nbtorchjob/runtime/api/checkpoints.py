"""``checkpoint_dir()`` and ``attempt()``: how a rank goes on where the previous attempt ended."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Iterator, List, Set

from nbtorchjob.runtime.api.report import ROUND
from nbtorchjob.runtime.facts import emit
from nbtorchjob.runtime.facts.injected import ATTEMPT, FOLDER, STREAM, node_index, run
from nbtorchjob.runtime.facts.injected import attempt as injected_attempt
from nbtorchjob.runtime.store.payload import PayloadError

if TYPE_CHECKING:
    from nbtorchjob.runtime.api.mirror import Mirror

CHECKPOINTS = "NBTORCHJOB_CHECKPOINTS"  # an absolute path, or a URL for fsspec
PARTIAL = ".nbtorchjob-partial"  # the suffix of a file in transit, in the store as here
BESIDE = ".nbtorchjob-"  # the prefix of other folders among the checkpoints
EVERY_S = 5.0  # at most this much work is lost with a machine

_IN_A_NOTEBOOK = "checkpoint_dir() works on a rank only: call it in the code that the job runs"
_NOWHERE = (
    "checkpoint_dir(): this job has no place for checkpoints that outlives its pods; set "
    "--checkpoints PATH (below a --mount) or --checkpoints URL"
)


def attempt() -> int:
    """Return the number of this attempt of the job, from 1; see ``Retry`` for what starts another.

    Restarts in place (``max_restarts``) don't count; torch does that, in TORCHELASTIC_RESTART_COUNT. Nor do
    preemptions by Kueue (0.19), which gives the next pods only the settings that the former ones had.
    """
    return int(os.environ.get(ATTEMPT) or 1)


def checkpoint_dir() -> Path:
    """Return the folder whose files the job's next attempt will find there.

    All nodes share it, unless it goes to a store (``--checkpoints URL``): then each node has its own copy,
    filled from the store at a rank's first call, and changed files are sent every few seconds and when the
    node ends, each once no process has it open for writing. The idea is that of flytekit's ``Checkpoint``
    (1.16).

    Raises ``RuntimeError`` in a notebook and if the job has no such folder, and whatever the store raises.
    """
    target = os.environ.get(CHECKPOINTS)
    if not target:
        raise RuntimeError(_NOWHERE if ROUND in os.environ else _IN_A_NOTEBOOK)
    if _is_url(target):
        return Path(_filled(target, _folder()))
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def folder() -> str:
    """Return the path of the folder of :func:`checkpoint_dir` on this node; "" if the job has none."""
    target = os.environ.get(CHECKPOINTS, "")
    return _folder() if _is_url(target) else target


def shared() -> bool:
    """Return whether all nodes share one folder of checkpoints."""
    return not _is_url(os.environ.get(CHECKPOINTS, ""))


def in_store(path: str) -> bool:
    """Return whether files in a folder go to the store of this job's checkpoints."""
    inside = os.path.abspath(path).startswith(os.path.join(os.path.abspath(_folder()), ""))
    return inside and _is_url(os.environ.get(CHECKPOINTS, ""))


def unsent(path: str) -> Set[str]:
    """Return the relative paths of the files below a folder that are still to be sent to the store."""
    from nbtorchjob.runtime.api import mirror  # late, as below

    return mirror.unsent(_folder(), path)


def is_partial(name: str) -> bool:
    """Return whether a file of that name is on its way from or to the store."""
    return name.endswith(PARTIAL)


@lru_cache(maxsize=None)
def _filled(url: str, folder: str) -> str:
    _mirror(url, folder).fill()
    return folder


def _mirror(url: str, folder: str) -> "Mirror":
    from nbtorchjob.runtime.api.mirror import Mirror  # late: it travels only if there is a store

    return Mirror(url, folder)


def _is_url(target: str) -> bool:
    return "://" in target


def _folder() -> str:
    return os.path.join(os.environ.get(FOLDER) or tempfile.gettempdir(), "checkpoints")


def beside(name: str) -> str:
    """Return a folder of that name among the checkpoints, which survives this node's pod; "" if none does.

    It is this job's own, though jobs that resume each other may share their checkpoints. On the user's own
    machine, a node's folder survives anyway.
    """
    if not os.environ.get(CHECKPOINTS) or STREAM not in os.environ:
        return ""
    return os.path.join(folder(), "%s%s-%s" % (BESIDE, name, run()))


def fetched(name: str) -> str:
    """Return that folder, with the files that earlier attempts left there. Raises what the store raises."""
    target, place = os.environ.get(CHECKPOINTS, ""), beside(name)
    if place and _is_url(target) and injected_attempt() > 1:
        _mirror(target, _folder()).fill(os.path.basename(place))
    return place


class Saved:
    """The checkpoints that ranks save, if none of them are to be sent."""

    held = False  # if true, nothing is sent automatically: files that ranks save now belong together

    def send(self, may_place: Callable[[], bool]) -> None:
        """Send the rest once all writers have ended; files take their places if ``may_place`` allows it."""

    def finish(self) -> None:
        """Send the rest, and end."""


@contextmanager
def saving(every_s: float = EVERY_S) -> Iterator[Saved]:
    """Save the checkpoints of this node's ranks, for as long as it runs them; see :func:`sender`."""
    saved = sender(os.environ.get(CHECKPOINTS, ""), every_s)
    try:
        yield saved
    finally:
        with unstopped():
            saved.finish()


def sender(target: str, every_s: float = EVERY_S) -> Saved:
    """Begin to save the checkpoints of this node's ranks at ``target``.

    If that is a store, changed files are sent every ``every_s`` seconds, and at the end. Ranks may end in any
    way, even by SIGKILL: the node sends the files that they wrote. Raises ``PayloadError`` if checkpoints
    can't be written from here: before hours of work.
    """
    if not target:
        return Saved()
    try:
        if _is_url(target):
            mirror = _mirror(target, _folder())
        else:
            os.makedirs(target, exist_ok=True)
            if not os.access(target, os.W_OK):
                raise PermissionError("not writable for user %d" % os.getuid())
            mirror = None
    except (OSError, ImportError, ValueError) as exc:
        raise PayloadError(
            "checkpoints can't be saved at --checkpoints %s from this image: %s" % (target, exc)
        ) from exc
    if mirror is None:
        return Saved()
    thread = _Sender(mirror, target, every_s)
    thread.start()
    return thread


def of_job(id_: str) -> str:
    """Return the place of a pool job's checkpoints, below those of the pool; "" if the pool has none."""
    target = os.environ.get(CHECKPOINTS, "")
    return "%s/%s" % (target.rstrip("/"), id_) if target else ""


@contextmanager
def unstopped() -> Iterator[None]:
    """Delay signals to end until the block is left; their sender kills a process that takes too long."""
    came: List[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda got, _: came.append(got)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            os.kill(os.getpid(), came[0])


class _Sender(threading.Thread, Saved):
    """Sends changed files, now and then and at the end."""

    def __init__(self, mirror: Mirror, url: str, every_s: float) -> None:
        super().__init__(daemon=True, name="checkpoints")
        self._mirror = mirror
        self._url = url
        self._every_s = every_s
        self._ended = threading.Event()
        self._notice = ""
        self._links: Set[str] = set()  # those that were named in a notice

    def run(self) -> None:
        """See the class."""
        while not self._ended.wait(self._every_s):
            self._send()

    def send(self, may_place: Callable[[], bool]) -> None:
        """See the base class."""
        self._send(ended=True, may_place=may_place)

    def finish(self) -> None:
        """See the base class."""
        self._ended.set()
        self.join()
        if not self.held:  # a rank that was ended while saving may have left half of the files
            self._send(ended=True)

    def _send(self, *, ended: bool = False, may_place: Callable[[], bool] = lambda: True) -> None:
        try:
            self._mirror.send(ended=ended, is_held=lambda: self.held, may_place=may_place)
            for link in sorted(self._mirror.links - self._links):
                self._links.add(link)
                text = "the link %s among the checkpoints leads to a folder, and isn't sent to %s: %s"
                emit("Notice", text=text % (link, self._url, "write its target's name into a file instead"))
        except Exception as exc:  # whatever a store's library raises; the next time may be better
            text = "checkpoints of node %d can't be sent to %s: %s: %s" % (
                *(node_index(), self._url),
                *(type(exc).__name__, exc),
            )
            if text != self._notice:
                emit("Notice", text=text)
            self._notice = text
