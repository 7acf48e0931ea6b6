"""One life of a container: a process group on this machine, its log, its end."""

import asyncio
import os
import signal
import uuid
from dataclasses import dataclass
from pathlib import Path

from tests.backends.kubernetes.cluster.logs import Log
from tests.backends.kubernetes.cluster.resources import Object
from tests.backends.kubernetes.cluster.sandbox import Command
from tests.backends.kubernetes.cluster.store import now
from tests.backends.kubernetes.warm import Program

MESSAGE_LIMIT = 4096
FALLBACK_LIMIT, FALLBACK_LINES = 2048, 80
NEVER_STARTED = "1970-01-01T00:00:00Z"


@dataclass(frozen=True)
class Ended:
    """The end of a container, as `state.terminated` shows it."""

    code: int
    reason: str
    message: str
    started: str
    finished: str
    id: str

    def state(self) -> Object:
        """Return the container's state."""
        shown: Object = {"exitCode": self.code, "reason": self.reason}
        if self.message:
            shown["message"] = self.message
        times = {"startedAt": self.started, "finishedAt": self.finished}
        return {"terminated": shown | times | {"containerID": f"containerd://{self.id}"}}


class Container:
    """A container that runs, or has run."""

    def __init__(
        self, spec: Object, command: Command, folder: Path, *, first: bool, ahead_s: float = 0.0
    ) -> None:
        self.id = uuid.uuid4().hex * 2
        self.log = Log(folder / "logs", self.id, ahead_s)
        self.ahead_s = ahead_s  # seconds by which the host's clock, which stamps log and times, is ahead
        self.started = now(later_s=int(ahead_s))
        self.command = command
        self.over = asyncio.Event()
        self._spec, self._first = spec, first
        self._reason = ""
        self._process: Program | None = None
        self._pending: asyncio.Task[None] | None = None  # the only reference to the task

    async def start(self) -> None:
        """Start the process; it leads a session of its own."""
        command = self.command
        reader, writer = os.pipe()
        try:
            self._process = await asyncio.to_thread(
                Program, command.python, command.argv, command.environment, command.folder, writer
            )
        except OSError as error:
            os.close(reader)
            # The kernel refuses an environment that is too big only after the container has been created.
            self.log.write(f"exec {command.argv[0]}: {os.strerror(error.errno or 0).lower()}\n".encode())
        else:
            self._listen(reader)
        finally:
            os.close(writer)

    def _listen(self, reader: int) -> None:
        os.set_blocking(reader, False)
        self._drained = asyncio.Event()
        loop = asyncio.get_running_loop()

        def read() -> None:
            try:
                data = os.read(reader, 1 << 18)
            except BlockingIOError:
                return
            if data:
                self.log.write(data)
            else:
                loop.remove_reader(reader)
                os.close(reader)
                self._drained.set()

        loop.add_reader(reader, read)

    async def wait(self) -> Ended:
        """Wait for the end: all processes of the container end with the first."""
        code = 1
        if self._process is not None:
            code = await _ended(self._process)
            self.over.set()
            self._process.close()
            await self._drained.wait()
        self.log.close()
        shown = 128 - code if code < 0 else code
        reason = self._reason or ("Error" if shown else "Completed")
        ended = now(later_s=int(self.ahead_s))
        return Ended(shown, reason, self._message(failed=shown != 0), self.started, ended, self.id)

    def signal(self, number: int) -> None:
        """Send a signal to the first process, as the end of a pod does at first.

        In a container that process is PID 1, which gets only SIGKILL and the signals that it handles. If the
        pod's containers share one process namespace, it isn't PID 1.
        """
        process = self._process
        if process is None:
            return
        if number == signal.SIGKILL or not self._first or _in(process.pid, "SigCgt", number):
            process.send_signal(number)
        elif _in(process.pid, "SigBlk", number):
            self._pending = asyncio.get_running_loop().create_task(self._unblocked(process, number))

    async def _unblocked(self, process: Program, number: int) -> None:
        """Send a signal that was blocked when it came, if the process handles it once it is unblocked.

        PID 1 does so (seen in a process namespace, Linux 6.18); a shell blocks all while it starts a program.
        """
        while not self.over.is_set() and not _in(process.pid, "SigCgt", number):
            if not _in(process.pid, "SigBlk", number):
                return
            await asyncio.sleep(0.001)
        if not self.over.is_set():
            process.send_signal(number)

    def kill(self, reason: str = "") -> None:
        """Kill the container; the `reason` after a kill by the kernel's OOM killer is OOMKilled."""
        self._reason = reason
        self.signal(signal.SIGKILL)

    def _message(self, *, failed: bool) -> str:
        data = self.command.termination_log.read_bytes()
        if not data and failed and self._spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            lines = self.log.files[-1].read_bytes().splitlines(keepends=True)[-FALLBACK_LINES:]
            data = b"".join(line.partition(b" ")[2] for line in lines)[-FALLBACK_LIMIT:]
        return data[-MESSAGE_LIMIT:].decode(errors="replace")


async def _ended(process: Program) -> int:
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process, over.set)
    await over.wait()
    loop.remove_reader(process)
    return process.wait()


def _in(pid: int, mask: str, number: int) -> bool:
    """Return whether a signal is in a process's mask of handled or blocked signals."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    digits = next((line.split()[1] for line in lines if line.startswith(f"{mask}:")), "0")
    return bool(int(digits, 16) >> (number - 1) & 1)


def not_started(message: str) -> Ended:
    """Return the end of a container whose command can't be run."""
    prefix = (
        "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
        "unable to start container process: "
    )
    return Ended(128, "StartError", prefix + message, NEVER_STARTED, now(), uuid.uuid4().hex * 2)


def never_located() -> Object:
    """Return the state of a container that was deleted before it ever started."""
    text = "The container could not be located when the pod was terminated"
    shown = {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": text}
    return {"terminated": shown | {"startedAt": None, "finishedAt": None}}
