"""A page's end of the websocket that brings a job's logs."""

import asyncio
import json

from nbtorchjob.machine import loop
from tests.backends.kubernetes.stage import until
from tests.patience import LIMIT


class Socket:
    """The messages that came, and what they come to."""

    def __init__(self, socket):
        self.socket = socket
        self.told = []  # JSON
        self.logs = {}  # by rank and round
        self.times = {}  # by rank and round: the offsets up to which was written by when, in milliseconds
        self.parts = []  # how long each was
        self.closed = False

    @property
    def records(self):
        """The jobs that were told."""
        return [record for record in self.told if "job" in record]

    async def read(self):
        """Take in one message; give whether there was one."""
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
            assert offset == start + len(text)  # no byte is missing, or comes twice
            text += data
            self.parts.append(len(data))
        return not self.closed

    async def until(self, condition):
        """Read until something is so."""
        while not condition():
            assert await self.read(), self.told

    async def all(self):
        """Read to the end; give the logs' text."""
        while await self.read():
            pass
        return {log: text for log, (_, text) in self.logs.items()}

    @property
    def since(self):
        """Say what is here, as a page does that comes again."""
        ends = {log: start + len(text) for log, (start, text) in self.logs.items()}
        return ",".join(f"{rank}.{round_}.{end}" for (rank, round_), end in ends.items())


def written(times, offset):
    """Read the times of bytes from that offset on."""
    at, points = 0, []
    for part in filter(None, times.split(b",")):
        size, later = map(int, part.split(b":"))
        offset, at = offset + size, at + later
        points.append((offset, at))
    return points


def following():
    """Return the tasks on our own loop, but for the one that looks; other tests' jobs may be among them."""

    async def look():
        return asyncio.all_tasks() - {asyncio.current_task()}

    return loop.start(look()).result()


async def followed_no_more(before):
    """Wait until nothing is followed that wasn't before."""
    await asyncio.to_thread(until, lambda: following() <= before)
