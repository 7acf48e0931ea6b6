"""A place where payloads run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Protocol

from nbtorchjob.capture import Call
from nbtorchjob.events import Event, ValueReady
from nbtorchjob.results import Fetched
from nbtorchjob.spec import JobSpec
from nbtorchjob.state import JobInfo, JobState


class Backend(Protocol):
    """What every place can do. Each verb but ``submit`` may be repeated, and then changes nothing."""

    def submit(self, call: Call, spec: JobSpec, info: JobInfo) -> None:
        """Send the job; raise ``SubmitError`` with nothing of it left behind."""

    def follow(self, name: str) -> AsyncIterator[Event]:
        """Report the job's facts from its beginning on, until it is closed or lost."""

    def jobs(self) -> list[JobState]:
        """Give what is known of all jobs now, oldest first, without their logs."""

    def snapshot(self, name: str) -> JobState:
        """Give all that is known of one job now; raise ``JobNotFoundError``."""

    def info(self, name: str) -> JobInfo:
        """Give what was written down at submission; raise ``JobNotFoundError``."""

    def cancel(self, name: str) -> None:
        """Ask for the job's end; its record stays. A job that has ended stays as it is."""

    def delete(self, name: str) -> None:
        """End the job if it runs, and remove all that is kept of it."""

    def log(self, name: str, rank: int) -> Iterator[bytes]:
        """Give a rank's whole log, in pieces, its rounds one after the other."""

    def fetch(self, name: str, value: ValueReady) -> Fetched:
        """Bring a rank's value to this machine's disk; raise ``ResultError`` if it is gone."""

    def dry_run(self, call: Call, spec: JobSpec, info: JobInfo) -> str:
        """Say what ``submit`` would start, and start nothing."""
