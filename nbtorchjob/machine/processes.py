"""Processes of this machine, distinguished from later ones with the same id."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from nbtorchjob.frozen import FrozenDataclass


class Process(FrozenDataclass):
    """A process id with the time it started, in clock ticks since boot, and the boot it belongs to."""

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Process:
        """Name a running process; raises ``ProcessLookupError``."""
        return cls(pid, int(_stat(pid)[19]), _boot())

    @classmethod
    def here(cls, pid: int, started: int) -> Process:
        """Name a process of this boot by its numbers."""
        return cls(pid, started, _boot())

    def alive(self) -> bool:
        """Whether this very process still runs."""
        try:
            fields = _stat(self.pid)
        except ProcessLookupError:
            return False
        return fields[0] not in "ZX" and int(fields[19]) == self.started and _boot() == self.boot

    def signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


NOBODY = Process(0, 0, "")  # never alive


def of_group(leader: int) -> Iterator[int]:
    """Yield the processes of a group."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(ProcessLookupError):
                if int(_stat(int(name))[2]) == leader:
                    yield int(name)


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state (the third) on."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # a quarter of a Path's time
            text = file.read().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(pid) from None
    return text.rpartition(")")[2].split()
