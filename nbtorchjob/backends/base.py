"""The interface of a backend: six verbs that each has, capabilities of some, and who enforces policies."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, TypeVar, runtime_checkable

from nbtorchjob.errors import JobNotFoundError, Shape, SpecError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.spec.cluster import given
from nbtorchjob.spec.config import PyTorch
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import JobInfo, JobState
from nbtorchjob.state.facts.events import Annotated, ArtifactsReady, CheckoutTold, Event, LogChunk, ValueReady

if TYPE_CHECKING:
    from nbtorchjob.backends.talk import Talk
    from nbtorchjob.capture import Call
    from nbtorchjob.environment.images import Contents
    from nbtorchjob.payload.results import Fetched
    from nbtorchjob.state.turns import View


Summary = TypeVar("Summary", bound=Mapping[str, Any])
Make = Callable[[JobState, float], Summary]  # of a job's state, and of the time

_not_listed: set[str] = set()  # ids of jobs


class Finding(FrozenDataclass):
    """The result of one of the doctor's checks; ``remedy`` is what to do, or to hand to an administrator."""

    good: bool
    text: str
    remedy: str = ""


class Leftover(FrozenDataclass):
    """Something left behind by a job that has ended or never began; ``age`` is in seconds."""

    name: str
    what: str
    age: float
    state: JobState | None = None  # None for an orphan: there is no job to it


class Choice(FrozenDataclass):
    """A value to choose for an option; ``note`` describes it in a few words."""

    value: str
    note: str = ""


class Tended(FrozenDataclass):
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
        """End it, and wait until it has given back what it held."""


class SwapKeeper(Protocol):
    """Keeps swaps of a job's code for attempts whose nodes are all new."""

    def keep(self, number: int, payload: bytes, earlier: Collection[int]) -> None:
        """Keep the payload of the swap of that number, which is behind the ``earlier`` ones.

        Raises ``SwapError`` where there is no room for it, or an earlier one isn't kept.
        """


class Backend(ABC):
    """What runs payloads. Each verb but ``submit`` and ``retry`` is idempotent.

    A new backend begins with the six abstract verbs. The other methods are built on these until the backend
    does better. What only some backends can do is a protocol below, such as :class:`Talks`: a backend has a
    capability once it has its methods, and :func:`able` refuses for one that hasn't. A name is a job's
    ``JobInfo.address``; verbs that take one raise ``JobNotFoundError`` for a job that doesn't exist.
    """

    where: ClassVar[str]  # in words, as what stands behind "on": "this machine"

    @abstractmethod
    def submit(self, call: Call, spec: JobSpec, info: JobInfo) -> JobInfo:
        """Send the job and return its record, which may be that of a job that runs already.

        A name that an ended job has gets a number. Raises ``SubmitError`` with nothing left behind, and
        ``NameTakenError`` for the name of another running job. An interrupted call removes what it made, or
        raises an ``Interrupted`` that describes what is left.
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

        With a ``turn``, at least the facts that its view needs are yielded, until the turn is over.

        Of each log the newest bytes are yielded, as many as can be shown, and some perhaps twice. ``since``
        maps (rank, round) to the bytes that the caller has: then every later byte is yielded exactly once,
        an earlier round's before a later one's, and nothing is read ahead of the caller.
        """

    @abstractmethod
    def jobs(self, *, everyone: bool = False, scope: str | None = None) -> list[JobState]:
        """Return the states of all jobs, oldest first, without logs; with ``everyone`` other users' too.

        ``scope`` is one of :meth:`scopes`; without it all are listed, and one that refuses is a warning.
        """

    @abstractmethod
    def cancel(self, name: str, *, gently: bool = False, early: str = "") -> None:
        """Request the job's end and keep its record; an ended job stays as it is.

        With ``gently`` its ranks get time to save, which ``leaving()`` reports to them. ``early`` is why a
        run is stopped early, judged by its metrics; it has no effect on a job that is being cancelled.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """End the job if it runs, and remove everything that is stored of it."""

    @abstractmethod
    def fetch(self, name: str, value: ValueReady) -> Fetched:
        """Download a rank's value to this machine's disk; raise ``ResultError`` if it is gone."""

    # What follows from those.

    def check(self, spec: JobSpec) -> list[str]:
        """Raise ``SpecError`` for options that this backend can't honour; return warnings about others."""
        no_cluster(spec)
        for name, asked in (("run_policy", spec.launch.run_policy), ("retry", spec.retry)):
            if asked is not None:
                raise SpecError(name, asked, f"on {self.where}: nobody enforces it there", Shape.CONFLICT)
        return []

    def most_shipped(self, spec: JobSpec) -> int | None:
        """Return the most bytes of shipped files in a payload; None if big files travel apart from it."""
        return None

    @property
    def login(self) -> str:
        """What this process asks with at present; with another login it follows a job once more."""
        return ""

    def ours(self, name: str) -> bool:
        """Whether the job was submitted from this machine, so that nobody else chose its outputs."""
        return True

    def mine(self, name: str) -> bool:
        """Whether this user submitted the job, from whatever machine."""
        return True

    def scopes(self) -> list[str]:
        """Return the prefixes of addresses, such as ``context/namespace``, whose jobs are listed together."""
        return [""]

    def summaries(
        self, make: Make[Summary], *, everyone: bool = False, scope: str | None = None
    ) -> list[Summary]:
        """Return ``make(state, now)`` of each job; for an ended job that may be an earlier result.

        ``make`` is a module's function, returns JSON, and depends only on the state once a job has ended.
        The jobs are those of :meth:`jobs`, without those that it raises an exception for, which is logged.
        """
        now = time.time()
        candidates = (made_of(state, make, now) for state in self.jobs(everyone=everyone, scope=scope))
        return [summary for summary in candidates if summary is not None]

    def names(self) -> list[str]:
        """Return the names of all jobs, oldest first, as cheaply as possible: one may be deleted already."""
        return [state.info.name for state in self.jobs()]

    def snapshot(self, name: str) -> JobState:
        """Return a job's full state."""
        for state in self.jobs():
            if state.info.address == name:
                return state
        raise JobNotFoundError(f"there is no job named {name!r} on {self.where}")

    def known(self, name: str) -> JobState:
        """Return a job's state as cheaply as possible: maybe without logs and sources."""
        return self.snapshot(name)

    def several(self, names: Sequence[str]) -> list[JobState]:
        """Return the states of several jobs, in the order of their names, as :meth:`known` does."""
        return [self.known(name) for name in names]

    def mark(self, name: str) -> int | None:
        """Return the present end of the job's facts, where a new turn's view begins; None if unknown."""
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
        """Remove it for good; a job's value is saved on this machine first."""
        self.delete(leftover.name)

    def note(self, info: JobInfo, fact: CheckoutTold) -> None:
        """Record a fact that only the submitting machine knows."""
        return

    # What may be unknown here.

    def enforcement(self, info: JobInfo) -> Mapping[str, str]:
        """Return who enforces each of a job's policies and budgets, by field name.

        Raises ``DamagedError`` and ``SpecError`` where its spec can't be read (``JobInfo.unreadable``).
        """
        return {}

    def doctor(self, spec: JobSpec) -> list[Finding]:
        """Check everything that a job of ``spec`` would need."""
        return []

    def checkpoints(self, name: str) -> Path | None:
        """Return the folder of this machine in which a job's checkpoints lie; None where there is none."""
        return None

    def swap_keeper(self, name: str) -> SwapKeeper | None:
        """Return what is to keep a job's next swap, before that is sent; None where its nodes do."""
        return None

    def refuse(self, verb: str, name: str) -> NoReturn:
        """Raise ``SpecError`` for what this backend can't do with a job, or why there is no such job."""
        self.info(name)
        raise SpecError(verb, name, f"a job on another backend: this one runs on {self.where}")


def made_of(state: JobState, make: Make[Summary], now: float) -> Summary | None:
    """Return ``make(state, now)``; None where that raises an exception, which is logged once of each job."""
    try:
        return make(state, now)
    except Exception:  # what a job tells may be anything: one mustn't hide the others
        if state.info.id not in _not_listed:
            _not_listed.add(state.info.id)
            import logging  # late: it is seldom needed

            logging.getLogger(__name__).exception("%s isn't listed", state.info.id)
        return None


@runtime_checkable
class Talks(Protocol):
    """Its running nodes answer."""

    def ask(
        self,
        name: str,
        question: Mapping[str, Any],
        nodes: Sequence[int] | None = None,
        timeout: float = 10.0,
    ) -> Iterator[NodeAnswer]:
        """Ask all nodes of a running job, or these; yield one answer of each node as it comes.

        ``question["question"]`` names the question. The answer of a node that can't answer within ``timeout``
        seconds says why in its ``trouble``. Raises ``JobEndedError`` if no node is left.
        """

    def talk(self, name: str, node: int, question: Mapping[str, Any], timeout: float = 10.0) -> Talk:
        """Begin a two-way conversation with a node of a running job.

        Raises ``AskError`` if the node doesn't take the question within ``timeout`` seconds, and
        ``JobEndedError``.
        """


@runtime_checkable
class Signs(Protocol):
    """It keeps the key of each job, so that later parts of it can be sent."""

    def key(self, name: str) -> bytes:
        """Return the key that signs what a job runs; raises ``AskError`` if it is unavailable."""


@runtime_checkable
class Numbers(Protocol):
    """It numbers the jobs of its pools, whoever sends them."""

    def number(self, name: str, newest: int) -> int:
        """Return the number of the next job of a pool, above its ``newest`` known one: no two have the same.

        It is 0 for a user who may not change what numbers are taken from.
        """


@runtime_checkable
class Stores(Protocol):
    """It keeps what ranks wrote: facts, logs and archives."""

    def facts(self, name: str, turn: View | None = None) -> Iterator[Event]:
        """Yield the facts that :meth:`snapshot` is made of; with a ``turn`` what its view needs."""

    def log(self, name: str, rank: int, offset: int = 0) -> Iterator[bytes]:
        """Return a rank's log from byte ``offset`` on, in pieces, its rounds one after the other."""

    def chunks(self, name: str, ranks: Sequence[int]) -> list[Iterator[LogChunk]]:
        """Return each of these ranks' logs with its times, its rounds one after the other."""

    def artifacts(self, name: str, sent: ArtifactsReady) -> Path:
        """Bring a node's archive of artifacts to this machine's disk; raise ``ResultError`` if it is gone.

        ``backends/downloads`` checks what is in it.
        """


@runtime_checkable
class Annotates(Protocol):
    """Its records take notes and tags."""

    def annotate(self, name: str, fact: Annotated) -> None:
        """Store a person's note and tags with the job's record; an ended job takes them, too."""


@runtime_checkable
class Retries(Protocol):
    """It keeps a job's payload, which can be submitted again."""

    def retry(self, name: str, *, resume: bool = False) -> JobInfo:
        """Submit an ended job's payload again as a new job with a new name.

        With ``resume`` it finds the old job's checkpoints in its ``checkpoint_dir()``, which the old job
        keeps. Nothing is unpickled. Raises as ``submit`` does, also if the payload is gone, or there are no
        checkpoints.
        """


@runtime_checkable
class Suspends(Protocol):
    """A job there can exist without nodes."""

    def suspend(self, name: str) -> None:
        """Remove the job's nodes and keep the job."""

    def resume(self, name: str) -> None:
        """Start a suspended job's nodes again."""

    def begin(self, name: str) -> None:
        """Start a run that was submitted suspended; one that has started already is left alone."""


@runtime_checkable
class Queues(Protocol):
    """Its jobs wait for their turn in a queue of ours."""

    def start(self, name: str) -> None:
        """Start a job that waits for its turn, beside what has its places; others are left alone."""


@runtime_checkable
class Exports(Protocol):
    """Its jobs can be written as files that run them without a notebook."""

    def export(self, name: str, folder: Path) -> list[Path]:
        """Write files to ``folder`` that run the job again without a notebook; return them."""

    def manifests(self, name: str) -> str:
        """Return the YAML of ``export`` without Secrets, which hold the payload and the job's key."""


@runtime_checkable
class Tends(Protocol):
    """Its jobs need something that looks after them."""

    def tend(
        self, who: str, scopes: Sequence[str] = (), *, everyone: bool = False, listen: str = ""
    ) -> Tending:
        """Start to tend jobs in the background, as their followers would.

        It tends this user's jobs, or ``everyone``'s, in ``scopes``, by default in all that this user has.
        ``who`` names the tender in a few words; it reports its health at ``listen``, HOST:PORT or a path.
        """

    def tenders(self, scopes: Sequence[str], image: str | None = None) -> str:
        """Return manifests of a deployment that tends everybody's jobs in these scopes."""

    def tended(self, info: JobInfo) -> Tended | None:
        """Return who tends a job; None if it needs no tending, or if that is unknown."""


@runtime_checkable
class Images(Protocol):
    """Its jobs run in images: what these can import isn't what this process can."""

    def there(self, spec: JobSpec) -> list[Contents]:
        """Return the known contents of a job's images, the lead's first; empty if it has no images."""

    def choices(self, spec: JobSpec) -> Mapping[str, Sequence[Choice]]:
        """Return the values to choose from, by the option's key; those that can't be listed are absent."""


Capability = TypeVar("Capability")


def able(backend: Backend, capability: type[Capability], verb: str, name: str) -> Capability:
    """Return a backend as one with that capability; raises ``SpecError`` for ``verb`` of a job without it."""
    if not isinstance(backend, capability):
        backend.refuse(verb, name)
    return backend


def who_tends(backend: Backend, info: JobInfo) -> Tended | None:
    """Return who tends a job; None if it needs no tending, or if that is unknown."""
    return backend.tended(info) if isinstance(backend, Tends) else None


def known_images(backend: Backend, spec: JobSpec) -> list[Contents]:
    """Return the known contents of a job's images, the lead's first; empty if it has no images."""
    return backend.there(spec) if isinstance(backend, Images) else []


def no_cluster(spec: JobSpec) -> None:
    """Raise ``SpecError`` for options of a cluster or its pods."""
    for name in given(spec.cluster):
        where = f"on the {spec.backend} backend: it is for --backend kubernetes"
        raise SpecError(name, getattr(spec.cluster, name), where, Shape.CONFLICT)
    roles = (spec.launch.master, spec.launch.worker) if isinstance(spec.launch, PyTorch) else ()
    for role in roles:
        for name in ("image", "requests", "limits", "restart_policy"):
            if (value := getattr(role, name)) is not None:
                whose = f"to a {type(role).__name__} on the {spec.backend} backend: pods have such"
                raise SpecError(name, value, whose, Shape.CONFLICT)


class Enforced(FrozenDataclass):
    """Who enforces one policy: each text says how, or why not; an empty one has no part in it."""

    natively: str = ""
    by_us: str = ""
    refused: str = ""

    @property
    def who(self) -> str:
        """Who, in a few words."""
        return " and ".join(self._texts())

    def __str__(self) -> str:
        return "; ".join(f"{who}: {text}" for who, text in self._texts().items())

    def _texts(self) -> dict[str, str]:
        texts = {"natively": self.natively, "by us": self.by_us, "refused": self.refused}
        return {who: text for who, text in texts.items() if text}
