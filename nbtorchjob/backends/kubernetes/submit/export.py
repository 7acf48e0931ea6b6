"""A job's manifests, to look at before they are sent, and to take away."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from nbtorchjob.backends.kubernetes.api.client import Object
from nbtorchjob.backends.kubernetes.jobs.ref import JobRef
from nbtorchjob.backends.kubernetes.kinds.base import Kind
from nbtorchjob.backends.kubernetes.objects import labelling, network_policy
from nbtorchjob.backends.kubernetes.objects.labelling import CANCELLED, RETURNS_TO, STOPPED, TURN, attempt, of
from nbtorchjob.backends.kubernetes.objects.paths import BESIDE, SECRETS, SERVICES
from nbtorchjob.backends.kubernetes.payload import secrets
from nbtorchjob.backends.kubernetes.pod import mounts
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.backends.kubernetes.submit.submitter import Draft, Submitter
from nbtorchjob.errors import ApiError, ClusterError, SpecError, UnreachableError
from nbtorchjob.state import JobInfo
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint

# What the server and its controllers wrote, and no other cluster should be told.
_THEIRS = ("creationTimestamp", "uid", "resourceVersion", "generation", "managedFields", "ownerReferences")
# What ended it or has it wait, and the copy of the object that `kubectl apply` left there.
_MARKS = (CANCELLED, STOPPED, TURN, RETURNS_TO, "kubectl.kubernetes.io/last-applied-configuration")


async def dry_run(session: Session, sender: Submitter) -> str:
    """Return the manifests as YAML, Secrets by their sizes only, and what the server says of them."""
    try:
        draft = await sender.draft()
        said = await _checked(session, draft)
    except ClusterError as exc:
        if isinstance(exc, ApiError) or (sender.context and not isinstance(exc, UnreachableError)):
            raise  # there is a server, or there should be
        draft = await sender.draft(blind=True)
        said = f"# not checked by a server: {exc}"
    shown = [*map(_sizes, draft.secrets), *draft.manifests]
    return "\n---\n".join(_yaml(obj) for obj in shown) + "\n" + said


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
    """Return the job's manifests as YAML, but for its Secrets. Raises ``ClusterError``."""
    policies = [_policy(job)] if job.info.asked.cluster.network_policy else []
    found = [*policies, *await _made(job)]
    export = hint("export", job.info.name, "FOLDER")
    head = f"# Its Secrets, which hold the payload and the job's key: {export}\n"
    return head + "\n---\n".join(map(_yaml, found)) + "\n"


async def manifests(job: JobRef) -> list[dict[str, Any]]:
    """Return the job's objects as they would be made again, the job itself last.

    Its Secrets are small enough for ``kubectl apply``. A NetworkPolicy is among them, whether the job asked
    for one or not: what is given away isn't left open. Raises ``ClusterError``, and ``SubmitError`` where
    some of its payload is gone.
    """
    there = [_clean(secret) for secret in await job.secrets()]
    try:
        parts = secrets.appliable(job.info.name, there)
    except ValueError:
        raise secrets.gone(job.info.name) from None
    *services, whole = await _made(job)
    whole = mounts.moved(whole, secrets.names(there), secrets.names(parts))
    return [_policy(job), *parts, *services, whole]


def _policy(job: JobRef) -> dict[str, Any]:
    return network_policy.policy(job.info.name, job.scope.namespace, labelling.labels(job.info))


async def _made(job: JobRef) -> list[dict[str, Any]]:
    """Return the job's Services, and its object last."""
    client, namespace = job.session.client, job.scope.namespace
    listing = await client.list(SERVICES, namespace, labels=of(job.info.name))
    # Who follows the job makes what later attempts need; an earlier job's of its name may still be there.
    found = [item for item in listing.items if attempt(item) == 1 and labelling.belongs(item, job.info)]
    return [*map(_clean, found), _startable(_clean(await client.get(job.whole)), job.kind)]


def check_empty(folder: Path) -> None:
    """Raise ``SpecError`` unless the folder can take an export: ``kubectl apply -f`` takes all in it."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SpecError("export", str(folder), "a folder that is empty, or doesn't exist yet")


def write(manifests: list[dict[str, Any]], info: JobInfo, folder: Path) -> list[Path]:
    """Write what `kubectl apply -f` needs to run the job again, and its source to read; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for index, obj in enumerate(manifests):
        # In the order of these names they are applied; nothing may run before its Secrets are there.
        name = f"{index:03d}-{obj['kind'].lower()}-{obj['metadata']['name']}.yaml"
        written.append(_private(folder / name, _yaml(obj)))
    for index, (label, text) in enumerate(info.sources.values()):
        written.append(_private(folder / f"source-{index}.py", f"# {label}\n{text}"))
    return written


def _private(path: Path, text: str) -> Path:
    path.touch(mode=0o600)  # Secrets are among them
    path.write_text(text)
    return path


def _clean(obj: Object) -> dict[str, Any]:
    metadata = {key: value for key, value in obj["metadata"].items() if key not in _THEIRS}
    if back := labelling.returned(obj):
        metadata["labels"] = {**metadata["labels"], **back["labels"]}
    notes = {key: value for key, value in metadata.pop("annotations", {}).items() if key not in _MARKS}
    if notes:
        metadata["annotations"] = notes
    # Of lists, the items say last of what kind they are.
    kind = {key: obj[key] for key in ("apiVersion", "kind")}
    return {key: value for key, value in {**kind, **obj, "metadata": metadata}.items() if key != "status"}


def _startable(obj: dict[str, Any], kind: Kind) -> dict[str, Any]:
    """Take away what suspended the job, and what ties it to the pods that it had."""
    if kind.suspend:
        *parents, field = kind.suspend
        reduce(lambda part, key: part.get(key) or {}, parents, obj).pop(field, None)
    kind.startable(obj)
    return obj


def _sizes(secret: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {key: f"<{words.size(len(base64.b64decode(value)))}>" for key, value in secret["data"].items()}
    return {**secret, "data": sizes}


def _yaml(obj: Mapping[str, Any]) -> str:
    import yaml

    text: str = yaml.safe_dump(json.loads(json.dumps(obj)), sort_keys=False, allow_unicode=True)
    return text.rstrip("\n")
