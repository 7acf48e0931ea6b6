"""Links between this machine and a running job: a forwarded port of a rank, and a synced folder.

All connections to a port share one conversation with the rank's node (``runtime/ask/ports.py``). The first
connection after the node was replaced begins a new conversation: by then the rank may be on another node.

In a synced folder, a file that grows is read from where the copy ends, after the copy was compared with the
node's file (a big one only at its end). A rewritten file is replaced in one step. Once the job has ended, the
folder is completed from what came home. Of several syncs to one folder, one copies at a time: two that append
to one file would damage it. A file that is being copied there otherwise waits for the next step.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import queue
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from nbtorchjob.backends import files, naming
from nbtorchjob.backends.base import Backend, Talks, able
from nbtorchjob.backends.files import BusyFileError, Reader, RefusedFileError, RunFile
from nbtorchjob.backends.talk import Talk
from nbtorchjob.errors import (
    AskError,
    ClusterError,
    JobEndedError,
    JobNotFoundError,
    NBTorchJobError,
    ResultError,
    SpecError,
)
from nbtorchjob.runtime.ask.files import CHECKPOINTS, MOST_FILES
from nbtorchjob.runtime.ask.ports import Channels, Message
from nbtorchjob.state import JobState
from nbtorchjob.text.words import line

EVERY_S = 2.0
_LAST_MISSING = (
    "the last checkpoints may be missing: on a cluster they can't be copied once their job has ended"
)


class Sync:
    """Keeps a copy of the files at or below ``path`` on a job's nodes in ``folder``.

    ``copied`` counts the bytes received; ``trouble`` is why something is missing now, "" if nothing is.
    """

    def __init__(self, backend: Backend, state: JobState, path: str, folder: Path) -> None:
        self.copied = 0
        self.trouble = ""
        self._backend, self._state = backend, state
        self._path, self._folder = path, folder
        self._readers: dict[int, Reader] = {}
        self._seen: dict[tuple[int, str], RunFile] = {}
        self._refused: dict[tuple[int, str], RunFile] = {}
        self._stopped, self._ended = threading.Event(), threading.Event()
        self._places = files.Places()

    def start(self) -> Sync:
        """Copy what is new in the background until the job has ended; return ``self``."""

        def follow() -> None:
            try:
                while self.step() and not self._stopped.wait(EVERY_S):
                    pass
            except NBTorchJobError as exc:
                self.trouble = str(exc)
            finally:
                self.close()
                self._ended.set()

        name = f"nbtorchjob-sync-{self._state.info.name}"
        threading.Thread(target=follow, name=name, daemon=True).start()
        return self

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the sync has ended, with its job or by ``stop``; return whether it has."""
        return self._ended.wait(timeout)

    def stop(self) -> None:
        """End the sync after its current step."""
        self._stopped.set()

    def step(self) -> bool:
        """Copy what is new; return whether there may be more, which is so if the cluster is unreachable.

        Raises ``ResultError`` if the folder can't be written to.
        """
        self.trouble = ""
        try:
            return self._look()
        except ClusterError as exc:
            self.trouble = str(exc)
            return True

    def _look(self) -> bool:
        """Copy what is new; return whether the job goes on."""
        state = naming.unreplaced(self._state.info, self._backend.brief_state(self._state.info.address))
        nodes = sorted(index for index, node in state.nodes.items() if node.life.running)
        if not (nodes or state.phase.terminal):
            return True
        with _locked(self._folder) as alone:
            if alone:
                return self._copy(state, nodes)
        self.trouble = f"another sync is copying to {self._folder}"
        return True

    def _copy(self, state: JobState, nodes: list[int]) -> bool:
        """Copy what is new while no other sync does; return whether the job goes on."""
        if state.phase.terminal:
            complete_state = self._backend.snapshot(self._state.info.address)
            try:
                self.copied += files.refresh(self._backend, complete_state, self._path, self._target)
                paths = (self._path, *(path for _, path in self._seen))  # requested, and copied
                if state.info.cluster and any(path.partition("/")[0] == CHECKPOINTS for path in paths):
                    self.trouble = _LAST_MISSING
            except BusyFileError as exc:  # the next step completes it
                self.trouble = str(exc)
                return True
            except ResultError as exc:
                self.trouble = str(exc)
            return False
        shared: set[str] = set()  # checkpoints that an earlier node has listed
        for node in nodes:
            try:
                reader = self._readers.get(node) or Reader(self._backend, state.info.address, node)
                self._readers[node] = reader
                listing = reader.list(self._path)
                if listing.more:
                    most = f"the {MOST_FILES:,} that it lists"
                    self.trouble = f"node {node} has more files than {most}: sync a folder of them"
                for file in listing.new(shared):
                    if file.path in shared:
                        file = replace(file, node=0)  # its copy is one, whichever node lists it
                    if self._seen.get((file.node, file.path)) != file:
                        self._renew(reader, file)
            except (AskError, ClusterError, TimeoutError, JobEndedError) as exc:
                self.trouble = f"node {node}: {exc or 'it does not answer'}"
                self._leave(node)
        return True

    def close(self) -> None:
        """End the conversations with the nodes."""
        for node in list(self._readers):
            self._leave(node)

    def _leave(self, node: int) -> None:
        if reader := self._readers.pop(node, None):
            reader.close()

    def _target(self, file: RunFile) -> Path:
        return self._folder / self._places.of(file, files.within(file.path, self._path))

    def _renew(self, reader: Reader, file: RunFile) -> None:
        """Update a file to what its node has; skip one that was removed or renamed meanwhile."""
        target = self._target(file)
        key = file.node, file.path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            self.copied += files.renew(reader, file, target)
        except RefusedFileError as exc:
            if self._refused.get(key) == file:  # it is still listed
                self.trouble = f"node {reader.node}: {exc}"
            self._refused[key] = file
        except BusyFileError as exc:
            self.trouble = str(exc)
        except OSError as exc:
            if isinstance(exc, TimeoutError):
                raise
            raise ResultError(f"{file.path} can't be written to {target}: {exc.strerror or exc}") from exc
        else:
            self._seen[key] = file


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Keep other syncs, also of other processes, from copying to a folder; yield False if one is copying."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as exc:
        raise ResultError(f"files can't be written to {folder}: {exc.strerror or exc}") from exc
    alone = True
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            alone = False
        except OSError:  # a file system without locks
            pass
        yield alone
    finally:
        with suppress(OSError):  # as above
            fcntl.flock(file, fcntl.LOCK_UN)  # a fork of this process has the file open as well
        os.close(file)


LOOPBACK = "127.0.0.1"
PORTS = range(1, 1 << 16)
_BEGIN_S = 10.0
_LISTENS_S = 10.0
_EVER_S = 86400.0
_ACCEPT, _WAKE = "accept", "wake"


class Forward:
    """A forwarded port: ``local`` on this machine's loopback leads to ``port`` of a rank.

    ``listens`` is whether a process listened at the rank's port when it was forwarded, None if that is
    unknown; ``trouble`` is why the newest failed connection failed, "" if none did.
    """

    def __init__(self, backend: Backend, state: JobState, port: int, rank: int, local: int | None) -> None:
        """Open it; raises ``AskError``, ``JobEndedError``, and ``SpecError`` if ``local`` can't be used."""
        self.name, self.port, self.rank = state.info.name, port, rank
        self.trouble = ""
        self._backend, self._info = backend, state.info
        self._numbers = itertools.count(1)
        self._peers: dict[int, socket.socket] = {}  # connections that the node hasn't made yet
        self._inbox: queue.SimpleQueue[tuple[Talk, Message | None]] = queue.SimpleQueue()
        self._talk: Talk | None = self._begin()
        self._channels = Channels(self._say)
        try:
            assert self._talk is not None
            self._talk.send({"listens": self.port})
            record = self._talk.hear(_LISTENS_S) or {}
            self.listens = record["yes"] if isinstance(record.get("yes"), bool) else None
            self._listener = _listener(port, local, shared=state.info.backend == "local")
        except BaseException:
            self._talk.close()
            raise
        self.local: int = self._listener.getsockname()[1]
        self._waker, self._woken = socket.socketpair()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"nbtorchjob-forward-{port}", daemon=True)
        self._listen_to(self._talk)
        self._thread.start()

    @property
    def url(self) -> str:
        """Its address for a browser."""
        return f"http://{LOOPBACK}:{self.local}"

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._channels) + len(self._peers)

    @property
    def open(self) -> bool:
        """Whether it still accepts connections: not once it is closed, or found the job to be over."""
        return not self._closed.is_set()

    def close(self) -> None:
        """Stop forwarding, and end all connections."""
        self._closed.set()
        self._wake()
        self._thread.join()

    def _begin(self) -> Talk:
        state = naming.unreplaced(self._info, self._backend.snapshot(self._info.address))
        node = next(
            (number for number, node in state.nodes.items() if self.rank in node.ranks and node.working), None
        )
        if state.phase.terminal:
            raise JobEndedError(f"{self.name} has ended: none of its ports can be reached any more")
        if node is None:
            raise AskError(f"rank {self.rank} of {self.name} isn't running now")
        return able(self._backend, Talks, "forward", self._info.address).talk(
            self._info.address, node, {"question": "forward"}, _BEGIN_S
        )

    def _listen_to(self, talk: Talk) -> None:
        def listen() -> None:
            try:
                while (message := talk.receive(_EVER_S)) is not None:
                    self._inbox.put((talk, message))
                    self._wake()
            except (NBTorchJobError, TimeoutError, OSError):
                pass  # ``trouble`` says why once the next connection fails
            self._inbox.put((talk, None))
            self._wake()

        threading.Thread(target=listen, name="nbtorchjob-forward-talk", daemon=True).start()

    def _wake(self) -> None:
        with suppress(OSError):  # closed, or awake already
            self._waker.send(b"\0")

    def _run(self) -> None:
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._channels.selector.register(self._listener, selectors.EVENT_READ, _ACCEPT)
        self._channels.selector.register(self._woken, selectors.EVENT_READ, _WAKE)
        try:
            while not self._closed.is_set():
                for ready in self._channels.act(_EVER_S):
                    if ready == _ACCEPT:
                        self._accept()
                    else:
                        with suppress(BlockingIOError):
                            self._woken.recv(1 << 12)
                while not self._inbox.empty():
                    talk, message = self._inbox.get()
                    if talk is self._talk:
                        self._hear(message)
        finally:
            self._closed.set()
            self._break_off()
            for file in (self._listener, self._waker, self._woken):
                file.close()

    def _hear(self, message: Message | None) -> None:
        """Act on a message from the node; None means that the conversation has ended."""
        if message is None:
            self._break_off()
        elif isinstance(message, dict) and isinstance(number := message.get("opened"), int):
            if peer := self._peers.pop(number, None):
                self._channels.add(number, peer)
        elif isinstance(message, dict) and isinstance(number := message.get("failed"), int):
            why = line(str(message.get("why")), 200)
            self.trouble = f"nothing answers at port {self.port} of rank {self.rank}: {why}"
            if peer := self._peers.pop(number, None):
                peer.close()
        else:
            self._channels.hear(message)

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:  # the peer has gone again, or there are no file descriptors left
            return
        try:
            if self._talk is None:
                self._talk = self._begin()
                self._listen_to(self._talk)
        except NBTorchJobError as exc:
            self.trouble = str(exc)
            peer.close()
            if isinstance(exc, JobEndedError | JobNotFoundError):
                self._closed.set()
            return
        number = next(self._numbers)
        self._peers[number] = peer
        self._say({"open": number, "port": self.port})

    def _say(self, message: Message) -> None:
        if self._talk is not None:
            self._talk.send(message)

    def _break_off(self) -> None:
        """End all connections of a conversation that is over."""
        self._channels.clear()
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()
        if self._talk is not None:
            self._talk.close()
            self._talk = None


def _listener(port: int, local: int | None, *, shared: bool) -> socket.socket:
    """Listen at ``local``, by default at the port's own number, or at any free port if that is taken.

    A rank on this machine shares its ports with this process, which would endlessly connect to itself if it
    listened at the port's own number.
    """
    if shared and local == port:
        raise SpecError("local-port", local, "another port than the rank's, which is on this machine, too")
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, local if local is not None else 0 if shared else port))
    except OSError as exc:
        if local is not None:
            listener.close()
            raise SpecError("local-port", local, f"a port that is free here ({exc.strerror})") from exc
        listener.bind((LOOPBACK, 0))
    listener.listen()
    return listener
