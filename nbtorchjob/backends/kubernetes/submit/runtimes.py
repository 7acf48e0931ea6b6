"""Which runtime a job refers to, and whether it is there."""

from __future__ import annotations

from contextlib import suppress

from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.kinds.base import Runtimes
from nbtorchjob.backends.kubernetes.objects.paths import Api, Target
from nbtorchjob.backends.kubernetes.objects.submission import Runtime
from nbtorchjob.errors import ClusterError, NotFoundError


async def find(client: Client, runtimes: Runtimes, namespace: str, name: str | None) -> Runtime:
    """Return the runtime of that name, the namespace's own first; without a name the default.

    Raises ``NotFoundError`` where it isn't there, naming those that are; one that we may not read is
    taken on trust.
    """
    wanted = name or runtimes.default.name
    missing: NotFoundError | None = None
    for api, where in _levels(runtimes, namespace):
        try:
            found = await client.get(Target(api, where, wanted))
        except NotFoundError as exc:
            missing = exc
        except ClusterError:
            return Runtime(wanted, runtimes.shared.kind, runtimes.default.job)
        else:
            return Runtime(wanted, api.kind, runtimes.trainer(found))
    known = ", ".join(await names(client, runtimes, namespace)) or "none"
    said = f"runtime: there is no {runtimes.own.kind} {wanted!r} on the cluster (there are: {known})"
    raise NotFoundError(f"{said}: choose one with --runtime") from missing


async def names(client: Client, runtimes: Runtimes, namespace: str) -> list[str]:
    """Return the runtimes that can be chosen."""
    return [*await listed(client, runtimes, namespace)]


async def listed(client: Client, runtimes: Runtimes, namespace: str) -> dict[str, str]:
    """Return the runtimes that can be chosen, sorted by name, with what each runs."""
    found: dict[str, str] = {}
    for api, where in _levels(runtimes, namespace):
        with suppress(ClusterError):
            items = (await client.list(api, where)).items
            # Of one name the namespace's own is taken.
            found = {item["metadata"]["name"]: runtimes.runs(item) for item in items} | found
    return dict(sorted(found.items()))


def _levels(runtimes: Runtimes, namespace: str) -> tuple[tuple[Api, str | None], ...]:
    return (runtimes.own, namespace), (runtimes.shared, None)
