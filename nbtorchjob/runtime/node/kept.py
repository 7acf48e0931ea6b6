"""The payloads that a node takes in while its ranks run: a lab's turns, and swaps.

Swaps that stay it keeps for later attempts: payloads by number, in the node's folder.

Where that goes with the node's pod, they are kept beside the job's checkpoints, too; a job without a place
for these has them in a Secret, where whoever swaps writes them. Others may write there, so what comes from
there is copied first, and checked then.
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

HEAR_S = 60.0  # for the next piece of a payload to come


def received(asked: Question, path: str, key: bytes) -> Payload:
    """Write a payload to ``path`` as it comes, and check it; raises ``Refused``."""
    left = int(asked["size"])
    with room_for(path), open(path, "xb") as file:
        while left > 0:
            chunk = asked.hear(HEAR_S)
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
    """Refuse what a disk has no room for."""
    try:
        yield
    except OSError as exc:
        if shortage.number_of(exc) not in shortage.FULL:
            raise
        exc.filename = exc.filename or path
        raise Refused("%s: %s" % (exc.strerror, shortage.limit_met(exc))) from exc


class Kept:
    """The swaps of a node, in the folder ``place``; where that is "", no later attempt begins with them.

    The node's ranks find local modules in the folder ``files``. Payloads are signed with ``key``.
    """

    def __init__(self, node: int, place: str, files: str, key: bytes) -> None:
        self.made = 0  # the number of the newest one
        self._node = node
        self.place = place
        self._files = files
        self._key = key
        self._first = False  # whether it is the one node of the round that keeps swaps beside checkpoints
        self._recovered = False

    def count(self) -> int:
        """Return how many swaps a later attempt would begin with, as far as this node has them."""
        numbers = [int(os.path.basename(path).partition(".")[0]) for path in swapping.earlier(self.place)]
        return sum(number == place for place, number in enumerate(numbers, 1))

    def agree(self, store: Any, place: int, places: int, connect: Optional[Callable[[], Any]]) -> int:
        """Have all nodes of a round begin with the same swaps, the most that one has; return how many.

        They agree in ``store``, where this node is the one at ``place``. A node that lacks some is given
        them, sealed, by the first one that has them.
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
        self._first, self.made = place == 0, max(self.made, most)
        return most

    def begin_with(self, payload: Payload) -> None:
        """Take the swaps of an earlier job that the job's own payload brings along, in their order."""
        brought = [name for name in payload.checksums() if name.startswith(SWAPS)]
        for number in range(self.count() + 1, len(brought) + 1):
            self._put(number, payload.read("%s%d" % (SWAPS, number)))

    def _put(self, number: int, data: bytes) -> None:
        os.makedirs(self.place, exist_ok=True)
        with open(self._staged(self.place), "wb") as partial:
            partial.write(data)
        os.replace(partial.name, self._path(number))

    def _recover(self) -> None:
        """Take what was kept of earlier attempts in a place that survives pods, as far as it is signed."""
        try:
            for path in [
                *swapping.earlier(checkpoints.fetched(KEPT)),
                *swapping.earlier(os.environ.get(injected.SWAPS, "")),
            ]:
                target, staged = self._path(self.count() + 1), self._staged(self.place)
                if os.path.basename(path) == os.path.basename(target):
                    os.makedirs(self.place, exist_ok=True)
                    # Others may write there: what is checked is what the ranks are going to read.
                    with open(path, "rb", opener=_file) as source, open(staged, "wb") as copy:
                        shutil.copyfileobj(source, copy)
                    Payload(staged).verify(self._key)
                    os.replace(staged, target)
        except Exception as exc:  # whatever a store's library raises
            text = "swaps of earlier attempts aren't all made again, as they can't be read: %s" % exc
            emit("Notice", text=text)

    def _path(self, number: int) -> str:
        return os.path.join(self.place, "%d.payload" % number)

    def _staged(self, place: str) -> str:
        """Return a name of this node's own: several may write to one place."""
        return os.path.join(place, "%d%s" % (self._node, checkpoints.PARTIAL))

    @property
    def _places(self) -> List[str]:
        """Where this node keeps swaps; beside the checkpoints, which nodes may share, one does for all."""
        beside = checkpoints.beside(KEPT) if self.place and self._first else ""
        return [place for place in (self.place, beside) if place]

    def stage(self, path: str) -> None:
        """Have the payload of the next swap here, so that it only has to take its place."""
        for place in self._places:
            os.makedirs(place, exist_ok=True)
            shutil.copyfile(path, self._staged(place))

    def unstage(self) -> None:
        """Take it away again."""
        for place in self._places:
            with suppress(OSError):
                os.unlink(self._staged(place))

    def keep(self) -> None:
        """Keep what was staged, as one more swap."""
        self.made += 1
        for place in self._places:
            os.replace(self._staged(place), os.path.join(place, "%d.payload" % self.made))


def lay(payload: Payload, folder: str, files: Iterable[str]) -> None:
    """Lay files that come along where ranks find their local modules."""
    for file in files:
        path = os.path.join(folder, *file.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        payload.write(FILES + file, path + checkpoints.PARTIAL)
        os.replace(path + checkpoints.PARTIAL, path)
        _forget_bytecode(path)


def remove(folder: str, files: Iterable[str]) -> None:
    """Take such files away again."""
    for file in files:
        path = os.path.join(folder, *file.split("/"))
        with suppress(OSError):
            os.unlink(path)
        _forget_bytecode(path)


def _forget_bytecode(path: str) -> None:
    # Python takes it for a file's that has the same size and was written in the same second.
    with suppress(OSError, NotImplementedError):
        os.unlink(importlib.util.cache_from_source(path))


def _file(path: str, flags: int) -> int:
    """Open a file, also by a link, as a Secret's are; a pipe or a device in its place would have no end."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it isn't a file", path)
