"""The interface of a backend: six required verbs, optional capabilities, and who enforces policies."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, TypeVar, runtime_checkable

from nbtorchjob.errors import JobNotFoundError, Shape, SpecError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.spec.cluster import changed_fields
from nbtorchjob.spec.config import PyTorch
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import JobInfo, JobState
from nbtorchjob.state.facts.events import Annotated, ArtifactsReady, CheckoutTold, Event, LogChunk, ValueReady

if TYPE_CHECKING:
    from nbtorchjob.backends.talk import Talk
    from nbtorchjob.capture import Call
    from nbtorchjob.environment.images import Contents
    from nbtorchjob.payload.results import FetchedValue
    from nbtorchjob.state.turns import View


Summary = TypeVar("Summary", bound=Mapping[str, Any])
Make = Callable[[JobState, float], Summary]  # takes a job's state and the time

_not_listed: set[str] = set()  # ids of jobs


class Finding(FrozenDataclass):
    """The result of one of the doctor's checks; ``remedy`` is what to do, or to hand to an administrator."""

    good: bool
    text: str
    remedy: str = ""


class Leftover(FrozenDataclass):
    """Something left behind by a job that has ended or never began; ``age`` is in seconds."""

    name: str
    description: str
    age: float
    state: JobState | None = None  # None for an orphan, which belongs to no job


class Choice(FrozenDataclass):
    """A value to choose for an option; ``note`` describes it in a few words."""

    value: str
    note: str = ""


class TenderStatus(FrozenDataclass):
    """Who tends a job now, in a few words ("" for nobody), since when, and its last sign of life."""

    who: str = ""
    since: float = 0.0
    beat: float = 0.0


class NodeAnswer(FrozenDataclass):
    """A node's answer to a question; ``trouble`` says in one line why it is incomplete."""

    node: int
    records: tuple[dict[str, Any], ...]
    trouble: str = ""


class Tending(Protocol):
    """A background tender of jobs."""

    def stop(self) -> None:
        """Stop tending, and wait until everything that the tender held is released."""


class SwapKeeper(Protocol):
    """Keeps swaps of a job's code for later attempts, whose nodes are all new."""

    def keep(self, number: int, payload: bytes, earlier: Collection[int]) -> None:
        """Keep the payload of the swap with that number, which follows the ``earlier`` ones.

        Raises ``SwapError`` if there is no room for it, or if an earlier one isn't kept.
        """


class Backend(ABC):
    """What runs payloads. Each verb but ``submit`` and ``retry`` is idempotent.

    A new backend begins with the six abstract verbs. The other methods build on these by default; a backend
    overrides those that it can do better. Each capability that only some backends have is a protocol below,
    such as :class:`Talks`: a backend has it if it has its methods, and :func:`able` refuses for backends that
    lack it. A name is a job's ``JobInfo.address``; verbs that take one raise ``JobNotFoundError`` for a job
    that doesn't exist.
    """

    where: ClassVar[str]  # in words that can follow "on": "this machine"

    @abstractmethod
    def submit(self, call: Call, spec: JobSpec, info: JobInfo) -> JobInfo:
        """Send the job and return its record, which may be that of a job that runs already.

        If an ended job has its name, a number is appended. Raises ``SubmitError`` with nothing left behind,
        and ``NameTakenError`` for the name of another running job. An interrupted call removes what it made,
        or raises an ``Interrupted`` that describes what is left.
        """

    def submit_runs(self, call: Call, spec: JobSpec, infos: Sequence[JobInfo]) -> list[JobInfo]:
        """Send a call as the runs of a group: one job for each, with its own name and parameters.

        Raises as :meth:`submit` does, with nothing left behind.
        """
        sent: list[JobInfo] = []
        try:
            for info in infos:
                sent.append(self.submit(call, replace(spec, name=info.name), info))
        except BaseException:
            for info in sent:
                self.delete(info.address)
            raise
        return sent

    @abstractmethod
    def follow(
        self,
        name: str,
        *,
        since: Mapping[tuple[int, int], int] | None = None,
        turn: View | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Yield the job's facts from its beginning until it is closed or lost.

        With a ``turn``, yields at least the facts that its view needs, until the turn is over.

        Yields only the newest bytes of each log, as many as can be shown, some perhaps twice. ``since`` maps
        (rank, round) to the number of bytes that the caller has: then every later byte is yielded exactly
        once, earlier rounds before later ones, and nothing is read ahead of the caller.
        """

    @abstractmethod
    def jobs(self, *, everyone: bool = False, scope: str | None = None) -> list[JobState]:
        """Return the states of all jobs, oldest first, without logs; with ``everyone`` other users' too.

        ``scope`` is one of :meth:`scopes`; without it all are listed, and one that refuses is only a warning.
        """

    @abstractmethod
    def cancel(self, name: str, *, gently: bool = False, early: str = "") -> None:
        """Request the job's end and keep its record; an ended job stays as it is.

        With ``gently`` its ranks get time to save; ``leaving()`` tells them to. ``early`` is why a run is
        stopped early, judged by its metrics; it has no effect on a job that is being cancelled.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """End the job if it runs, and remove everything that is stored for it."""

    @abstractmethod
    def fetch(self, name: str, value: ValueReady) -> FetchedValue:
        """Download a rank's value to this machine's disk; raise ``ResultError`` if it is gone."""

    # Methods that build on those.

    def check(self, spec: JobSpec) -> list[str]:
        """Raise ``SpecError`` for options that this backend can't honour; return warnings about others."""
        no_cluster(spec)
        for name, value in (("run_policy", spec.launch.run_policy), ("retry", spec.retry)):
            if value is not None:
                raise SpecError(name, value, f"on {self.where}: it isn't enforced there", Shape.CONFLICT)
        return []

    def most_shipped(self, spec: JobSpec) -> int | None:
        """Return the most bytes of shipped files in a payload; None if big files travel apart from it."""
        return None

    @property
    def login(self) -> str:
        """The credentials that this process uses now; when they change, it follows a job once more."""
        return ""

    def ours(self, name: str) -> bool:
        """Whether the job was submitted from this machine, so that no other user chose its outputs."""
        return True

    def mine(self, name: str) -> bool:
        """Whether this user submitted the job, from any machine."""
        return True

    def scopes(self) -> list[str]:
        """Return the prefixes of addresses, such as ``context/namespace``, whose jobs are listed together."""
        return [""]

    def summaries(
        self, make: Make[Summary], *, everyone: bool = False, scope: str | None = None
    ) -> list[Summary]:
        """Return ``make(state, now)`` for each job; for an ended job that may be an earlier result.

        ``make`` is a module-level function, returns JSON, and depends only on the state once a job has ended.
        The jobs are those of :meth:`jobs`; if ``make`` raises for one, that is logged and the job left out.
        """
        now = time.time()
        candidates = (made_of(state, make, now) for state in self.jobs(everyone=everyone, scope=scope))
        return [summary for summary in candidates if summary is not None]

    def names(self) -> list[str]:
        """Return the names of all jobs, oldest first, as cheaply as possible: some may be deleted already."""
        return [state.info.name for state in self.jobs()]

    def snapshot(self, name: str) -> JobState:
        """Return a job's full state."""
        for state in self.jobs():
            if state.info.address == name:
                return state
        raise JobNotFoundError(f"there is no job named {name!r} on {self.where}")

    def brief_state(self, name: str) -> JobState:
        """Return a job's state as cheaply as possible, perhaps without logs and sources."""
        return self.snapshot(name)

    def several(self, names: Sequence[str]) -> list[JobState]:
        """Return the states of several jobs, in the order of their names, as :meth:`brief_state` does."""
        return [self.brief_state(name) for name in names]

    def mark(self, name: str) -> int | None:
        """Return the current end of the job's facts, where a new turn's view begins; None if unknown."""
        return None

    def info(self, name: str) -> JobInfo:
        """Return the record that was made at submission."""
        return self.snapshot(name).info

    def dry_run(self, call: Call, spec: JobSpec, info: JobInfo) -> str:
        """Describe what ``submit`` would start, without starting it."""
        fewest, most = info.nodes
        nodes = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        return f"{info.backend}: {nodes} node(s) × {info.nproc_per_node} rank(s) on {self.where}"

    def leftovers(self) -> list[Leftover]:
        """Return ended jobs, and objects that belong to no job."""
        now = time.time()
        ended = [(state, state.ended) for state in self.jobs()]
        return [
            Leftover(state.info.name, f"{state.phase.word} on {self.where}", now - end, state)
            for state, end in ended
            if end is not None
        ]

    def clear(self, leftover: Leftover) -> None:
        """Remove a leftover for good. A cluster job's value is saved here first, a local job's is not."""
        self.delete(leftover.name)

    def note(self, info: JobInfo, fact: CheckoutTold) -> None:
        """Record a fact that only the submitting machine knows."""
        return

    # Methods that by default know nothing.

    def enforcement(self, info: JobInfo) -> Mapping[str, str]:
        """Return who enforces each of a job's policies and budgets, by field name.

        Raises ``DamagedError`` and ``SpecError`` if its spec can't be read (``JobInfo.unreadable``).
        """
        return {}

    def doctor(self, spec: JobSpec) -> list[Finding]:
        """Check everything that a job of ``spec`` would need."""
        return []

    def checkpoints(self, name: str) -> Path | None:
        """Return the folder on this machine with a job's checkpoints; None if there is none."""
        return None

    def swap_keeper(self, name: str) -> SwapKeeper | None:
        """Return the object that keeps a job's next swap before it is sent; None if the nodes keep swaps."""
        return None

    def refuse(self, verb: str, name: str) -> NoReturn:
        """Raise ``SpecError`` for a verb that this backend lacks, or ``JobNotFoundError``."""
        self.info(name)
        raise SpecError(verb, name, f"a job on another backend: this one runs on {self.where}")


def made_of(state: JobState, make: Make[Summary], now: float) -> Summary | None:
    """Return ``make(state, now)``; None if that raises an exception, which is logged once per job."""
    try:
        return make(state, now)
    except Exception:  # a job's facts may hold anything: a bad one mustn't hide the other jobs
        if state.info.id not in _not_listed:
            _not_listed.add(state.info.id)
            import logging  # late: seldom needed

            logging.getLogger(__name__).exception("%s isn't listed", state.info.id)
        return None


@runtime_checkable
class Talks(Protocol):
    """Its running nodes answer questions."""

    def ask(
        self,
        name: str,
        question: Mapping[str, Any],
        nodes: Sequence[int] | None = None,
        timeout: float = 10.0,
    ) -> Iterator[NodeAnswer]:
        """Ask all nodes of a running job, or only ``nodes``; yield each node's answer as it arrives.

        ``question["question"]`` names the question. If a node can't answer within ``timeout`` seconds, the
        ``trouble`` of its answer says why. Raises ``JobEndedError`` if no node is left.
        """

    def talk(self, name: str, node: int, question: Mapping[str, Any], timeout: float = 10.0) -> Talk:
        """Begin a two-way conversation with a node of a running job.

        Raises ``AskError`` if the node doesn't accept the question within ``timeout`` seconds, and
        ``JobEndedError``.
        """


@runtime_checkable
class Signs(Protocol):
    """It keeps the key of each job, so that later parts of the job can be sent."""

    def key(self, name: str) -> bytes:
        """Return the key that signs what a job runs; raises ``AskError`` if it is unavailable."""


@runtime_checkable
class Numbers(Protocol):
    """It numbers the jobs of its pools, no matter which process sends them."""

    def number(self, name: str, newest: int) -> int:
        """Return the unique number of the next job of a pool, above the ``newest`` known one.

        It is 0 for a user who may not change the object that numbers are taken from.
        """


@runtime_checkable
class Stores(Protocol):
    """It stores what ranks wrote: facts, logs and archives."""

    def facts(self, name: str, turn: View | None = None) -> Iterator[Event]:
        """Yield the facts that :meth:`snapshot` is made of; with a ``turn``, those that its view needs."""

    def log(self, name: str, rank: int, offset: int = 0) -> Iterator[bytes]:
        """Return a rank's log from byte ``offset`` on, in pieces, one round after the other."""

    def chunks(self, name: str, ranks: Sequence[int]) -> list[Iterator[LogChunk]]:
        """Return each of these ranks' logs with times, one round after the other."""

    def artifacts(self, name: str, sent: ArtifactsReady) -> Path:
        """Download a node's archive of artifacts to this machine's disk; raise ``ResultError`` if it is gone.

        ``backends/downloads`` checks its contents.
        """


@runtime_checkable
class Annotates(Protocol):
    """Its jobs' records can hold notes and tags."""

    def annotate(self, name: str, fact: Annotated) -> None:
        """Store a person's note and tags with the job's record, also once the job has ended."""


@runtime_checkable
class Retries(Protocol):
    """It keeps a job's payload, which can be submitted again."""

    def retry(self, name: str, *, resume: bool = False) -> JobInfo:
        """Submit an ended job's payload again as a new job with a new name.

        With ``resume`` the new job finds the old job's checkpoints in its ``checkpoint_dir()``; the old job
        keeps them. Nothing is unpickled. Raises as ``submit`` does, also if the payload is gone, or there are
        no checkpoints.
        """


@runtime_checkable
class Suspends(Protocol):
    """Its jobs can exist without nodes."""

    def suspend(self, name: str) -> None:
        """Remove the job's nodes and keep the job."""

    def resume(self, name: str) -> None:
        """Start a suspended job's nodes again."""

    def begin(self, name: str) -> None:
        """Start a run that was submitted suspended; one that has started already is left alone."""


@runtime_checkable
class Queues(Protocol):
    """Its jobs wait for their turn in nbtorchjob's own queue."""

    def start(self, name: str) -> None:
        """Start a job that waits for its turn, beside the jobs that hold its places; no-op for other jobs."""


@runtime_checkable
class Exports(Protocol):
    """Its jobs can be written as files that run them without a notebook."""

    def export(self, name: str, folder: Path) -> list[Path]:
        """Write files to ``folder`` that run the job again without a notebook; return them."""

    def manifests(self, name: str) -> str:
        """Return the YAML of ``export`` without Secrets, which hold the payload and the job's key."""


@runtime_checkable
class Tends(Protocol):
    """Its jobs need a tender."""

    def tend(
        self, who: str, scopes: Sequence[str] = (), *, everyone: bool = False, listen: str = ""
    ) -> Tending:
        """Start to tend jobs in the background, as their followers would.

        It tends this user's jobs, or ``everyone``'s, in ``scopes``, by default in all of this user's scopes.
        ``who`` names the tender in a few words; it reports its health at ``listen``, HOST:PORT or a path.
        Raises ``OSError`` if it can't listen there.
        """

    def tenders(self, scopes: Sequence[str], image: str | None = None) -> str:
        """Return the manifests of a deployment that tends everyone's jobs in these scopes."""

    def tended(self, info: JobInfo) -> TenderStatus | None:
        """Return who tends a job; None if it needs no tending, or if that is unknown."""


@runtime_checkable
class Images(Protocol):
    """Its jobs run in images, which can import other packages than this process."""

    def image_contents(self, spec: JobSpec) -> list[Contents]:
        """Return the known contents of a job's images, the lead's first; empty if it has no images."""

    def choices(self, spec: JobSpec) -> Mapping[str, Sequence[Choice]]:
        """Return the values to choose from, by option key; options that can't be listed are absent."""


Capability = TypeVar("Capability")


def able(backend: Backend, capability: type[Capability], verb: str, name: str) -> Capability:
    """Return the backend as one with that capability; raises ``SpecError`` for ``verb`` if it lacks it."""
    if not isinstance(backend, capability):
        backend.refuse(verb, name)
    return backend


def who_tends(backend: Backend, info: JobInfo) -> TenderStatus | None:
    """Return who tends a job; None if it needs no tending, or if that is unknown."""
    return backend.tended(info) if isinstance(backend, Tends) else None


def known_images(backend: Backend, spec: JobSpec) -> list[Contents]:
    """Return the known contents of a job's images, the lead's first; empty if it has no images."""
    return backend.image_contents(spec) if isinstance(backend, Images) else []


def no_cluster(spec: JobSpec) -> None:
    """Raise ``SpecError`` for options that apply only to a cluster or its pods."""
    for name in changed_fields(spec.cluster):
        where = f"on the {spec.backend} backend: it is for --backend kubernetes"
        raise SpecError(name, getattr(spec.cluster, name), where, Shape.CONFLICT)
    roles = (spec.launch.master, spec.launch.worker) if isinstance(spec.launch, PyTorch) else ()
    for role in roles:
        for name in ("image", "requests", "limits", "restart_policy"):
            if (value := getattr(role, name)) is not None:
                allowed = f"to a {type(role).__name__} on the {spec.backend} backend, which has no pods"
                raise SpecError(name, value, allowed, Shape.CONFLICT)


class Enforcement(FrozenDataclass):
    """Who enforces one policy: each text says how, or why not, and is empty for a party without a part."""

    natively: str = ""
    by_us: str = ""
    refused: str = ""

    @property
    def who(self) -> str:
        """The enforcing parties, in a few words."""
        return " and ".join(self._texts())

    def __str__(self) -> str:
        return "; ".join(f"{who}: {text}" for who, text in self._texts().items())

    def _texts(self) -> dict[str, str]:
        texts = {"natively": self.natively, "by us": self.by_us, "refused": self.refused}
        return {who: text for who, text in texts.items() if text}
