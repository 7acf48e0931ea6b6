"""Carries connections to ports of this node over one conversation; the asker's side uses ``Channels``, too.

asker  {"open": N, "port": P}     a new connection, numbered by the asker
node   {"opened": N}              or {"failed": N, "why": ...}
both   N in 4 bytes, and data     at most ``WINDOW`` bytes ahead of what the other side has passed on
both   {"room": N, "bytes": B}    B more bytes may be sent
both   {"close": N}               no more data from this side; the other direction stays open
both   {"drop": N}                the connection is broken
asker  {"listens": P}             node {"listens": P, "yes": true, false, or null if it is unknown}
"""

from __future__ import annotations

import selectors
import socket
import struct
from contextlib import suppress
from typing import Any, Callable, Dict, Iterator, List, Optional, Union

from nbtorchjob.runtime.ask.answering import Question

WINDOW = 1 << 18
_PART_BYTES = 1 << 16
_CONNECT_S = 2.0
_LOOK_S = 30.0
_NUMBER = struct.Struct(">I")
_LISTENS = "0A"  # a socket's state in /proc/net/tcp
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")

Message = Union[Dict[str, Any], bytes]


def answer(question: Question) -> Iterator[Message]:
    """Carry connections for as long as the asker stays."""
    question.goes_on = True
    messages: List[Message] = []
    channels = Channels(messages.append)
    channels.selector.register(question, selectors.EVENT_READ, None)
    try:
        while True:
            message = question.hear(0)
            while message is not None:
                if isinstance(message, bytes) or not {"open", "listens"} & message.keys():
                    channels.hear(message)
                elif "open" in message:
                    messages.append(_open(channels, int(message["open"]), int(message["port"])))
                else:
                    port = int(message["listens"])
                    messages.append({"listens": port, "yes": _is_listening(port)})
                message = question.hear(0)
            yield from messages
            messages.clear()
            channels.act(_LOOK_S)
            yield from messages
            messages.clear()
    finally:
        channels.clear()
        channels.selector.close()


def _open(channels: "Channels", number: int, port: int) -> Message:
    why = ""
    for host in ("127.0.0.1", "::1", socket.gethostname()):  # a server may listen on the pod's address alone
        try:
            channels.add(number, socket.create_connection((host, port), _CONNECT_S))
            return {"opened": number}
        except OSError as exc:
            why = why or exc.strerror or str(exc)
    return {"failed": number, "why": why}


def _is_listening(port: int) -> Optional[bool]:
    """Return whether a process listens at a port, without connecting to it; None if that is unknown."""
    try:
        for table in _TABLES:
            with open(table) as file:
                rows = [row.split() for row in list(file)[1:]]
            if any(row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port for row in rows):
                return True
    except (OSError, ValueError, IndexError):
        return None
    return False


class _Channel:
    """One connection; ``room`` is how many bytes the other side accepts now."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.out = bytearray()  # received, and still to be written
        self.room = WINDOW
        self.passed = 0  # bytes written since the last "room" message
        self.events = 0
        self.said_all = self.heard_all = self.shut = False


class Channels:
    """The connections on one side: sends what it reads from sockets, and writes what it receives to them."""

    def __init__(self, say: Callable[[Message], object]) -> None:
        self.selector = selectors.DefaultSelector()
        self._say = say
        self._channels: Dict[int, _Channel] = {}

    def __len__(self) -> int:
        return len(self._channels)

    def add(self, number: int, peer: socket.socket) -> None:
        """Carry a connection."""
        peer.setblocking(False)
        self._channels[number] = _Channel(peer)
        self._watch(number)

    def hear(self, message: Message) -> None:
        """Handle a message of the other side; an empty one is a sign of life."""
        if isinstance(message, bytes):
            if len(message) >= _NUMBER.size:
                number = _NUMBER.unpack_from(message)[0]
                data = message[_NUMBER.size :]
                channel = self._channels.get(number)
                # None: it was dropped here meanwhile
                if channel is not None:
                    channel.out += data
                    if len(channel.out) > WINDOW:
                        self._drop(number)
                    else:
                        self._write(number)
            return
        number = next((message[key] for key in ("room", "close", "drop") if key in message), None)
        channel = self._channels.get(number) if isinstance(number, int) else None
        if channel is None or number is None:
            return
        if "room" in message:
            channel.room = min(WINDOW, channel.room + int(message["bytes"]))
            self._watch(number)
        elif "close" in message:
            channel.heard_all = True
            self._write(number)
        else:
            self._forget(number)

    def act(self, seconds: float) -> List[Any]:
        """Wait until connections are ready, and serve them; return the data of other files that are ready."""
        others = []
        for key, events in self.selector.select(seconds):
            if not isinstance(key.data, int):
                others.append(key.data)
                continue
            if events & selectors.EVENT_WRITE:
                self._write(key.data)
            if events & selectors.EVENT_READ:
                self._read(key.data)
        return others

    def clear(self) -> None:
        """End all connections."""
        for number in list(self._channels):
            self._forget(number)

    def _read(self, number: int) -> None:
        channel = self._channels.get(number)
        if channel is None:
            return
        try:
            data = channel.peer.recv(min(_PART_BYTES, channel.room))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._drop(number)
            return
        if data:
            channel.room -= len(data)
            self._say(_NUMBER.pack(number) + data)
        else:
            channel.said_all = True
            self._say({"close": number})
        self._watch(number)

    def _write(self, number: int) -> None:
        channel = self._channels.get(number)
        if channel is None:
            return
        try:
            sent = channel.peer.send(channel.out) if channel.out else 0
            del channel.out[:sent]
            if channel.heard_all and not channel.out and not channel.shut:
                channel.shut = True
                channel.peer.shutdown(socket.SHUT_WR)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._drop(number)
            return
        channel.passed += sent
        if channel.passed >= WINDOW // 4:
            self._say({"room": number, "bytes": channel.passed})
            channel.passed = 0
        self._watch(number)

    def _watch(self, number: int) -> None:
        """Register for the connection's next events, or end it once both directions are closed."""
        channel = self._channels[number]
        if channel.said_all and channel.shut:
            self._forget(number)
            return
        events = selectors.EVENT_READ if channel.room > 0 and not channel.said_all else 0
        events |= selectors.EVENT_WRITE if channel.out else 0
        if events == channel.events:
            return
        if not channel.events:
            self.selector.register(channel.peer, events, number)
        elif events:
            self.selector.modify(channel.peer, events, number)
        else:
            self.selector.unregister(channel.peer)
        channel.events = events

    def _drop(self, number: int) -> None:
        self._say({"drop": number})
        self._forget(number)

    def _forget(self, number: int) -> None:
        channel = self._channels.pop(number)
        if channel.events:
            self.selector.unregister(channel.peer)
        with suppress(OSError):
            channel.peer.close()
