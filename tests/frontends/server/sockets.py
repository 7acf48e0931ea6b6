"""The page's end of the websocket that carries a job's logs."""

import asyncio
import json

from nbtorchjob.machine import loop
from tests.backends.kubernetes.stage import until
from tests.patience import LIMIT


class Socket:
    """The messages that a page has received, and the logs assembled from them."""

    def __init__(self, socket):
        self.socket = socket
        self.told = []  # JSON
        self.logs = {}  # by rank and round
        self.times = {}  # by rank and round: (offset, milliseconds by which all bytes before it were written)
        self.parts = []  # sizes of the messages with log bytes
        self.closed = False

    @property
    def records(self):
        """The messages that contain a job's record."""
        return [record for record in self.told if "job" in record]

    async def read(self):
        """Read one message; return False once the socket is closed."""
        message = await asyncio.wait_for(self.socket.read_message(), LIMIT)
        if message is None:
            self.closed = True
        elif isinstance(message, str):
            self.told.append(json.loads(message))
        else:
            head, _, data = message.partition(b"\n")
            log, _, times = head.partition(b" ")
            rank, round_, offset = map(int, log.split(b"."))
            self.times.setdefault((rank, round_), []).extend(written(times, offset))
            start, text = self.logs.setdefault((rank, round_), (offset, bytearray()))
            assert offset == start + len(text)  # no byte is missing or repeated
            text += data
            self.parts.append(len(data))
        return not self.closed

    async def until(self, condition):
        """Read messages until a condition holds."""
        while not condition():
            assert await self.read(), self.told

    async def all(self):
        """Read to the end; return the text of each log."""
        while await self.read():
            pass
        return {log: text for log, (_, text) in self.logs.items()}

    @property
    def since(self):
        """The offsets read so far, in the form in which a reconnecting page sends them."""
        ends = {log: start + len(text) for log, (start, text) in self.logs.items()}
        return ",".join(f"{rank}.{round_}.{end}" for (rank, round_), end in ends.items())


def written(times, offset):
    """Return (offset, milliseconds) pairs from the times in a message that begins at ``offset``."""
    at, points = 0, []
    for part in filter(None, times.split(b",")):
        size, later = map(int, part.split(b":"))
        offset, at = offset + size, at + later
        points.append((offset, at))
    return points


def following():
    """Return the tasks on the package's loop, except this one; other tests' jobs may be among them."""

    async def look():
        return asyncio.all_tasks() - {asyncio.current_task()}

    return loop.start(look()).result()


async def followed_no_more(before):
    """Wait until no tasks run except those in ``before``."""
    await asyncio.to_thread(until, lambda: following() <= before)
