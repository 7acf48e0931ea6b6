"""What the account may do, asked of the server verb by verb."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes import discovery
from nbtorchjob.backends.kubernetes.client import Client
from nbtorchjob.backends.kubernetes.grants import grant
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.rights import EVENTS, Right, needed
from nbtorchjob.spec import JobSpec

_NOBODY = "NAME-OF-THE-USER"


async def look(client: Client, namespace: str, kind: Kind | None, spec: JobSpec, user: str) -> list[Finding]:
    """Say what is allowed, and give the Role for all that isn't. Raises ``Refusal``."""
    must = needed(kind, spec)
    denied = await _denied(client, namespace, [*must, *EVENTS])
    return list(
        _findings(denied, len(must), grant(user or _NOBODY, namespace, denied).rstrip() if denied else "")
    )


async def _denied(client: Client, namespace: str, rights: Sequence[Right]) -> list[Right]:
    answers = await asyncio.gather(*(discovery.allowed(client, *right, namespace) for right in rights))
    return [right for right, good in zip(rights, answers, strict=True) if not good]


def _findings(denied: Sequence[Right], count: int, remedy: str) -> Iterator[Finding]:
    bad = [right for right in denied if right not in EVENTS]
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
