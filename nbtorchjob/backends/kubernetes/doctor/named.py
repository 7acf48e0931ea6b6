"""What a job refers to: objects by name, its image, its stores; and what it could name on this cluster.

Only a pod can find out what an image contains. A store is tried by writing, reading and removing a file. All
lists of choices, including the types of hosts, are requested at once.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from nbtorchjob.backends.base import Choice, Finding
from nbtorchjob.backends.kubernetes.api.answers import Object
from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.api.kubeconfig import contexts
from nbtorchjob.backends.kubernetes.kinds import KINDS, Kind, Queues, Runtimes
from nbtorchjob.backends.kubernetes.objects.reading import (
    ACCOUNTS,
    CLAIMS,
    HOSTS,
    LOCAL_QUEUES,
    NAMESPACES,
    PODS,
    PRIORITIES,
    SECRETS,
    WORKLOAD_PRIORITIES,
    Api,
    Target,
)
from nbtorchjob.backends.kubernetes.payload import stores
from nbtorchjob.backends.kubernetes.session import Session, session
from nbtorchjob.backends.kubernetes.submit import attempts
from nbtorchjob.backends.kubernetes.template import requested_images
from nbtorchjob.capture import PYTHON as _PYTHON
from nbtorchjob.environment import images
from nbtorchjob.errors import ClusterError, ForbiddenError, NotFoundError, SubmitError
from nbtorchjob.runtime import store, torch_versions
from nbtorchjob.runtime.objects import wire
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.cluster.grammars import amount
from nbtorchjob.spec.config import where
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.text import words

_ONE_HOST = {"ReadWriteOnce", "ReadWriteOncePod"}


class _Name(NamedTuple):
    """An object that must exist; ``judge`` returns what is wrong with one that does, or ""."""

    type: str
    target: Target
    option: str
    judge: Callable[[Object], str] = lambda obj: ""


async def reference_findings(
    client: Client, namespace: str, kind: Kind | None, spec: JobSpec
) -> list[Finding]:
    """Report for each name whether it exists. Raises ``ClusterError``."""
    names: list[_Name] = []
    cluster = spec.cluster
    account = Target(ACCOUNTS, namespace, cluster.service_account or "default")
    names.append(_Name("service account", account, "--service-account"))
    if cluster.priority_class:
        names.append(
            _Name("priority class", Target(PRIORITIES, None, cluster.priority_class), "--priority-class")
        )
    for secret in cluster.image_pull_secret:
        names.append(_Name("image pull secret", Target(SECRETS, namespace, secret), "--image-pull-secret"))
    for mount in cluster.mounts:
        if mount.type == "volume":
            judge = _claim_of_many if spec.launch.max_nodes > 1 and not mount.readonly else _claim
            names.append(_Name("claim", Target(CLAIMS, namespace, mount.src), "--mount", judge))
    for text in spec.data.values():
        if (place := where(text)).scheme == "pvc":
            judge = _claim_of_many if spec.launch.max_nodes > 1 else _claim
            names.append(_Name("claim", Target(CLAIMS, namespace, place.claim), "--data", judge))
    if kind is not None and kind.queues is not None:
        target = Target(kind.queues.api, None, cluster.queue or kind.queues.default)
        names.append(_Name("queue", target, "--queue", partial(_queue, kind.queues)))
    findings = await asyncio.gather(*(_finding(client, name) for name in names))
    if kind is not None and kind.runtimes is not None:
        findings += await _runtime(client, kind.runtimes, namespace, spec)
    return findings


async def _finding(client: Client, name: _Name) -> Finding:
    text = f"{name.type} {name.target.name}"
    try:
        obj = await client.get(name.target)
    except ForbiddenError:
        return Finding(True, f"{text}: can't check whether it exists, because reading it isn't permitted")
    except NotFoundError:
        return Finding(False, f"{text} doesn't exist: choose another with {name.option}, or have it created")
    except ClusterError as exc:
        return Finding(False, str(exc))
    wrong = name.judge(obj)
    return Finding(not wrong, f"{text} {wrong or 'exists'}")


def _queue(queues: Queues, queue: Object) -> str:
    state = queues.closed(queue)
    return f"is {state} and accepts no jobs: choose another with --queue" if state else ""


def _claim(claim: Object) -> str:
    phase = (claim.get("status") or {}).get("phase")
    return "has lost its volume: choose another with --mount" if phase == "Lost" else ""


def _claim_of_many(claim: Object) -> str:
    modes = claim["spec"].get("accessModes") or ()
    if modes and set(modes) <= _ONE_HOST:
        return f"is {', '.join(modes)}: only nodes on the same host can mount it"
    return _claim(claim)


async def _runtime(client: Client, kinds: Runtimes, namespace: str, spec: JobSpec) -> list[Finding]:
    try:
        runtime = await attempts.find(client, kinds, namespace, spec.cluster.runtime)
        api, where = (kinds.own, namespace) if runtime.kind == kinds.own.kind else (kinds.shared, None)
        obj = await client.get(Target(api, where, runtime.name))
    except NotFoundError as exc:
        return [Finding(False, str(exc))]
    except ForbiddenError as exc:
        text = f"runtime {runtime.name}: can't check it, because reading it isn't permitted"
        return [Finding(True, text, exc.grant)]
    listed = await attempts.listed(client, kinds, namespace)
    available = "; ".join(f"{name} ({runs})" for name, runs in listed.items()) or "can't be listed"
    initializers = kinds.initializers(obj) if spec.data else ()
    if not initializers:
        left_out = []
    else:
        text = f"runtime {runtime.name} has a {' and a '.join(initializers)}, which --data leaves out"
        left_out = [Finding(True, f"{text}: each node fetches what it lacks by itself")]
    restarts = kinds.restarts(obj)
    if not restarts:
        again = []
    else:
        text = f"runtime {runtime.name} starts a failed job again by itself, {restarts}"
        again = [
            Finding(
                True,
                f"mind: {text}; with --retries, a session that follows the job, or a tender, does it instead",
            )
        ]
    other = kinds.made_for(obj)
    if not other:
        torch = Finding(True, f"runtime {runtime.name} ({runtime.kind}) exists and is for torch")
    else:
        text = f"runtime {runtime.name} is for {other}, not for torch: choose another with --runtime"
        torch = Finding(False, text)
    return [
        torch,
        *again,
        *left_out,
        Finding(True, f"available runtimes: {available}"),
    ]


_TORCH = "{}.{}".format(*torch_versions.OLDEST)


def image_findings(spec: JobSpec) -> list[Finding]:
    """Report what each image is known to have, or else what it needs."""
    findings = []
    for job_image, named in zip(requested_images(spec), spec.images, strict=True):
        contents = images.contents_of(job_image)
        image = f"the image {job_image.image}" if named is not None or contents is not None else "the image"
        if contents is None:
            local_torch = torch_versions.installed() or "none"
            text = (
                f"{image} needs Python and torch {_TORCH} or later (here: {_PYTHON}, {local_torch}); only "
                "--probe starts it to check: otherwise its first job reports what it has, and a node without "
                "torch ends at once with a message"
            )
            findings.append(Finding(True, text))
            continue
        environment = contents.environment
        torch = environment.distributions.get("torch")
        has = f"Python {environment.python}, {f'torch {torch}' if torch else 'no torch'}"
        others = words.count(len(environment.distributions.keys() - {"torch"}), "other package")
        ago = words.about(max(0.0, time.time() - contents.time))
        good = torch is not None and not torch_versions.too_old(torch)
        needs = "" if good else f": a job needs torch {_TORCH} or later"
        text = f"{image} has {has} and {others} on {environment.platform}, as reported {ago} ago{needs}"
        findings.append(Finding(good, text))
    return findings


_TEXT = b"nbtorchjob doctor"


async def store_findings(cluster: Cluster) -> list[Finding]:
    """Try the job's stores with a small file, which is removed afterwards."""
    findings = [Finding(True, "without --storage, payloads are limited to 16 MiB and values to 4 MiB")]
    if cluster.storage is not None:
        findings = [await asyncio.to_thread(_try, cluster.storage)]
    # Checkpoints at a path are used only by pods; those in a store are removed from here.
    if cluster.checkpoints is not None and "://" in cluster.checkpoints:
        findings.append(await asyncio.to_thread(_try, cluster.checkpoints))
    return findings


def _try(storage: str) -> Finding:
    if storage.startswith("/") and not Path(storage).is_dir():
        text = f"{storage} isn't a folder on this machine: mount here what the pods mount, or use a URL"
        return Finding(False, text)
    folder = stores.inside(storage, f"nbtorchjob-doctor-{uuid.uuid4().hex[:8]}")
    url, key = f"{folder}/probe", os.urandom(32)
    try:
        stores.put(memoryview(_TEXT), url)
        try:
            # As values are read
            with TemporaryDirectory() as local_folder:
                store.fetch(f"{url}#{wire.sign(_TEXT, key).hex()}", f"{local_folder}/probe", key, len(_TEXT))
        except Exception as exc:  # whatever a store's library raises
            raise SubmitError(f"{url} can be written but not read from here ({exc})") from exc
        finally:
            stores.remove(folder)
    except SubmitError as exc:
        return Finding(False, str(exc))
    return Finding(True, f"{storage} can be written, read and cleared from here; pods need the same access")


_TYPE = "node.kubernetes.io/instance-type"
_UNENDED = "status.phase!=Succeeded,status.phase!=Failed"
_GIB = 2.0**30
# Every host has some of these, so they are no reason to choose one.
_DULL = ("pods", "ephemeral-storage", "hugepages-", "attachable-volumes-")

Amounts = dict[str, float]  # by resource


async def choices(client: Client) -> list[Choice]:
    """Return a selector for each type of host, with its free resources. Raises ``ClusterError``.

    Without permission to list all pods it shows what the hosts have, not what is free.
    """
    hosts = (await client.list(HOSTS, None)).items
    try:
        used: Mapping[str, Amounts] | None = _used((await client.list(PODS, None, fields=_UNENDED)).items)
    except ClusterError:
        used = None
    types: dict[str, list[Object]] = defaultdict(list)
    for host in hosts:
        name = (host["metadata"].get("labels") or {}).get(_TYPE, "")
        if name and not (host.get("spec") or {}).get("unschedulable"):
            types[name].append(host)
    type_choices = []
    for name in sorted(types):
        total: Amounts = defaultdict(float)
        usage: Amounts = defaultdict(float)
        for host in types[name]:
            for resource, number in _amounts((host.get("status") or {}).get("allocatable") or {}):
                total[resource] += number
                usage[resource] += (used or {}).get(host["metadata"]["name"], {}).get(resource, 0.0)
        parts = [words.count(len(types[name]), "host")]
        for resource in sorted(total):
            unit, scale = (" GiB", _GIB) if resource == "memory" else ("", 1.0)
            amount_text = f"{total[resource] / scale:.3g}{unit} {resource}"
            if used is not None:
                free = max(0.0, total[resource] - usage[resource]) / scale
                amount_text = f"{free:.3g} of {amount_text} free"
            parts.append(amount_text)
        type_choices.append(Choice(f"{_TYPE}={name}", ", ".join(parts)))
    return type_choices


def _used(pods: Iterable[Object]) -> dict[str, Amounts]:
    """Return what each host has reserved for its pods."""
    used: dict[str, Amounts] = defaultdict(lambda: defaultdict(float))
    for pod in pods:
        for container in (pod.get("spec") or {}).get("containers") or ():
            requests = (container.get("resources") or {}).get("requests") or {}
            for name, number in _amounts(requests):
                used[(pod.get("spec") or {}).get("nodeName") or ""][name] += number
    return used


def _amounts(texts: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    for name, text in texts.items():
        if not name.startswith(_DULL):
            yield name, amount(str(text))


async def look(spec: JobSpec) -> dict[str, list[Choice]]:
    """Return the choices in ``spec``'s context and namespace by option key, as far as permitted."""
    by_key = {"context": [Choice(name) for name in contexts()]}
    try:
        cluster_session = await session(spec.cluster.context)
        namespace = (await cluster_session.scope(spec)).namespace
        client = cluster_session.client
        lookups = {
            "namespace": _listed_names(client, NAMESPACES, None),
            "kind": _kinds(cluster_session),
            "runtime": _runtimes(client, namespace),
            "queue": _queues(cluster_session, namespace),
            "workload-priority": _priorities(cluster_session),
            "priority-class": _listed_names(client, PRIORITIES, None),
            "service-account": _listed_names(client, ACCOUNTS, namespace),
            "mount": _claims(client, namespace),
            "node-selector": choices(client),
        }
    except ClusterError:
        lookups = {}
    answers = await asyncio.gather(*map(_permitted, lookups.values()))
    by_key |= dict(zip(lookups, answers, strict=True))
    return {key: choices for key, choices in by_key.items() if choices}


async def _permitted(work: Awaitable[list[Choice]]) -> list[Choice]:
    try:
        return await work
    except ClusterError:  # forbidden, not installed, or not there: a name can still be typed
        return []


async def _listed_names(client: Client, api: Api, namespace: str | None) -> list[Choice]:
    items = (await client.list(api, namespace)).items
    return [Choice(name) for name in sorted(item["metadata"]["name"] for item in items)]


async def _kinds(cluster_session: Session) -> list[Choice]:
    return [Choice(kind.name, "served here") for kind in await cluster_session.kinds()]


async def _runtimes(client: Client, namespace: str) -> list[Choice]:
    own = [kind.runtimes for kind in KINDS.values() if kind.runtimes is not None]
    per_kind = await asyncio.gather(*(attempts.listed(client, runtimes, namespace) for runtimes in own))
    return [Choice(name, runs) for part in per_kind for name, runs in part.items()]


async def _queues(cluster_session: Session, namespace: str) -> list[Choice]:
    own = [kind.queues for kind in KINDS.values() if kind.queues is not None]
    api = await cluster_session.newest(LOCAL_QUEUES)
    lookups = {queues.owner: _listed_names(cluster_session.client, queues.api, None) for queues in own}
    if api is not None:
        lookups["Kueue"] = _listed_names(cluster_session.client, api, namespace)
    per_kind = await asyncio.gather(*map(_permitted, lookups.values()))
    return [Choice(queue.value, name) for name, part in zip(lookups, per_kind, strict=True) for queue in part]


async def _priorities(cluster_session: Session) -> list[Choice]:
    api = await cluster_session.newest(WORKLOAD_PRIORITIES)
    return await _listed_names(cluster_session.client, api, None) if api is not None else []


async def _claims(client: Client, namespace: str) -> list[Choice]:
    items = (await client.list(CLAIMS, namespace)).items
    claim_choices = []
    for item in sorted(items, key=lambda item: str(item["metadata"]["name"])):
        name, spec = item["metadata"]["name"], item["spec"]
        size = ((spec.get("resources") or {}).get("requests") or {}).get("storage", "")
        note = ", ".join(filter(None, [size, *(spec.get("accessModes") or ())]))
        claim_choices.append(Choice(f"type=volume,src={name},dst=/mnt/{name}", note))
    return claim_choices
