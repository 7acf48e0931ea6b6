"""Whether the WorkloadPriorityClass that a job names is there."""

from __future__ import annotations

from contextlib import suppress

from nbtorchjob.backends.kubernetes.objects.paths import WORKLOAD_PRIORITIES, Target
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.errors import ClusterError, NotFoundError


async def check(session: Session, name: str | None) -> None:
    """Raise ``NotFoundError`` where it isn't there, naming those that are; what we may not read is trusted.

    Kueue (0.19) makes no Workload for such a job, and says so to nobody: it would wait for ever.
    """
    api = await session.newest(WORKLOAD_PRIORITIES) if name else None
    if api is None:
        return
    try:
        await session.client.get(Target(api, None, name))
    except NotFoundError as exc:
        names: list[str] = []
        with suppress(ClusterError):
            listing = await session.client.list(api, None, bare=True)
            names = sorted(each["metadata"]["name"] for each in listing.items)
        known = ", ".join(names) or "none"
        said = f"workload_priority: there is no {api.kind} {name!r} on the cluster (there are: {known})"
        raise NotFoundError(f"{said}: choose one with --workload-priority") from exc
    except ClusterError:
        return
