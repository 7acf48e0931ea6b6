"""Send an ended job again as a new job; show and export a job's manifests.

Both read back what was sent, byte for byte. The dry run, which shows what would be sent, is here, too.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from nbtorchjob.backends.kubernetes import template
from nbtorchjob.backends.kubernetes.jobs import JobRef, over, results
from nbtorchjob.backends.kubernetes.objects import reading, submission, to_yaml
from nbtorchjob.backends.kubernetes.objects.reading import BESIDE, SECRETS
from nbtorchjob.backends.kubernetes.payload import package, shared, stores
from nbtorchjob.backends.kubernetes.payload.package import PackedPayload, StoredPayload
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.backends.kubernetes.submit.submitter import Draft, Submitter
from nbtorchjob.errors import (
    ApiError,
    ClusterError,
    NotFoundError,
    SpecError,
    SubmitError,
    UnreachableError,
)
from nbtorchjob.payload import archive
from nbtorchjob.runtime.objects.wire import derived, unsealed
from nbtorchjob.runtime.store.payload import PayloadError
from nbtorchjob.spec import profiles
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import JobInfo
from nbtorchjob.state.text import swaps
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint


async def retry(job: JobRef, *, resume: bool = False) -> JobInfo:
    """Send what an ended job ran as a new job; return the new job's record.

    With ``resume`` it goes on from the ended job's checkpoints. Raises ``SpecError`` for what the site has
    locked or limited since, ``SubmitError``, ``ClusterError``.
    """
    info = await job.whole_info()
    if not await over(job):
        raise SubmitError(f"{info.name} hasn't ended: cancel it first, {hint('cancel', info.name)}")
    if resume and not all(reading.ended(pod) for _, pod in await job.pods()):
        raise SubmitError(
            f"{info.name} still has pods that run, and may save checkpoints: try again once they have ended"
        )
    if not info.spec:  # somebody took the annotation away
        raise package.gone_error(info.name)
    profiles.admitted(info.jobspec)
    packed, texts = await _as_swapped(job, info, await _packed_again(job, info))
    spec = replace(_where_it_is(job), hidden=package.env(await job.secret()))
    again = info.sent_again().swapped(texts)
    async with _resumed(spec, info, again) if resume else nullcontext(again) as new:
        if spec.cluster.storage:
            await asyncio.to_thread(shared.use_again, spec.cluster.storage, new.run, info.run)
        return await Submitter(job.session, packed, spec, new, anew=True).send()


@asynccontextmanager
async def _resumed(spec: JobSpec, old: JobInfo, new: JobInfo) -> AsyncIterator[JobInfo]:
    """Give the new job the old one's checkpoints; remove its copy again if the job can't be sent."""
    stop = threading.Event()
    copying = asyncio.ensure_future(asyncio.to_thread(stores.resumed, spec, old, new, stop.is_set))
    try:
        yield await asyncio.shield(copying)
    except BaseException:

        async def remove() -> None:
            await asyncio.wait([copying])  # in a thread, which only ends by itself
            with suppress(SubmitError):  # the raised error says why there is no job
                await asyncio.to_thread(stores.clear_checkpoints, new)

        stop.set()
        await asyncio.shield(remove())
        raise


async def _as_swapped(
    job: JobRef, info: JobInfo, packed: PackedPayload | StoredPayload
) -> tuple[PackedPayload | StoredPayload, list[tuple[str, str]]]:
    """Return the payload with the job's swaps applied, and these swaps' labels and texts.

    A payload in a store is sent as it is. Swaps are left out from the first one on that the record doesn't
    have whole. Raises ``SubmitError`` for swaps that can't be read, or that make the payload too big.
    """
    job_swaps = swaps.carried(await results.snapshot(job))
    if not job_swaps or not isinstance(packed, PackedPayload):
        return packed, []
    key = derived(packed.key, "swap")
    try:
        payloads = [unsealed(base64.b64decode(swap.payload), key) for swap in job_swaps]
        data = archive.with_swaps(bytes(packed.data), packed.key, payloads)
    except (ValueError, PayloadError) as exc:  # anything that runs in a pod may write such a fact
        raise SubmitError(f"a swap of {info.name} can't be read ({exc}): run its cell, as swapped") from exc
    swapped = replace(packed, data=memoryview(data))
    if packed.travels and not swapped.travels and not info.jobspec.cluster.storage:
        raise SubmitError(
            f"with its swaps the payload of {info.name} takes {words.size(len(data))}, more than the API of "
            f"a cluster takes: run its cell, as swapped, with --storage"
        )
    return swapped, swaps.texts(job_swaps, info.name)


def _where_it_is(job: JobRef) -> JobSpec:
    """Return the job's spec; whatever it left open is filled in as it was decided then."""
    spec, scope = job.info.jobspec, job.scope
    pinned = replace(
        spec.cluster, context=scope.context or None, namespace=scope.namespace, kind=job.kind.name
    )
    return replace(spec, cluster=pinned)


async def _packed_again(job: JobRef, info: JobInfo) -> PackedPayload | StoredPayload:
    """Read the payload, and the key that it is signed with, back from the job's Secrets.

    Raises ``ClusterError``, and ``SubmitError`` if some of it is gone.
    """
    try:
        first = await job.secret()
    except NotFoundError as exc:
        raise package.gone_error(info.name) from exc
    key = package.value(first, package.KEY)
    if package.URL in package.data(first):
        url, _, digest = package.value(first, package.URL).decode().partition("\n")
        # Somebody else may have written the Secret, and this machine reads what the URL leads to.
        if not stores.holds_payload(info.jobspec.cluster.storage, url, digest):
            raise SubmitError(f"the payload of {info.name} is at {url[:200]!r}, not in its --storage")
        return StoredPayload(url, digest, key, info.call, job.cache.ours)
    try:
        data = package.payload(await job.secrets())
    except ValueError:
        raise package.gone_error(info.name) from None
    return PackedPayload(memoryview(data), key, info.call, job.cache.ours)


async def dry_run(session: Session, sender: Submitter) -> str:
    """Return the manifests as YAML, Secrets by their sizes only, and what the server says about them."""
    try:
        draft = await sender.draft()
        comment = await _checked(session, draft)
    except ClusterError as exc:
        if isinstance(exc, ApiError) or (sender.context and not isinstance(exc, UnreachableError)):
            raise  # there is a server, or there should be
        draft = await sender.draft(blind=True)
        comment = f"# not checked by a server: {exc}"
    shown = [*map(_with_sizes, draft.secrets), *draft.manifests]
    return "---\n".join(map(to_yaml, shown)) + comment


async def _checked(session: Session, draft: Draft) -> str:
    try:
        for body in (*draft.secrets, *draft.manifests):
            api = {**BESIDE, SECRETS.kind: SECRETS}.get(body["kind"], draft.kind.api)
            await session.client.create(api, draft.scope.namespace, body, dry_run=True)
    except UnreachableError:
        raise
    except ApiError as exc:
        return f"# the server would refuse it: {exc}"
    except ClusterError as exc:
        return f"# not checked by a server: {exc}"
    return f"# checked by the server: namespace {draft.scope.namespace} would take it"


async def shown(job: JobRef) -> str:
    """Return the job's manifests as YAML, except its Secrets. Raises ``ClusterError``, ``SubmitError``."""
    # This works without permission to read Secrets, too: their names are in the job object.
    packed = PackedPayload(memoryview(b""), b"", job.info.call, shared=tuple(template.mounted(job.root)[1:]))
    draft = await _draft(job, packed, job.info)
    export = hint("export", job.info.name, "FOLDER")
    head = f"# Its Secrets, which hold the payload and the job's key: {export}\n"
    return head + "---\n".join(map(to_yaml, _in_order(draft)))


async def manifests(job: JobRef) -> list[dict[str, Any]]:
    """Return the objects of a job of the same name that runs the same, the job object last.

    They are made again from what was submitted, not from what is on the cluster: webhooks have added to that
    what they would add again (Kueue 0.19 to a TrainJob's ``runtimePatches``), and the server records it as if
    we had written it. The new job is another run: whatever is left of the old one shares no name with it.

    The Secrets are small enough for ``kubectl apply``. A NetworkPolicy is among the objects, whether the job
    requested one or not: an exported job isn't left open. Raises ``ClusterError``, and ``SubmitError``
    if some of the payload is gone.
    """
    info = await job.whole_info()
    packed, _ = await _as_swapped(job, info, await _packed_again(job, info))
    if isinstance(packed, StoredPayload):
        packed = replace(packed, stays=True)
    else:
        packed = replace(packed, limit=package.APPLIED_BYTES)
    draft = await _draft(job, packed, info.sent_again())
    policies = [] if info.jobspec.cluster.network_policy else [submission.policy(draft.submission)]
    namespace = {"namespace": draft.scope.namespace}
    parts = [{**secret, "metadata": {**secret["metadata"], **namespace}} for secret in draft.secrets[1:]]
    return [*policies, *parts, *_in_order(draft)]


async def _draft(job: JobRef, packed: PackedPayload | StoredPayload, info: JobInfo) -> Draft:
    if not info.spec:  # somebody took the annotation away
        raise package.gone_error(info.name)
    return await Submitter(job.session, packed, _where_it_is(job), info, anew=True, name=info.name).draft()


def _in_order(draft: Draft) -> list[dict[str, Any]]:
    """Return a draft's objects except its Secrets, the job object last: then nothing of it is missing."""
    job, *others = draft.manifests
    return [*others, job]


def check_empty(folder: Path) -> None:
    """Raise ``SpecError`` unless the folder can take an export: ``kubectl apply -f`` takes all its files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SpecError("export", str(folder), "a folder that is empty, or doesn't exist yet")


def write(manifests: list[dict[str, Any]], info: JobInfo, folder: Path) -> list[Path]:
    """Write what `kubectl apply -f` needs to run the job again, and its source to read; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for index, obj in enumerate(manifests):
        # They are applied in the order of these names; nothing may run before its Secrets exist.
        name = f"{index:03d}-{obj['kind'].lower()}-{obj['metadata']['name']}.yaml"
        head = ""
        if package.KEY in package.data(obj) and info.jobspec.secret_env:
            # What to fill in, as a comment: the values of hidden variables aren't exported.
            keys = [package.env_key(variable) for variable in info.jobspec.secret_env]
            head = (
                "# Fill in the values of these variables, which aren't exported; "
                "without them no pod starts.\n"
                "# stringData:\n" + "".join(f"#   {json.dumps(key)}: \n" for key in keys)
            )
        files.append(_private(folder / name, head + to_yaml(obj)))
    for index, (label, text) in enumerate(info.sources.values()):
        files.append(_private(folder / f"source-{index}.py", f"# {label}\n{text}"))
    return files


def _private(path: Path, text: str) -> Path:
    path.touch(mode=0o600)  # Secrets are among them
    path.write_text(text)
    return path


def _with_sizes(secret: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Secret with the sizes of its values in place of the values."""
    sizes = {key: f"<{words.size(len(base64.b64decode(value)))}>" for key, value in secret["data"].items()}
    return {**secret, "data": sizes}
