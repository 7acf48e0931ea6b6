"""What a job refers to by name: whether it is there, and fit to be used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import NamedTuple

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes import runtimes
from nbtorchjob.backends.kubernetes.client import Client, Object
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.paths import (
    ACCOUNTS,
    CLAIMS,
    CLUSTER_RUNTIMES,
    PRIORITIES,
    QUEUES,
    RUNTIMES,
    SECRETS,
    Target,
)
from nbtorchjob.backends.kubernetes.refusals import Refusal
from nbtorchjob.errors import SubmitError
from nbtorchjob.spec import JobSpec

_FRAMEWORK = "trainer.kubeflow.org/framework"
_ONE_HOST = {"ReadWriteOnce", "ReadWriteOncePod"}


class _Name(NamedTuple):
    """An object that must be there; ``judge`` says what is wrong with one that is, or ""."""

    what: str
    target: Target
    option: str
    judge: Callable[[Object], str] = lambda found: ""


async def look(client: Client, namespace: str, kind: Kind | None, spec: JobSpec) -> list[Finding]:
    """Say of each name whether it is there. Raises ``Refusal``."""
    wanted = list(_names(namespace, kind, spec))
    found = await asyncio.gather(*(_one(client, name) for name in wanted))
    if kind is not None and "runtime" in kind.can:
        found += await _runtime(client, namespace, spec.cluster.runtime)
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
    if kind is not None and kind.name == "volcano":
        yield _Name("queue", Target(QUEUES, None, cluster.queue or "default"), "--queue", _queue)


async def _one(client: Client, name: _Name) -> Finding:
    text = f"{name.what} {name.target.name}"
    try:
        found = await client.get(name.target)
    except Refusal as exc:
        if exc.status == 403:
            return Finding(True, f"{text}: reading it isn't permitted, so whether it exists isn't known")
        if exc.status == 404:
            return Finding(False, f"{text} doesn't exist: choose another with {name.option}, or have it made")
        return Finding(False, str(exc))
    wrong = name.judge(found)
    return Finding(not wrong, f"{text} {wrong or 'is there'}")


def _queue(found: Object) -> str:
    # No state yet is Open: Volcano's controller writes it when it first looks.
    state = (found.get("status") or {}).get("state") or "Open"
    return "" if state == "Open" else f"is {state}, and takes no jobs: choose another with --queue"


def _claim(found: Object) -> str:
    phase = (found.get("status") or {}).get("phase")
    return "has lost its volume: choose another with --mount" if phase == "Lost" else ""


def _claim_of_many(found: Object) -> str:
    modes = found["spec"].get("accessModes") or ()
    if modes and set(modes) <= _ONE_HOST:
        return f"is {', '.join(modes)}: nodes on other hosts than the first can't mount it"
    return _claim(found)


async def _runtime(client: Client, namespace: str, name: str | None) -> list[Finding]:
    try:
        runtime = await runtimes.find(client, namespace, name)
        api = next(a for a in (RUNTIMES, CLUSTER_RUNTIMES) if a.kind == runtime.kind)
        where = namespace if api == RUNTIMES else None
        found = await client.get(Target(api, where, runtime.name))
    except SubmitError as exc:
        return [Finding(False, str(exc))]
    except Refusal as exc:
        if exc.status == 403:
            return [
                Finding(
                    True,
                    f"runtime {runtime.name}: reading it isn't permitted, so it is taken on trust",
                    exc.grant,
                )
            ]
        raise
    known = ", ".join(await runtimes.names(client, namespace)) or "those that you know of"
    return [_torch(runtime.name, found), Finding(True, f"runtimes to choose from: {known}")]


def _torch(name: str, runtime: Object) -> Finding:
    # Only for mlPolicy.torch are nodes told where to meet; the label is what Kubeflow's SDK goes by.
    if "torch" in (runtime["spec"].get("mlPolicy") or {}):
        return Finding(True, f"runtime {name} ({runtime['kind']}) is there, and made for torch")
    label = (runtime["metadata"].get("labels") or {}).get(_FRAMEWORK) or "nothing in particular"
    return Finding(False, f"runtime {name} is made for {label}, not for torch: choose another with --runtime")
