"""Container logs: stamped lines in files that can be rotated."""

import asyncio
import time
from pathlib import Path


class Log:
    """The output of one life of a container: `<time> <line>` in files, the newest last."""

    def __init__(self, folder: Path, container_id: str, ahead_s: float = 0.0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._ahead_ns = int(ahead_s * 1e9)
        self.id, self._folder = container_id, folder
        self.files = [folder / f"{container_id}.0"]
        self._file = self.files[0].open("ab", buffering=0)
        self._rest = b""
        self._last = 0
        self.closed = False
        self._readers: set[asyncio.Event] = set()

    def write(self, data: bytes) -> None:
        """Take output of the container; a line is stored when its newline comes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines:
            self._file.write(b"".join(self._stamped(line) for line in lines))
            self._wake()

    def close(self) -> None:
        """Store the line that has no newline, and wake followers for the last time."""
        if self._rest:
            self._file.write(self._stamped(self._rest)[:-1])
            self._rest = b""
        self._file.close()
        self.closed = True
        self._wake()

    def rotate(self) -> None:
        """Continue in a new file; readers that start from now on get only that one."""
        self._file.close()
        self.files.append(self._folder / f"{self.id}.{len(self.files)}")
        self._file = self.files[-1].open("ab", buffering=0)
        self._wake()

    def listen(self) -> asyncio.Event:
        """Return an event that is set when there is more to read."""
        event = asyncio.Event()
        self._readers.add(event)
        return event

    def ignore(self, event: asyncio.Event) -> None:
        """Stop setting the event."""
        self._readers.discard(event)

    def _stamped(self, line: bytes) -> bytes:
        # containerd stamps each line, and no two alike.
        self._last = max(time.time_ns() + self._ahead_ns, self._last + 1)
        seconds, nanos = divmod(self._last, 1_000_000_000)
        return b"%s.%09dZ %s\n" % (_seconds(seconds), nanos, line.removesuffix(b"\r"))

    def _wake(self) -> None:
        for event in self._readers:
            event.set()


_stamp: tuple[int, bytes] = (0, b"")


def _seconds(moment: int) -> bytes:
    """Format whole seconds, remembering the last: thousands of lines share one."""
    global _stamp
    if _stamp[0] != moment:
        _stamp = moment, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)).encode()
    return _stamp[1]
