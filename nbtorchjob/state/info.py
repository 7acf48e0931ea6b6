"""The record of a job, fixed at its submission, and the only code that writes and reads it.

A record is JSON, and only :func:`write` and :func:`read` know its format. It is stored in a job's folder, in
an annotation and a Secret of its object, and in this machine's cache of a cluster's jobs; it may come from
another user, a later version or a full disk. So ``read`` either returns a record whose fields are valid,
without those of a later version, or raises ``DamagedError``.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, fields
from functools import cache
from typing import Any

from nbtorchjob.errors import DamagedError, SpecError
from nbtorchjob.frozen import FrozenDataclass, cached_property, replace
from nbtorchjob.spec import checked
from nbtorchjob.spec.grid import Early
from nbtorchjob.spec.jobspec import GRACE_S, JobSpec, build
from nbtorchjob.spec.policies import Retry
from nbtorchjob.state.facts.factlines import UNREADABLE

US, OPERATOR = "us", "operator"
SAMPLED = "~"  # in front of a digest of samples: if these are equal, the rest may still differ
API_BYTES = 16 << 20  # the most for a payload sent through a cluster's API; bigger ones go through a store
MARK = "#"  # between a lab's name and the number of a turn, or its id

# Upper bounds for a record's numbers: it may come from another user.
_MOST: Mapping[str, float] = {
    "created": 1e11,  # the year 5138
    "cluster_created": 1e11,
    "began": 1e11,
    "packed": 1e11,
    "payload": 1 << 62,
    "nodes": 10**9,
    "nproc_per_node": 10**9,
    "max_restarts": 10**9,
    "ttl_s": 10**18,
    "deadline_s": 10**18,
    "leave_before_s": 10**18,
    "start_within_s": 10**18,
    "grace_s": 10**9,
    "lab": 10**18,
    "number": 10**9,
    "at_once": 10**9,
}


class Origin(FrozenDataclass):
    """Where a call was written: the notebook's path, its cell's id, and cells' labels by file name."""

    notebook: str = ""
    cell: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


class JobInfo(FrozenDataclass):
    """What is known of a job from its submission on, and never changes.

    The spec is kept as plain data, for running the job again and for looking up its options: it is built on
    the first access to :attr:`jobspec`. What lists, the fold and the card need of the spec has fields of its
    own, which are written at submission and always agree with it. So a list of thousands builds no spec, and
    a spec that is wrong, or that only a later version understands, hides no job. Only the budgets are read
    from the spec along with the record.
    """

    name: str
    backend: str = "local"
    created: float = 0.0  # seconds since the epoch, by the clock of the machine that sent it
    cluster_created: float = 0.0  # by its cluster's clock, where that differs by seconds; else 0
    label: str = ""  # what runs, in a few words: "cell", "train(model, lr=0.1)"
    nodes: tuple[int, int] = (1, 1)  # fewest, most
    nproc_per_node: int = 1
    max_restarts: int = 0
    ships: str = ""  # one line: what travelled, with sizes
    all_ranks: bool = False
    ttl_s: int | None = None  # seconds to live once ended
    deadline_s: int | None = None  # seconds to run, from creation or the last resume
    leave_before_s: int | None = None  # seconds before that for ranks to save
    start_within_s: float | None = None  # seconds that problems may delay the start of an attempt
    grace_s: int = GRACE_S  # seconds that a node has to end once it is told to
    # The retry owner: US (a supervisor, or a follower of the job) numbers the attempts; an OPERATOR
    # replaces pods as it goes. "" where the spec has no budgets.
    retry_owner: str = ""
    sources: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # file -> (label, text)
    # What was captured, local modules included: name -> (what it is, its digest; "" where none is kept). None
    # where this is unknown.
    captured: Mapping[str, tuple[str, str]] | None = None
    spec: Mapping[str, Any] = field(default_factory=dict)  # as ``JobSpec.to_json`` returns it
    call: str = ""  # a digest of what runs and how: the same for a cell that is run again unchanged
    # What its spec's settings resolved to on a cluster: context, namespace, kind. Empty on this machine.
    cluster: Mapping[str, str] = field(default_factory=dict)
    notebook: str = ""  # path of the notebook that submitted it, where its kernel ran
    cell: str = ""  # id of the cell in it (nbformat 4.5)
    lab: float | None = None  # for a lab: seconds that it waits for a turn before it ends; 0 is for ever
    turn: tuple[int, ...] = ()  # for a lab's turn, as ``state/turns`` makes it: the ranks that run it
    python: str = ""  # the version of Python that captured its call, "3.11": a lab runs no other
    promoted: str = ""  # the lab whose cells it runs once more
    # When the capture of its call began, and when it was packed; 0 for a retry, which sends the same payload.
    began: float = 0.0
    packed: float = 0.0
    checkpoints: str = ""  # for a job that resumes another: the name of its folder among --checkpoints
    payload: int = 0  # the payload's size in bytes; 0 where that is unknown
    group: str = ""  # for a run: the group of jobs that were sent together
    number: int = 0  # for a run: its place in the group, from 1
    given: Mapping[str, Any] = field(default_factory=dict)  # for a run: its parameters, as they are shown
    variant: str = ""  # for a run: its parameters as its ranks take them, signed with the job's key
    at_once: int | None = None  # for a run: how many of its group may run at a time
    early: Mapping[str, Any] = field(default_factory=dict)  # for a run: what stops its group's runs early

    def __repr__(self) -> str:
        return f"<JobInfo {self.name} on {self.backend}: {self.label or 'no label'}>"

    @property
    def full_label(self) -> str:
        """What runs, prefixed with the name as the user gave it where the job's name was made to fit."""
        title = str(self.spec.get("title", ""))
        return f"“{title}” {self.label}" if title else self.label

    @cached_property
    def jobspec(self) -> JobSpec:
        """The spec that it was submitted with.

        Raises ``DamagedError``, or ``SpecError`` for a value that a later version may allow.
        """
        try:
            return JobSpec.from_json(self.spec) if self.spec else JobSpec()
        except SpecError:
            raise
        except UNREADABLE as exc:
            raise DamagedError(self.backend, self.address, "record", why(exc)) from exc

    @cached_property
    def unreadable(self) -> str:
        """Why its spec can't be read, in one line; "" where it can."""
        try:
            self.jobspec  # noqa: B018  # built when it is asked for
        except DamagedError as exc:
            return exc.why
        except SpecError as exc:
            return str(exc)
        return ""

    @cached_property
    def retry(self) -> Retry | None:
        """The job's budgets; None where its spec has none."""
        value = self.spec.get("retry")
        return build(Retry, value) if value else None

    @property
    def stops_early(self) -> Early | None:
        """What stops its group's runs early; None where nothing does.

        Raises ``DamagedError``, or ``SpecError`` for a value that a later version may allow.
        """
        try:
            return build(Early, self.early) if self.early else None
        except SpecError:
            raise
        except UNREADABLE as exc:
            raise DamagedError(self.backend, self.address, "record", why(exc)) from exc

    @property
    def of_lab(self) -> str:
        """For a turn, the name of its lab, which is in front of :data:`MARK`; "" for a job."""
        return self.name.rpartition(MARK)[0]

    @property
    def is_pool(self) -> bool:
        """Whether it is a lab whose turns are jobs, in processes of their own."""
        return self.lab is not None and bool(self.spec.get("fresh"))

    @property
    def in_pool(self) -> bool:
        """Whether it is a job in a pool: a turn whose ranks are its own."""
        return bool(self.of_lab) and self.spec.get("lab") is False

    @property
    def speaker(self) -> int:
        """The rank whose value, log and displays stand for all: 0, or the lowest rank of a lab's turn."""
        return min(self.turn, default=0)

    @property
    def run(self) -> str:
        """What distinguishes it from other jobs of its name, and from those that repeat it with its key."""
        return run_at(self.created)

    def is_another(self, other: JobInfo) -> bool:
        """Whether ``other``, which has this job's address now, is another job: this one was deleted."""
        # A lab distinguishes its turns itself, and may know only when one of them was taken.
        return not self.of_lab and other.run != self.run

    def sent_again(self, name: str | None = None) -> JobInfo:
        """Return the record of a job that is sent now with the same payload, optionally under a new name."""
        new = replace(self, name=name or self.name, created=time.time())
        return replace(new, began=0.0, packed=0.0, checkpoints="")

    def swapped(self, swaps: Iterable[tuple[str, str]]) -> JobInfo:
        """Return the record of a job that begins with these swaps, given as labels and texts in order."""
        texts = dict(swaps)
        if not texts:
            return self
        more = {f"<{label}>": (label, text) for label, text in texts.items()}
        call = hashlib.sha256(f"{self.call} {texts}".encode()).hexdigest()[: len(self.call)]
        return replace(self, sources={**self.sources, **more}, call=call)

    @property
    def id(self) -> str:
        """What identifies it to programs: its backend and its address."""
        return f"{self.backend}:{self.address}"

    @property
    def address(self) -> str:
        """What identifies it to its backend: its name and, on a cluster, its context and namespace."""
        return address(self.cluster.get("context", ""), self.cluster.get("namespace", ""), self.name)


def address(context: str, namespace: str, name: str) -> str:
    """Return ``CONTEXT/NAMESPACE/NAME``, without empty parts."""
    return "/".join(filter(None, (context, namespace, name)))


def run_at(created: float) -> str:
    """Return ``JobInfo.run`` for a job created at that time."""
    return f"{created:.6f}"


def write(info: JobInfo, names: Collection[str] | None = None) -> str:
    """Return the record as text, or only its fields with these ``names``."""
    chosen = [item.name for item in fields(info) if names is None or item.name in names]
    record = {name: getattr(info, name) for name in chosen}
    return json.dumps(record, default=dict, separators=(",", ":"))


def read(
    text: str | bytes, backend: str, name: str, *, under: str = "", onto: JobInfo | None = None
) -> JobInfo:
    """Return the record that :func:`write` returned, maybe ``under`` a key; ``onto`` has the missing fields.

    Raises ``DamagedError``, which names the ``backend`` and the job; the caller has to check that the record
    names the same ones.
    """
    try:
        record = json.loads(text)
        beneath = {item.name: getattr(onto, item.name) for item in fields(onto)} if onto else {}
        values = {**beneath, **(record[under] if under else record)}
        values["nodes"] = tuple(values["nodes"])
        values["turn"] = tuple(values.get("turn", ()))
        for key in ("sources", "captured"):
            if values.get(key) is not None:
                values[key] = {name: tuple(pair) for name, pair in values[key].items()}
        field_values = checked(JobInfo, values)
        for field_name, most in _MOST.items():
            value = field_values.get(field_name)
            if value is None or (type(value) is not tuple and 0 <= value <= most):
                continue
            for number in value if isinstance(value, tuple) else (value,):
                if not 0 <= number <= most:  # also true of NaN
                    raise ValueError(f"its {field_name} is {number!r:.40}")
        if not field_values["name"].isprintable():
            raise ValueError(f"its name is {field_values['name']!r:.40}")
        info = replace(_blank(), **field_values)
        info.retry  # noqa: B018  # what is concluded of a job asks for its budgets
        return info
    except UNREADABLE as exc:
        raise DamagedError(backend, name, "record", why(exc)) from exc


def why(exc: Exception) -> str:
    """Describe in one line what was wrong with a record that couldn't be read."""
    if isinstance(exc, KeyError):
        return f"{exc} is missing"
    reason = exc.strerror if isinstance(exc, OSError) else str(exc)
    return " ".join(f"{reason or type(exc).__name__}".split())


@cache
def _blank() -> JobInfo:
    """Return an empty record to lay fields over: a list reads thousands, and making one takes 9 µs.

    Making the first takes more than a millisecond (``frozen``), so commands that read no record don't.
    """
    return JobInfo("")
