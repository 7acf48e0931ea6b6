"""What the account may do, asked of the server verb by verb."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes.api import discovery
from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.api.rbac import grant
from nbtorchjob.backends.kubernetes.doctor.rights import ASKING, EVENTS, needed
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.objects.rights import Right
from nbtorchjob.spec.jobspec import JobSpec

_NOBODY = "NAME-OF-THE-USER"
_OPTIONAL = {
    EVENTS: "reading events isn't permitted, so the reason why a pod waits won't be shown",
    ASKING: "exec in pods isn't permitted, so a running job's nodes can't be asked anything",
}


async def look(client: Client, namespace: str, kind: Kind | None, spec: JobSpec, user: str) -> list[Finding]:
    """Yield what is permitted, and the Role for all that isn't. Raises ``ClusterError``."""
    must = needed(kind, spec)
    rights = [*must, *EVENTS, *ASKING]
    answers = await asyncio.gather(*(discovery.allowed(client, *right, namespace) for right in rights))
    denied = [right for right, good in zip(rights, answers, strict=True) if not good]
    return list(
        _findings(denied, len(must), lambda rights: grant(user or _NOBODY, namespace, rights).rstrip())
    )


def _findings(
    denied: Sequence[Right], count: int, role: Callable[[Sequence[Right]], str]
) -> Iterator[Finding]:
    bad = [right for right in denied if right not in (*EVENTS, *ASKING)]
    if bad:
        yield Finding(False, f"not permitted: {_said(bad)}; an administrator can grant it", role(denied))
    else:
        yield Finding(True, f"all {count} permissions that a job needs are granted")
    for optional, text in _OPTIONAL.items():
        if missing := [right for right in optional if right in denied]:
            yield Finding(True, text, "" if bad else role(missing))


def _said(rights: Iterable[Right]) -> str:
    by_resource: dict[str, list[str]] = {}
    for right in rights:
        by_resource.setdefault(right.what, []).append(right.verb)
    return "; ".join(f"{' '.join(verbs)} {what}" for what, verbs in by_resource.items())
