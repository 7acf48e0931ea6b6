"""What an account must be permitted: every call that jobs need, by what it is for (pure).

The one table of it. The doctor asks the server for each, prints the Role of those that are missing, and
``docs/permissions.md`` is made of it; a test runs jobs of all kinds under a Role of exactly these rights, and
finds none of them unused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nbtorchjob.backends.kubernetes import paths
from nbtorchjob.backends.kubernetes.kinds import enforcement
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.paths import Api
from nbtorchjob.spec import JobSpec


class Right(NamedTuple):
    """A verb on a resource, as a Role has it."""

    verb: str
    group: str
    resource: str

    @property
    def what(self) -> str:
        """The resource by its full name."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


class Use(NamedTuple):
    """Verbs on a resource, and what they are for; ``part`` is a subresource."""

    verbs: str
    api: Api
    why: str
    part: str = ""

    @property
    def rights(self) -> Iterator[Right]:
        """Each verb by itself."""
        resource = f"{self.api.plural}/{self.part}" if self.part else self.api.plural
        return (Right(verb, self.api.group, resource) for verb in self.verbs.split())


# Whatever its kind.
ALWAYS = (
    Use("create patch", paths.SECRETS, "the payload and the job's key; the job is made their owner"),
    Use("get list", paths.SECRETS, "the key of a value, a further attempt, `retry`, `export`, `gc`"),
    Use("delete", paths.SECRETS, "what a submission that failed has made, `gc`"),
    Use("list watch", paths.PODS, "status, `list`"),
    Use("get", paths.PODS, "logs, what ranks report, values", "log"),
    Use("list", paths.SERVICES, "`export`, `gc`"),
)
BY_KIND = {
    "volcano": (Use("create", paths.COMMANDS, "`cancel`, `suspend`, `resume`"),),
    "indexedjob": (
        Use("create get", paths.SERVICES, "the names of the nodes; looked at where an answer was lost"),
        Use("delete", paths.SERVICES, "`gc`, of exported jobs"),
    ),
}
CLEANING = (Use("delete", paths.PODS, "pods that nobody else removes"),)
ISOLATING = (
    Use("create get", paths.POLICIES, "`--network-policy`; looked at where an answer was lost"),
    Use("list delete", paths.POLICIES, "`gc`, of exported jobs"),
)
# A job runs without these: what they are for is left out, and the doctor says so.
OPTIONAL = (
    Use("list watch", paths.EVENTS, "why a pod waits"),
    Use("get list", paths.RUNTIMES, "the runtime that a TrainJob names; the panel's choices"),
    Use("get list", paths.ACCOUNTS, "`doctor`: whether it is there; the panel's choices"),
    Use("get list", paths.CLAIMS, "`doctor`: whether it is there, and fit; the panel's choices"),
    Use("list", paths.QUOTAS, "`doctor`: whether the job fits in"),
    Use("list", paths.LOCAL_QUEUES, "the panel's choices"),
)
# The same, of what is in no namespace, or in all.
CLUSTERWIDE = (
    Use("get list", paths.NAMESPACES, "`doctor`: whether it is there, its Pod Security; the panel's choices"),
    Use("get list", paths.CLUSTER_RUNTIMES, "the runtime that a TrainJob names; the panel's choices"),
    Use("get list", paths.PRIORITIES, "`doctor`: whether it is there; the panel's choices"),
    Use("get list", paths.QUEUES, "`doctor`: whether it is there, and open; the panel's choices"),
    Use("list", paths.HOSTS, "`doctor`: which could hold a pod, or are preemptible; the panel's choices"),
    Use("list", paths.PODS, "the panel: what is free on hosts"),
)
EVENTS = tuple(OPTIONAL[0].rights)


def own(kind: Kind) -> tuple[Use, ...]:
    """Give what is done to the job objects themselves."""
    return (
        Use("create", kind.api, "to submit"),
        Use("get list watch", kind.api, "to find a job, to follow it"),
        Use("patch", kind.api, "`cancel`, `suspend`, `resume`"),
        Use("delete", kind.api, "`delete`, `gc`, a submission that failed"),
    )


def needed(kind: Kind | None, spec: JobSpec | None = None) -> list[Right]:
    """Give what a job can't do without; without ``spec`` one that asks for nothing."""
    if kind is None:
        return rights(ALWAYS)
    ours = enforcement.ours(kind, spec, "") if spec else ()
    cleaning = CLEANING if "clean_pod_policy" in ours else ()
    isolating = ISOLATING if spec and spec.cluster.network_policy else ()
    return rights((*own(kind), *ALWAYS, *BY_KIND.get(kind.name, ()), *cleaning, *isolating))


def rights(uses: Iterable[Use]) -> list[Right]:
    """Give each right of them once."""
    return [*dict.fromkeys(right for use in uses for right in use.rights)]
