"""What the account may do, asked of the server verb by verb."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes import discovery
from nbtorchjob.backends.kubernetes.client import Client
from nbtorchjob.backends.kubernetes.grants import grant
from nbtorchjob.backends.kubernetes.kinds import enforcement
from nbtorchjob.backends.kubernetes.kinds.base import Kind
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


def _rights(group: str, resource: str, verbs: str) -> list[Right]:
    return [Right(verb, group, resource) for verb in verbs.split()]


# Services are listed for what killed kernels left behind, of whatever kind it was.
_ALWAYS = (
    *_rights("", "secrets", "create get list patch delete"),
    *_rights("", "pods", "list watch"),
    *_rights("", "pods/log", "get"),
    *_rights("", "services", "list"),
)
_OF_KIND = {
    "volcano": _rights("bus.volcano.sh", "commands", "create"),
    "indexedjob": _rights("", "services", "create get delete"),
}
_POLICIES = _rights("networking.k8s.io", "networkpolicies", "create")
# A job runs without these.
_EVENTS = _rights("", "events", "list watch")
_NOBODY = "NAME-OF-THE-USER"


def needed(kind: Kind | None, spec: JobSpec | None = None) -> list[Right]:
    """Give what a job can't do without; without ``spec`` one that asks for nothing."""
    if kind is None:
        return list(_ALWAYS)
    own = _rights(kind.api.group, kind.api.plural, "create get list watch patch delete")
    ours = enforcement.ours(kind, spec, "") if spec else ()
    cleaning = _rights("", "pods", "delete") if "clean_pod_policy" in ours else []
    isolating = _POLICIES if spec and spec.cluster.network_policy else []
    return [*own, *_ALWAYS, *_OF_KIND.get(kind.name, ()), *cleaning, *isolating]


async def look(client: Client, namespace: str, kind: Kind | None, spec: JobSpec, user: str) -> list[Finding]:
    """Say what is allowed, and give the Role for all that isn't. Raises ``Refusal``."""
    must = needed(kind, spec)
    denied = await _denied(client, namespace, [*must, *_EVENTS])
    return list(
        _findings(denied, len(must), grant(user or _NOBODY, namespace, denied).rstrip() if denied else "")
    )


async def _denied(client: Client, namespace: str, rights: Sequence[Right]) -> list[Right]:
    answers = await asyncio.gather(*(discovery.allowed(client, *right, namespace) for right in rights))
    return [right for right, good in zip(rights, answers, strict=True) if not good]


def _findings(denied: Sequence[Right], count: int, remedy: str) -> Iterator[Finding]:
    bad = [right for right in denied if right not in _EVENTS]
    if bad:
        yield Finding(False, f"not permitted: {_said(bad)}; an administrator can grant it", remedy)
    else:
        yield Finding(True, f"all {count} permissions that a job needs are there")
    if len(bad) < len(denied):
        text = "reading events isn't permitted, so why a pod waits won't be shown"
        yield Finding(True, text, "" if bad else remedy)


def _said(rights: Iterable[Right]) -> str:
    by_resource: dict[str, list[str]] = {}
    for right in rights:
        by_resource.setdefault(right.what, []).append(right.verb)
    return "; ".join(f"{' '.join(verbs)} {what}" for what, verbs in by_resource.items())
