"""``checkpoint_dir()`` and ``attempt()``: how a rank goes on where the attempt before it ended."""

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
PARTIAL = ".nbtorchjob-partial"  # of a file on its way, in the store as here
BESIDE = ".nbtorchjob-"  # what is kept among the checkpoints, and is none
EVERY_S = 5.0  # of work at most is lost with a machine

_IN_A_NOTEBOOK = "checkpoint_dir() is for ranks, and this isn't one: call it in what the job runs"
_NOWHERE = (
    "checkpoint_dir(): this job has no place that survives its pods; give it one by "
    "--checkpoints PATH (below a --mount) or --checkpoints URL"
)


def attempt() -> int:
    """Return the number of this attempt of the job, from 1; see ``Retry`` for what starts another.

    Restarts in place (``max_restarts``) don't count; torch does that, in TORCHELASTIC_RESTART_COUNT. Nor do
    preemptions by Kueue (0.19), which tells the next pods only what it told the former ones.
    """
    return int(os.environ.get(ATTEMPT) or 1)


def checkpoint_dir() -> Path:
    """Return the folder whose files the job's next attempt will find there.

    All nodes share it, but where it goes to a store (``--checkpoints URL``): then each node has its own
    copy, made from the store when a rank first asks, and what changes in it is sent every few seconds and
    when the node ends, each file once nobody has it open for writing. The idea is that of flytekit's
    ``Checkpoint`` (1.16).

    Raises ``RuntimeError`` in a notebook and where the job has no such folder; what the store raises.
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
    """Return where the files of :func:`checkpoint_dir` lie on this node; "" where the job has none."""
    target = os.environ.get(CHECKPOINTS, "")
    return _folder() if _is_url(target) else target


def shared() -> bool:
    """Return whether all nodes have one folder of checkpoints."""
    return not _is_url(os.environ.get(CHECKPOINTS, ""))


def in_store(path: str) -> bool:
    """Return whether files in a folder go to the store of this job's checkpoints."""
    inside = os.path.abspath(path).startswith(os.path.join(os.path.abspath(_folder()), ""))
    return inside and _is_url(os.environ.get(CHECKPOINTS, ""))


def unsent(path: str) -> Set[str]:
    """Return the files below a folder that are still to be sent to the store, by their relative paths."""
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
    from nbtorchjob.runtime.api.mirror import Mirror  # late: it travels only where there is a store

    return Mirror(url, folder)


def _is_url(target: str) -> bool:
    return "://" in target


def _folder() -> str:
    return os.path.join(os.environ.get(FOLDER) or tempfile.gettempdir(), "checkpoints")


def beside(name: str) -> str:
    """Return a folder of that name among the checkpoints, which survives this node's pod; "" for none.

    It is this job's own, though jobs that resume each other may share their checkpoints. On the user's own
    machine a node's folder survives anyway.
    """
    if not os.environ.get(CHECKPOINTS) or STREAM not in os.environ:
        return ""
    return os.path.join(folder(), "%s%s-%s" % (BESIDE, name, run()))


def fetched(name: str) -> str:
    """Return the same with what earlier attempts have left there. Raises what the store raises."""
    target, place = os.environ.get(CHECKPOINTS, ""), beside(name)
    if place and _is_url(target) and injected_attempt() > 1:
        _mirror(target, _folder()).fill(os.path.basename(place))
    return place


class Saved:
    """What ranks save, where nothing of it is to be sent."""

    held = False  # nothing is sent by itself: what ranks save now belongs together

    def send(self, may_place: Callable[[], bool]) -> None:
        """Send what is left, whoever wrote having ended; it takes its place if ``may_place`` says so then."""

    def finish(self) -> None:
        """Send what is left, and end."""


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

    Where that is a store, what has changed is sent every ``every_s`` seconds, and at the end.
    Ranks may end in any way, by SIGKILL too: it is the node that sends what they wrote. Raises
    ``PayloadError`` where they can't be written from here: before hours of work.
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
    """Return where a pool's job of that id has its checkpoints, below those of the pool; "" for none."""
    target = os.environ.get(CHECKPOINTS, "")
    return "%s/%s" % (target.rstrip("/"), id_) if target else ""


@contextmanager
def unstopped() -> Iterator[None]:
    """Have a signal to end wait: whoever sent it kills who takes too long."""
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
    """Sends what changed, now and then and at the end."""

    def __init__(self, mirror: Mirror, url: str, every_s: float) -> None:
        super().__init__(daemon=True, name="checkpoints")
        self._mirror = mirror
        self._url = url
        self._every_s = every_s
        self._ended = threading.Event()
        self._said = ""

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
        if not self.held:  # who was ended as it saved may have left half of what belongs together
            self._send(ended=True)

    def _send(self, *, ended: bool = False, may_place: Callable[[], bool] = lambda: True) -> None:
        try:
            self._mirror.send(ended=ended, held=lambda: self.held, may_place=may_place)
        except Exception as exc:  # whatever a store's library raises; the next time may be better
            text = "checkpoints of node %d can't be sent to %s: %s: %s" % (
                *(node_index(), self._url),
                *(type(exc).__name__, exc),
            )
            if text != self._said:
                emit("Notice", text=text)
            self._said = text
