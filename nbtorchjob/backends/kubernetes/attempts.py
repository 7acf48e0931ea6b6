"""Starting a job's next attempt, where no operator does: another job object of the same job.

Its name follows from the job's and the attempt's number, so that of any number of kernels that try one
makes it. All that it takes lies with the first attempt's object, so that any kernel can.
"""

from __future__ import annotations

import re
import time

from nbtorchjob.backends.kubernetes import objects, runtimes, secrets
from nbtorchjob.backends.kubernetes.client import Client, Object
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.paths import SECRETS, SERVICES, Target
from nbtorchjob.backends.kubernetes.places import Place
from nbtorchjob.backends.kubernetes.refusals import NameTaken, Refusal
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.backends.kubernetes.submission import Runtime, Submission
from nbtorchjob.spec import JobSpec
from nbtorchjob.state import JobInfo, Next


class PayloadGone(Refusal):
    """There is nothing left that another attempt could run."""


async def begin(
    session: Session, place: Place, kind: Kind, info: JobInfo, following: Next, deadline: float | None
) -> bool:
    """Make the objects of the attempt; False where somebody has asked for the job's end meanwhile.

    ``deadline`` is when the job must end (seconds since the epoch). Raises ``Refusal``, ``PayloadGone``.
    """
    client = session.client
    first, newest = [
        await client.get(target(kind, place, info, number)) for number in (1, following.number - 1)
    ]
    if objects.cancelled(first) or objects.cancelled(newest):
        return False
    spec = info.asked
    sub = Submission(
        spec=spec,
        info=info,
        namespace=place.namespace,
        secrets=await _secrets(client, place, info),
        labels={key: value for key, value in _given(first, "labels").items() if key != objects.ATTEMPT},
        annotations=_annotations(first, spec),
        minor=await session.minor(),
        runtime=await _runtime(client, place, kind, spec),
        attempt=following.number,
        remaining_s=None if deadline is None else int(deadline - time.time()),
        on_demand=following.on_demand,
        owner=reference(first),
    )
    job, *services = kind.manifests(sub)
    for service in services:
        # The job's object comes last: once it is there, nothing of the attempt is missing.
        service["metadata"]["ownerReferences"] = [reference(first)]
        await _create(client, Target(SERVICES, place.namespace, service["metadata"]["name"]), service, info)
    await _create(client, target(kind, place, info, following.number), job, info)
    return True


async def _create(client: Client, target: Target, body: Object, info: JobInfo) -> None:
    """Create an object of the attempt, unless another kernel has."""
    try:
        await client.create(target.api, target.namespace, body)
    except NameTaken as taken:
        if not objects.belongs(await client.get(target), info):
            raise Refusal(f"{target} isn't this job's, and has the name: delete it", status=409) from taken


def target(kind: Kind, place: Place, info: JobInfo, number: int) -> Target:
    """Give where the object of an attempt is."""
    return Target(kind.api, place.namespace, objects.attempt_name(info.name, number))


def reference(owner: Object) -> dict[str, str]:
    """Give what makes ``owner`` an object's owner: it goes when its owner goes."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }


def _given(obj: Object, what: str) -> dict[str, str]:
    return dict(obj["metadata"].get(what) or {})


def _annotations(first: Object, spec: JobSpec) -> dict[str, str]:
    kept = (objects.INFO, objects.CALL, *spec.cluster.annotation)
    return {key: value for key, value in _given(first, "annotations").items() if key in kept}


async def _secrets(client: Client, place: Place, info: JobInfo) -> tuple[str, ...]:
    listing = await client.list(SECRETS, place.namespace, labels=objects.of(info.name), bare=True)
    first = secrets.first_name(info.name)
    names = [item["metadata"]["name"] for item in listing.items if objects.belongs(item, info)]
    parts = {name: re.fullmatch(rf"{re.escape(first)}(?:-(\d+))?", name) for name in names}
    found = {name: int(match[1] or 0) for name, match in parts.items() if match}
    if first not in found:
        raise PayloadGone(f"the payload of {info.name} is gone: its Secret {first} was deleted", status=404)
    return tuple(sorted(found, key=found.__getitem__))


async def _runtime(client: Client, place: Place, kind: Kind, spec: JobSpec) -> Runtime:
    if "runtime" not in kind.can:
        return Runtime()
    return await runtimes.find(client, place.namespace, spec.cluster.runtime)
