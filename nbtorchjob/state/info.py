"""What is known of a job from its submission on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nbtorchjob.fits import checked
from nbtorchjob.policies import Retry
from nbtorchjob.spec import JobSpec

US, OPERATOR = "us", "operator"

# The most that numbers of a record may be: it may be somebody else's.
_MOST: Mapping[str, float] = {
    "created": 1e11,  # the year 5138
    "nodes": 10**9,
    "nproc_per_node": 10**9,
    "max_restarts": 10**9,
    "ttl_s": 10**18,
    "deadline_s": 10**18,
    "start_within_s": 10**18,
}


@dataclass(frozen=True)
class Origin:
    """Where a call was written: the notebook's path, its cell's id, and what cells are called by file."""

    notebook: str = ""
    cell: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobInfo:
    """What is known of a job from its submission on, and never changes."""

    name: str
    backend: str = "local"
    created: float = 0.0  # seconds since the epoch
    label: str = ""  # what runs, in a few words: "cell", "train(model, lr=0.1)"
    nodes: tuple[int, int] = (1, 1)  # fewest, most
    nproc_per_node: int = 1
    max_restarts: int = 0
    ships: str = ""  # one line: what travelled, with sizes
    all_ranks: bool = False
    ttl_s: int | None = None  # seconds to live once ended
    deadline_s: int | None = None  # seconds to run, from creation or the last resume
    start_within_s: float | None = None  # seconds that what has a name may hold an attempt back
    # Who starts attempts again: US (a supervisor, or whoever follows the job) numbers them; an OPERATOR
    # replaces pods as it goes. "" where the spec has no budgets.
    keeper: str = ""
    sources: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # file -> (label, text)
    spec: Mapping[str, Any] = field(default_factory=dict)  # as ``JobSpec.to_json`` gives it
    call: str = ""  # a digest of what runs and how: the same for a cell that is run again unchanged
    place: Mapping[str, str] = field(default_factory=dict)  # where in the backend: context, namespace, kind
    notebook: str = ""  # path of the notebook that submitted it, where its kernel ran
    cell: str = ""  # id of the cell in it (nbformat 4.5)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> JobInfo:
        """Rebuild a record; raises what is raised for one that can't be (``events.UNREADABLE``).

        Fields of a later version are left out. The spec is built only when it is asked for, but for the
        budgets: what is concluded of a job asks for them.
        """
        given = dict(record)
        given["nodes"] = tuple(given["nodes"])
        given["sources"] = {name: tuple(pair) for name, pair in given.get("sources", {}).items()}
        known = checked(cls, given)
        for name, most in _MOST.items():
            value = known.get(name)
            for number in value if isinstance(value, tuple) else (value,):
                if number is not None and not 0 <= number <= most:  # nor is NaN
                    raise ValueError(f"its {name} is {number!r:.40}")
        if not known["name"].isprintable():
            raise ValueError(f"its name is {known['name']!r:.40}")
        info = cls(**known)
        info.retry  # noqa: B018
        return info

    @property
    def asked(self) -> JobSpec:
        """The spec that it was submitted with."""
        return JobSpec.from_json(self.spec) if self.spec else JobSpec()

    @property
    def retry(self) -> Retry | None:
        """The job's budgets; None where its spec has none."""
        found = self.spec.get("retry")
        return Retry(**found) if found else None

    @property
    def run(self) -> str:
        """What tells it from other jobs of its name, and from those that repeat it with its key."""
        return f"{self.created:.6f}"

    @property
    def id(self) -> str:
        """What programs know it by: its backend and its address."""
        return f"{self.backend}:{self.address}"

    @property
    def address(self) -> str:
        """What backends know it by: its name, and on a cluster where it is, as names aren't unique there."""
        return address(self.place.get("context", ""), self.place.get("namespace", ""), self.name)


def address(context: str, namespace: str, name: str) -> str:
    """Give ``CONTEXT/NAMESPACE/NAME``, without what is empty."""
    return "/".join(part for part in (context, namespace, name) if part)
