"""A job's manifests, to look at before they are sent, and to take away."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nbtorchjob.backends.kubernetes.jobs.ref import JobRef
from nbtorchjob.backends.kubernetes.objects import submission
from nbtorchjob.backends.kubernetes.objects.reading import BESIDE, SECRETS
from nbtorchjob.backends.kubernetes.payload import package
from nbtorchjob.backends.kubernetes.payload.package import Packed, Stored
from nbtorchjob.backends.kubernetes.pod import template
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.backends.kubernetes.submit.retry import as_swapped, packed_again, where_it_is
from nbtorchjob.backends.kubernetes.submit.submitter import Draft, Submitter
from nbtorchjob.errors import ApiError, ClusterError, SpecError, UnreachableError
from nbtorchjob.state import JobInfo
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint


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
    shown = [
        {
            **secret,
            "data": {key: f"<{words.size(len(base64.b64decode(text)))}>" for key, text in data.items()},
        }
        for secret in draft.secrets
        for data in (secret["data"],)
    ]
    shown += draft.manifests
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
    """Return the job's manifests as YAML, but for its Secrets. Raises ``ClusterError``, ``SubmitError``."""
    # Of whoever may not read Secrets, too: their names are in the job object.
    packed = Packed(memoryview(b""), b"", job.info.call, shared=tuple(template.mounted(job.root)[1:]))
    draft = await _draft(job, packed, job.info)
    export = hint("export", job.info.name, "FOLDER")
    head = f"# Its Secrets, which hold the payload and the job's key: {export}\n"
    return head + "\n---\n".join(map(_yaml, _in_order(draft))) + "\n"


async def manifests(job: JobRef) -> list[dict[str, Any]]:
    """Return the objects of a job of the same name that runs the same, the job object last.

    They are made anew of what was submitted, not of what is on the cluster: webhooks add to that what they
    would add again (Kueue 0.19 to a TrainJob's ``runtimePatches``), and the server notes it as if we had
    written it. It is another run: what is left of the job meanwhile has no name that any of them has.

    The Secrets are small enough for ``kubectl apply``. A NetworkPolicy is among the objects, whether the job
    requested one or not: what is given away isn't left open. Raises ``ClusterError``, and ``SubmitError``
    where some of its payload is gone.
    """
    info = await job.whole_info()
    packed, _ = await as_swapped(job, info, await packed_again(job, info))
    if isinstance(packed, Stored):
        packed = replace(packed, stays=True)
    else:
        packed = replace(packed, limit=package.APPLIED_BYTES)
    draft = await _draft(job, packed, info.sent_again())
    policies = [] if info.asked.cluster.network_policy else [submission.policy(draft.submission)]
    namespace = {"namespace": draft.scope.namespace}
    parts = [{**secret, "metadata": {**secret["metadata"], **namespace}} for secret in draft.secrets[1:]]
    return [*policies, *parts, *_in_order(draft)]


async def _draft(job: JobRef, packed: Packed | Stored, info: JobInfo) -> Draft:
    if not info.spec:  # somebody took the annotation away
        raise package.gone(info.name)
    return await Submitter(job.session, packed, where_it_is(job), info, anew=True, name=info.name).draft()


def _in_order(draft: Draft) -> list[dict[str, Any]]:
    """Return a draft's objects but for its Secrets, the job object last: nothing of it is missing then."""
    job, *others = draft.manifests
    return [*others, job]


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
        head = ""
        if package.KEY in package.data(obj) and info.asked.secret_env:
            # What to fill in, as a comment: values of variables that nothing shows aren't given away.
            keys = [package.env_key(variable) for variable in info.asked.secret_env]
            head = (
                "# Fill in the values of these variables, which aren't exported; "
                "without them no pod starts.\n"
                "# stringData:\n" + "".join(f"#   {json.dumps(key)}: \n" for key in keys)
            )
        written.append(_private(folder / name, head + _yaml(obj)))
    for index, (label, text) in enumerate(info.sources.values()):
        written.append(_private(folder / f"source-{index}.py", f"# {label}\n{text}"))
    return written


def _private(path: Path, text: str) -> Path:
    path.touch(mode=0o600)  # Secrets are among them
    path.write_text(text)
    return path


def _yaml(obj: Mapping[str, Any]) -> str:
    import yaml

    text: str = yaml.safe_dump(json.loads(json.dumps(obj)), sort_keys=False, allow_unicode=True)
    return text.rstrip("\n")
