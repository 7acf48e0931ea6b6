"""A place where payloads run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nbtorchjob.capture import Call
from nbtorchjob.events import Event, ValueReady
from nbtorchjob.results import Fetched
from nbtorchjob.spec import JobSpec
from nbtorchjob.state import JobInfo, JobState


@dataclass(frozen=True)
class Finding:
    """One thing that a doctor looked at; ``remedy`` is what to do, or what to hand to an administrator."""

    good: bool
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Leftover:
    """Something that an ended, or never begun, job left behind; ``age`` is in seconds."""

    name: str
    what: str
    age: float
    state: JobState | None = None  # None for an orphan: there is no job to it


@dataclass(frozen=True)
class Choice:
    """A value that an option can be given here; ``note`` is what else is known of it, in a few words."""

    value: str
    note: str = ""


class Backend(Protocol):
    """What every place can do. Each verb but ``submit`` may be repeated, and then changes nothing.

    Verbs that take a name raise ``JobNotFoundError`` where there is no such job.
    """

    def check(self, spec: JobSpec) -> list[str]:
        """Raise ``SpecError`` for what this place can't honour; give what works, but not well."""

    def submit(self, call: Call, spec: JobSpec, info: JobInfo) -> JobInfo:
        """Send the job, and give what is written down of it; that may be a job that runs already.

        Raises ``SubmitError`` with nothing left behind; ``NameTakenError`` where a name was given.
        """

    def retry(self, name: str) -> JobInfo:
        """Send what an ended job ran once more, as a new job; each time another one, under a new name.

        Nothing is unpickled. Raises as ``submit`` does, also where the payload is no longer kept.
        """

    def follow(
        self, name: str, *, since: Mapping[tuple[int, int], int] | None = None
    ) -> AsyncGenerator[Event, None]:
        """Report the job's facts from its beginning on, until it is closed or lost.

        Of the logs come the newest bytes, as many as can be shown, some maybe twice. With ``since``, the
        bytes that are known already by (rank, round), each byte from there on comes once; no more is
        read than is taken.
        """

    def places(self) -> list[str]:
        """Give where jobs may be, to be asked one by one: what an address has before the job's name."""

    def jobs(self, *, everyone: bool = False, place: str | None = None) -> list[JobState]:
        """Give what is known of all jobs now, oldest first, without their logs; others' too if asked.

        Of one place, or of all: one that refuses is a warning then.
        """

    def names(self) -> list[str]:
        """Give the names of all jobs, oldest first, as cheaply as can be: one may be just gone."""

    def snapshot(self, name: str) -> JobState:
        """Give all that is known of one job now."""

    def info(self, name: str) -> JobInfo:
        """Give what was written down at submission."""

    def cancel(self, name: str) -> None:
        """Ask for the job's end; its record stays. A job that has ended stays as it is."""

    def delete(self, name: str) -> None:
        """End the job if it runs, and remove all that is kept of it."""

    def suspend(self, name: str) -> None:
        """Take the job's nodes away and keep the job; raise ``SpecError`` where that can't be done."""

    def resume(self, name: str) -> None:
        """Start a suspended job's nodes again."""

    def log(self, name: str, rank: int, offset: int = 0) -> Iterator[bytes]:
        """Give a rank's log from byte ``offset`` on, in pieces, its rounds one after the other."""

    def fetch(self, name: str, value: ValueReady) -> Fetched:
        """Bring a rank's value to this machine's disk; raise ``ResultError`` if it is gone."""

    def dry_run(self, call: Call, spec: JobSpec, info: JobInfo) -> str:
        """Say what ``submit`` would start, and start nothing."""

    def export(self, name: str, folder: Path) -> list[Path]:
        """Write what runs the job again without a notebook to ``folder``; give the files."""

    def manifests(self, name: str) -> str:
        """Give the YAML that ``export`` writes, without Secrets: those hold the payload and the job's key."""

    def leftovers(self) -> list[Leftover]:
        """Give the jobs that have ended, and what belongs to no job."""

    def clear(self, leftover: Leftover) -> None:
        """Remove it for good, its value kept on this machine if it has one."""

    def enforcement(self, info: JobInfo) -> Mapping[str, str]:
        """Say who sees to each policy and budget of such a job, by the name of its field."""

    def doctor(self, spec: JobSpec) -> list[Finding]:
        """Look at all that a job of ``spec`` would need."""

    def choices(self, spec: JobSpec) -> Mapping[str, Sequence[Choice]]:
        """Give what can be chosen here, by the option's key; what can't be listed is left out."""
