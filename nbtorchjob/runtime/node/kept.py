"""The payloads that a node receives while its ranks run: a lab's turns, and swaps.

The node keeps swaps that stay for later attempts: payloads by number, in its folder.

If that folder goes with the node's pod, they are kept beside the job's checkpoints, too; for a job without a
place for checkpoints, the client that swaps writes them to a Secret. Others may write to these places, so
payloads from there are first copied, then checked.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import stat
from contextlib import contextmanager, suppress
from typing import Any, Callable, Iterable, Iterator, List, Optional

from nbtorchjob.runtime.api import checkpoints
from nbtorchjob.runtime.api.points import KEPT
from nbtorchjob.runtime.ask.answering import Question, Refused
from nbtorchjob.runtime.facts import emit, injected
from nbtorchjob.runtime.node import shortage
from nbtorchjob.runtime.rank import swapping
from nbtorchjob.runtime.store.payload import FILES, SWAPS, Payload, PayloadError

HEAR_S = 60.0  # for the next chunk of a payload to arrive


def received(question: Question, path: str, key: bytes) -> Payload:
    """Write a payload to ``path`` as it comes, and check it; raises ``Refused``."""
    left = int(question["size"])
    with room_for(path), open(path, "xb") as file:
        while left > 0:
            chunk = question.hear(HEAR_S)
            if not isinstance(chunk, bytes):
                raise Refused("the payload didn't arrive: nothing came for %d s" % HEAR_S)
            left -= len(chunk)
            file.write(chunk)
    try:
        payload = Payload(path)
        payload.verify(key)
    except PayloadError as exc:
        raise Refused(str(exc)) from exc
    if left:
        raise Refused("the payload is damaged: it is too long")
    return payload


@contextmanager
def room_for(path: str) -> Iterator[None]:
    """Raise ``Refused`` if the disk has no room."""
    try:
        yield
    except OSError as exc:
        if shortage.number_of(exc) not in shortage.FULL:
            raise
        exc.filename = exc.filename or path
        raise Refused("%s: %s" % (exc.strerror, shortage.limit_met(exc))) from exc


class KeptSwaps:
    """The swaps of a node, in the folder ``place``; if that is "", no later attempt begins with them.

    The node's ranks find local modules in the folder ``files``. Payloads are signed with ``key``.
    """

    def __init__(self, node: int, place: str, files: str, key: bytes) -> None:
        self.newest = 0  # the number of the newest one
        self._node = node
        self.place = place
        self._files = files
        self._key = key
        self._first = False  # whether this is the node of the round that keeps swaps beside checkpoints
        self._recovered = False

    def count(self) -> int:
        """Return how many swaps a later attempt of this node would begin with: 1, 2, … without a gap."""
        numbers = [int(os.path.basename(path).partition(".")[0]) for path in swapping.earlier(self.place)]
        return sum(number == place for place, number in enumerate(numbers, 1))

    def agree(self, store: Any, place: int, places: int, connect: Optional[Callable[[], Any]]) -> int:
        """Have all nodes of a round begin with the same swaps, the most that any node has; return how many.

        They agree in ``store``, where this node has the number ``place``. A node that lacks some receives
        them, sealed, from the first node that has all.
        """
        if self.place and not self._recovered:
            self._recovered = True
            self._recover()
        store.set("nbtorchjob/swaps/%d" % place, str(self.count()))
        counts = [int(store.get("nbtorchjob/swaps/%d" % other)) for other in range(places)]
        most = max(counts)
        if connect is not None and min(counts) < most:
            sealed = connect().below("nbtorchjob/swaps")
            for number in range(min(counts) + 1, most + 1):
                if counts.index(most) == place:
                    with open(self._path(number), "rb") as file:
                        sealed.seal("%d" % number, file.read())
                elif number > counts[place]:
                    sealed.wait(["%d" % number])
                    self._put(number, sealed.unseal("%d" % number))
        for number in range(1, most + 1):
            payload = Payload(self._path(number))
            lay(payload, self._files, payload.differing(self._files))
        self._first, self.newest = place == 0, max(self.newest, most)
        return most

    def begin_with(self, payload: Payload) -> None:
        """Take the swaps of an earlier job from the job's own payload, in their order."""
        brought = [name for name in payload.checksums() if name.startswith(SWAPS)]
        for number in range(self.count() + 1, len(brought) + 1):
            self._put(number, payload.read("%s%d" % (SWAPS, number)))

    def _put(self, number: int, data: bytes) -> None:
        os.makedirs(self.place, exist_ok=True)
        with open(self._staged(self.place), "wb") as partial:
            partial.write(data)
        os.replace(partial.name, self._path(number))

    def _recover(self) -> None:
        """Copy the swaps of earlier attempts from places that survive pods, as far as they are signed."""
        try:
            for path in [
                *swapping.earlier(checkpoints.fetched(KEPT)),
                *swapping.earlier(os.environ.get(injected.SWAPS, "")),
            ]:
                target, staged = self._path(self.count() + 1), self._staged(self.place)
                if os.path.basename(path) == os.path.basename(target):
                    os.makedirs(self.place, exist_ok=True)
                    # Others may write there, so the copy that ranks will read is the one that is checked.
                    with open(path, "rb", opener=_file) as source, open(staged, "wb") as copy:
                        shutil.copyfileobj(source, copy)
                    Payload(staged).verify(self._key)
                    os.replace(staged, target)
        except Exception as exc:  # whatever a store's library raises
            text = "some swaps of earlier attempts aren't made again, as they can't be read: %s" % exc
            emit("Notice", text=text)

    def _path(self, number: int) -> str:
        return os.path.join(self.place, "%d.payload" % number)

    def _staged(self, place: str) -> str:
        """Return a name that no other node uses: several may write to one place."""
        return os.path.join(place, "%d%s" % (self._node, checkpoints.PARTIAL))

    @property
    def _places(self) -> List[str]:
        """Where this node keeps swaps; beside the checkpoints, which nodes may share, only the first does."""
        beside = checkpoints.beside(KEPT) if self.place and self._first else ""
        return [place for place in (self.place, beside) if place]

    def stage(self, path: str) -> None:
        """Store the payload of the next swap, so that :meth:`keep` only has to rename it."""
        for place in self._places:
            os.makedirs(place, exist_ok=True)
            shutil.copyfile(path, self._staged(place))

    def unstage(self) -> None:
        """Remove what was staged."""
        for place in self._places:
            with suppress(OSError):
                os.unlink(self._staged(place))

    def keep(self) -> None:
        """Keep what was staged, as one more swap."""
        self.newest += 1
        for place in self._places:
            os.replace(self._staged(place), os.path.join(place, "%d.payload" % self.newest))


def lay(payload: Payload, folder: str, files: Iterable[str]) -> None:
    """Write files of a payload to where ranks find their local modules."""
    for file in files:
        path = os.path.join(folder, *file.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        payload.write(FILES + file, path + checkpoints.PARTIAL)
        os.replace(path + checkpoints.PARTIAL, path)
        _forget_bytecode(path)


def remove(folder: str, files: Iterable[str]) -> None:
    """Remove such files."""
    for file in files:
        path = os.path.join(folder, *file.split("/"))
        with suppress(OSError):
            os.unlink(path)
        _forget_bytecode(path)


def _forget_bytecode(path: str) -> None:
    # Python takes it for valid if the new file has the same size and was written in the same second.
    with suppress(OSError, NotImplementedError):
        os.unlink(importlib.util.cache_from_source(path))


def _file(path: str, flags: int) -> int:
    """Open a file, also through a link, as in a Secret; refuse a pipe or a device, which may never end."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it isn't a file", path)
