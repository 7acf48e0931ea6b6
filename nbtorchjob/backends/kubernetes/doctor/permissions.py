"""What the account may do, asked of the server verb by verb."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes.api import discovery
from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.api.rbac import grant
from nbtorchjob.backends.kubernetes.doctor.rights import EVENTS, needed
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.objects.rights import Right
from nbtorchjob.spec.jobspec import JobSpec

_NOBODY = "NAME-OF-THE-USER"


async def look(client: Client, namespace: str, kind: Kind | None, spec: JobSpec, user: str) -> list[Finding]:
    """Yield what is permitted, and the Role for all that isn't. Raises ``ClusterError``."""
    must = needed(kind, spec)
    rights = [*must, *EVENTS]
    answers = await asyncio.gather(*(discovery.allowed(client, *right, namespace) for right in rights))
    denied = [right for right, good in zip(rights, answers, strict=True) if not good]
    remedy = grant(user or _NOBODY, namespace, denied).rstrip() if denied else ""
    return list(_findings(denied, len(must), remedy))


def _findings(denied: Sequence[Right], count: int, remedy: str) -> Iterator[Finding]:
    bad = [right for right in denied if right not in EVENTS]
    if bad:
        yield Finding(False, f"not permitted: {_said(bad)}; an administrator can grant it", remedy)
    else:
        yield Finding(True, f"all {count} permissions that a job needs are granted")
    if len(bad) < len(denied):
        text = "reading events isn't permitted, so the reason why a pod waits won't be shown"
        yield Finding(True, text, "" if bad else remedy)


def _said(rights: Iterable[Right]) -> str:
    by_resource: dict[str, list[str]] = {}
    for right in rights:
        by_resource.setdefault(right.what, []).append(right.verb)
    return "; ".join(f"{' '.join(verbs)} {what}" for what, verbs in by_resource.items())
