"""Start a job's next attempt, where no operator does; and look up what a job names on its cluster.

An attempt is another job object of the same job. Its name follows from the job's name and the attempt's
number, so that only one of several kernels creates it. All that it takes is stored with the first attempt's
object, so that any kernel can.

A job without ``--checkpoints`` has its swaps in a Secret, which pods that start later mount. The process that
swapped the code writes there, once the nodes have made the change. Nodes read it as they start, and agree on
the newest swap that one of them has (``runtime/node/kept.py``), as their hosts may see a change at different
times.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from nbtorchjob.backends.base import SwapKeeper
from nbtorchjob.backends.kubernetes.api.answers import Object
from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.jobs import JobRef, payload_names
from nbtorchjob.backends.kubernetes.kinds import Kind, Runtimes
from nbtorchjob.backends.kubernetes.namespaces import Scope
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.objects.reading import BESIDE, SECRETS, WORKLOAD_PRIORITIES, Api, Target
from nbtorchjob.backends.kubernetes.objects.submission import Runtime, Submission
from nbtorchjob.backends.kubernetes.payload import package
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.errors import (
    AlreadyExistsError,
    ClusterError,
    ForbiddenError,
    NotFoundError,
    PayloadGoneError,
    SwapError,
)
from nbtorchjob.machine import loop
from nbtorchjob.state import JobInfo, Next
from nbtorchjob.text import words

_OTHERS = "isn't this job's, but has a name that it needs: delete it, unless the cluster is about to do so"


async def find(client: Client, runtimes: Runtimes, namespace: str, name: str | None) -> Runtime:
    """Return the runtime of that name, the namespace's own first; without a name the default.

    Raises ``NotFoundError`` if it doesn't exist, naming those that do; one that we may not read is
    taken on trust, unless there is one that we may read.
    """
    runtime_name = name or runtimes.default.name
    missing: NotFoundError | None = None
    trusted: Runtime | None = None
    for api, where in _levels(runtimes, namespace):
        try:
            obj = await client.get(Target(api, where, runtime_name))
        except NotFoundError as exc:
            missing = exc
        except ForbiddenError:
            trusted = Runtime(runtime_name, api.kind, runtimes.default.job)
        else:
            return Runtime(runtime_name, api.kind, runtimes.trainer(obj))
    if trusted is not None:
        return trusted
    choices = await names(client, runtimes, namespace)
    raise _absent("runtime", runtimes.own.kind, runtime_name, choices) from missing


async def check_priority(session: Session, name: str | None) -> None:
    """Raise ``NotFoundError`` if it doesn't exist, naming those that do; what we may not read is trusted.

    Kueue (0.19) makes no Workload for a job whose class is missing, and doesn't say so: the job would wait
    for ever.
    """
    api = await session.newest(WORKLOAD_PRIORITIES) if name else None
    if api is None or name is None:
        return
    try:
        await session.client.get(Target(api, None, name))
    except NotFoundError as exc:
        choices: list[str] = []
        with suppress(ClusterError):
            listing = await session.client.list(api, None, bare=True)
            choices = sorted(item["metadata"]["name"] for item in listing.items)
        raise _absent("workload_priority", api.kind, name, choices) from exc
    except ClusterError:
        return


def _absent(option: str, kind: str, name: str, choices: Sequence[str]) -> NotFoundError:
    """Return the error for something that a job names and the cluster lacks, naming what exists."""
    text = f"{option}: there is no {kind} {name!r} on the cluster (there are: {', '.join(choices) or 'none'})"
    return NotFoundError(f"{text}: choose one with --{option.replace('_', '-')}")


async def names(client: Client, runtimes: Runtimes, namespace: str) -> list[str]:
    """Return the runtimes that can be chosen."""
    return [*await listed(client, runtimes, namespace)]


async def listed(client: Client, runtimes: Runtimes, namespace: str) -> dict[str, str]:
    """Return the runtimes that can be chosen, sorted by name, with what each runs."""
    by_name: dict[str, str] = {}
    for api, where in _levels(runtimes, namespace):
        with suppress(ClusterError):
            items = (await client.list(api, where)).items
            # Of two with one name, the namespace's own is taken.
            by_name = {item["metadata"]["name"]: runtimes.runs(item) for item in items} | by_name
    return dict(sorted(by_name.items()))


def _levels(runtimes: Runtimes, namespace: str) -> tuple[tuple[Api, str | None], ...]:
    return (runtimes.own, namespace), (runtimes.shared, None)


async def begin(
    session: Session,
    scope: Scope,
    kind: Kind,
    info: JobInfo,
    following: Next,
    deadline: float | None,
    paid: str,
) -> bool | None:
    """Create the objects of the attempt; return False if another process has done so already.

    Returns None if the job was cancelled meanwhile.

    ``deadline`` is when the job must end (seconds since the epoch), ``paid`` (a mark) which budget the
    attempt before drew on. Raises ``ClusterError``; a ``PayloadGoneError`` is permanent.
    """
    client = session.client
    first, newest = [
        await client.get(target(kind, scope, info, number)) for number in (1, following.number - 1)
    ]
    if not (labelling.belongs(first, info) and labelling.belongs(newest, info)):
        raise NotFoundError(f"{info.name} is gone, and another job has its name now")
    if labelling.cancelled(first) or labelling.cancelled(newest):
        return None
    secrets, whole = await payload_names(client, scope.namespace, info), package.first_name(info)
    if whole not in secrets:
        raise PayloadGoneError(f"the payload of {info.name} is gone: its Secret {whole} was deleted")
    spec = info.jobspec
    carried = (labelling.INFO, labelling.CALL, *spec.cluster.annotation)
    sub = Submission(
        spec=spec,
        info=info,
        namespace=scope.namespace,
        secrets=tuple(secrets),
        labels={key: value for key, value in _metadata(first, "labels").items() if key != labelling.ATTEMPT},
        annotations={
            **{key: value for key, value in _metadata(first, "annotations").items() if key in carried},
            labelling.PAID: paid,
        },
        minor=await session.minor(),
        runtime=(
            await find(client, kind.runtimes, scope.namespace, spec.cluster.runtime)
            if kind.runtimes is not None
            else None
        ),
        attempt=following.number,
        remaining_s=None if deadline is None else int(deadline - client.now()),
        on_demand=following.on_demand,
        owner=reference(first),
    )
    name = labelling.attempt_name(info.name, following.number)
    await _refuse_adoption(client, kind, scope.namespace, name)
    job, *others = kind.manifests(sub)
    for other in others:
        # The job object comes last: once it is there, nothing of the attempt is missing.
        other["metadata"]["ownerReferences"] = [reference(first)]
        where = Target(BESIDE[other["kind"]], scope.namespace, other["metadata"]["name"])
        await _create(client, where, other, first)
    return await _create(client, target(kind, scope, info, following.number), job, first)


async def adopted(client: Client, kind: Kind, namespace: str, name: str) -> list[tuple[Target, Object]]:
    """Return objects with the names that an operator uses for such a job, as far as we may list them."""
    targets = [Target(api, namespace, pattern.format(name=name)) for api, pattern in kind.adopts]

    async def listed(target: Target) -> list[Object]:
        with suppress(ClusterError):
            named = f"metadata.name={target.name}"
            return (await client.list(target.api, target.namespace, fields=named, bare=True)).items
        return []

    lists = await asyncio.gather(*map(listed, targets))
    return [(target, obj) for target, objs in zip(targets, lists, strict=True) for obj in objs]


def made_for(name: str, obj: Object) -> bool:
    """Whether an operator made an object for a job of that name, perhaps an earlier job."""
    return any(owner.get("name") == name for owner in obj["metadata"].get("ownerReferences") or ())


async def _refuse_adoption(client: Client, kind: Kind, namespace: str, name: str) -> None:
    """Raise ``AlreadyExistsError`` if the attempt's operator would take over what it didn't make for it.

    What it made for an attempt of an earlier job would be deleted while this attempt needs it.
    """
    present = await adopted(client, kind, namespace, name)
    strange = [target for target, obj in present if not made_for(name, obj)]
    if present and not strange:
        try:
            await client.get(Target(kind.api, namespace, name))
        except NotFoundError:
            strange = [target for target, _ in present]
    if strange:
        raise AlreadyExistsError(f"{strange[0]} {_OTHERS}")


async def _create(client: Client, target: Target, body: Object, first: Object) -> bool:
    """Create an object of the attempt, unless another kernel has; return whether none had."""
    try:
        await client.create(target.api, target.namespace, body)
    except AlreadyExistsError as exc:
        if not labelling.owned(await client.get(target), first):
            raise AlreadyExistsError(f"{target} {_OTHERS}") from exc
        return False
    return True


def target(kind: Kind, scope: Scope, info: JobInfo, number: int) -> Target:
    """Return where the object of an attempt is."""
    return Target(kind.api, scope.namespace, labelling.attempt_name(info.name, number))


def reference(owner: Object) -> dict[str, str]:
    """Return a reference to an object's ``owner``: the object is deleted along with it."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }


def _metadata(obj: Object, field: str) -> dict[str, str]:
    return dict(obj["metadata"].get(field) or {})


class SecretKeeper(SwapKeeper):
    """Keeps swaps in the Secret of that name; ``sizes`` are those of its payloads before a swap, by number.

    Payloads of the swap's own number and above are from an earlier attempt: a later one began without them.
    """

    def __init__(self, job: JobRef, name: str, sizes: Mapping[int, int]) -> None:
        self._job = job
        self._name = name
        self._target = Target(SECRETS, job.scope.namespace, name)
        self._sizes = sizes

    def keep(self, number: int, payload: bytes, earlier: Collection[int]) -> None:
        """Write the payload. Raises ``SwapError`` if the Secret lacks earlier ones, or has no room."""
        sizes = {other: size for other, size in self._sizes.items() if other < number}
        if missing := {*earlier} - sizes.keys():
            raise SwapError(f"swap {min(missing)} isn't kept, and swaps must be applied in order")
        total = sum(sizes.values()) + len(payload)
        if total > package.SECRET_BYTES:
            raise SwapError(
                f"all swaps together take {words.size(total)}, and a Secret holds "
                f"{words.size(package.SECRET_BYTES)}; a job with --checkpoints keeps them there"
            )
        outdated = {_key(other): None for other in self._sizes if other > number}
        data = {_key(number): base64.b64encode(payload).decode(), **outdated}

        async def write() -> None:
            client, patch = self._job.session.client, {"data": data}
            try:
                await client.patch(self._target, patch)
            except NotFoundError:
                root = self._job.root
                secret = package.swaps(self._name, labelling.shared(root), reference(root))
                secret["data"] = {key: text for key, text in data.items() if text is not None}
                try:
                    await client.create(SECRETS, self._target.namespace, secret)
                except AlreadyExistsError:  # the process that makes the next swap was first
                    await client.patch(self._target, patch)

        loop.run(write())


async def swap_keeper(job: JobRef) -> SecretKeeper | None:
    """Return the keeper of a job's next swap; None if nodes keep it. Raises ``ClusterError``."""
    name = package.swaps_name(job.info.jobspec, job.info)
    if not name:
        return None
    try:
        secret = await job.session.client.get(Target(SECRETS, job.scope.namespace, name))
    except NotFoundError:
        return SecretKeeper(job, name, {})
    entries = package.data(secret).items()
    sizes = {int(key.partition(".")[0]): len(text) * 3 // 4 for key, text in entries if _KEY.fullmatch(key)}
    return SecretKeeper(job, name, sizes)


_KEY = re.compile(r"[1-9]\d{0,8}\.payload")


def _key(number: int) -> str:
    """Return the key of a swap's payload: the name of its file, as on the nodes."""
    return f"{number}.payload"
