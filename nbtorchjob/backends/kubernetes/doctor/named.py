"""What a job refers to by name: whether it exists and can be used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes.api.client import Client, Object
from nbtorchjob.backends.kubernetes.kinds.base import Kind, Queues, Runtime, Runtimes
from nbtorchjob.backends.kubernetes.objects.paths import (
    ACCOUNTS,
    CLAIMS,
    PRIORITIES,
    SECRETS,
    Target,
)
from nbtorchjob.backends.kubernetes.submit import runtimes
from nbtorchjob.errors import ClusterError, ForbiddenError, NotFoundError
from nbtorchjob.spec.jobspec import JobSpec

_ONE_HOST = {"ReadWriteOnce", "ReadWriteOncePod"}


class _Name(NamedTuple):
    """An object that must exist; ``judge`` returns what is wrong with one that does, or ""."""

    what: str
    target: Target
    option: str
    judge: Callable[[Object], str] = lambda found: ""


async def look(client: Client, namespace: str, kind: Kind | None, spec: JobSpec) -> list[Finding]:
    """Report of each name whether it exists. Raises ``ClusterError``."""
    wanted = list(_names(namespace, kind, spec))
    found = await asyncio.gather(*(_one(client, name) for name in wanted))
    if kind is not None and kind.runtimes is not None:
        found += await _runtime(client, kind.runtimes, namespace, spec.cluster.runtime)
    return found


def _names(namespace: str, kind: Kind | None, spec: JobSpec) -> Iterator[_Name]:
    cluster = spec.cluster
    account = Target(ACCOUNTS, namespace, cluster.service_account or "default")
    yield _Name("service account", account, "--service-account")
    if cluster.priority_class:
        yield _Name("priority class", Target(PRIORITIES, None, cluster.priority_class), "--priority-class")
    for secret in cluster.image_pull_secret:
        yield _Name("image pull secret", Target(SECRETS, namespace, secret), "--image-pull-secret")
    for mount in cluster.mounts:
        if mount.type == "volume":
            judge = _claim_of_many if spec.launch.max_nodes > 1 and not mount.readonly else _claim
            yield _Name("claim", Target(CLAIMS, namespace, mount.src), "--mount", judge)
    if kind is not None and kind.queues is not None:
        target = Target(kind.queues.api, None, cluster.queue or kind.queues.default)
        yield _Name("queue", target, "--queue", partial(_queue, kind.queues))


async def _one(client: Client, name: _Name) -> Finding:
    text = f"{name.what} {name.target.name}"
    try:
        found = await client.get(name.target)
    except ForbiddenError:
        return Finding(True, f"{text}: can't check whether it exists, because reading it isn't permitted")
    except NotFoundError:
        return Finding(False, f"{text} doesn't exist: choose another with {name.option}, or have it created")
    except ClusterError as exc:
        return Finding(False, str(exc))
    wrong = name.judge(found)
    return Finding(not wrong, f"{text} {wrong or 'exists'}")


def _queue(queues: Queues, found: Object) -> str:
    state = queues.closed(found)
    return f"is {state} and accepts no jobs: choose another with --queue" if state else ""


def _claim(found: Object) -> str:
    phase = (found.get("status") or {}).get("phase")
    return "has lost its volume: choose another with --mount" if phase == "Lost" else ""


def _claim_of_many(found: Object) -> str:
    modes = found["spec"].get("accessModes") or ()
    if modes and set(modes) <= _ONE_HOST:
        return f"is {', '.join(modes)}: only nodes on the same host can mount it"
    return _claim(found)


async def _runtime(client: Client, kinds: Runtimes, namespace: str, name: str | None) -> list[Finding]:
    try:
        runtime = await runtimes.find(client, kinds, namespace, name)
        api, where = (kinds.own, namespace) if runtime.kind == kinds.own.kind else (kinds.shared, None)
        found = await client.get(Target(api, where, runtime.name))
    except NotFoundError as exc:
        return [Finding(False, str(exc))]
    except ForbiddenError as exc:
        text = f"runtime {runtime.name}: can't check it, because reading it isn't permitted"
        return [Finding(True, text, exc.grant)]
    listed = await runtimes.listed(client, kinds, namespace)
    known = "; ".join(f"{name} ({runs})" for name, runs in listed.items()) or "can't be listed"
    return [
        _torch(runtime, kinds.made_for(found)),
        *_again(runtime, kinds.restarts(found)),
        Finding(True, f"available runtimes: {known}"),
    ]


def _again(runtime: Runtime, restarts: str) -> list[Finding]:
    if not restarts:
        return []
    text = f"runtime {runtime.name} starts a failed job again by itself, {restarts}"
    return [Finding(True, f"mind: {text}; with --retries whoever follows or tends the job does that instead")]


def _torch(runtime: Runtime, other: str) -> Finding:
    if not other:
        return Finding(True, f"runtime {runtime.name} ({runtime.kind}) exists and is for torch")
    text = f"runtime {runtime.name} is for {other}, not for torch: choose another with --runtime"
    return Finding(False, text)
