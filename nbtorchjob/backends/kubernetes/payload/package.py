"""A call as it travels to a cluster: its bytes, key and digest, and the immutable Secrets that hold them.

The payload is never in a command, a variable or a manifest's text.

The first Secret holds the job's key, the run that it is for, the job's record, and ``job.pyz`` itself if it
fits. A bigger payload continues in further Secrets, and ``job.pyz`` is then the few lines that put the parts
together (``runtime/start/boot.py``).

A kubelet keeps an immutable Secret by its namespace and name for as long as any pod on its host refers to it,
so a later one of the same name isn't read (Kubernetes 1.36). So the names of Secrets follow from the run
(:func:`first_name`), and no two runs share one. Only the :func:`claim` has the job's name: it is made first,
so that of two jobs with one name, whatever their kinds, the second is refused before it sends anything. No
pod refers to it, so no host keeps it. The job owns the claim, which owns the Secrets.

A job whose code is swapped gets one more Secret (:func:`swaps`), which changes, and so isn't immutable. Pods
mount it if it exists when they start.

What the runs of a group share is in Secrets of the group, which all of the runs own: each run's own Secret
names them, and holds no payload.
"""

from __future__ import annotations

import base64
import io
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.payload import stores
from nbtorchjob.capture import identity
from nbtorchjob.errors import DamagedError, SubmitError
from nbtorchjob.frozen import FrozenDataclass, replace
from nbtorchjob.payload import archive
from nbtorchjob.runtime.facts.injected import RUN_FILE
from nbtorchjob.runtime.start import boot
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import JobInfo
from nbtorchjob.state.facts.factlines import UNREADABLE
from nbtorchjob.state.info import API_BYTES, why
from nbtorchjob.text import words

if TYPE_CHECKING:
    from nbtorchjob.capture import Call

# A Secret holds 1 MiB (Kubernetes 1.36 answers more with 422). Base64 makes the request a third bigger,
# and above 1 MiB aiohttp (3.14) warns that sending it blocks the event loop.
SECRET_BYTES = 760_000
# `kubectl apply` keeps a copy of what it applies in an annotation, in Base64 as in JSON, and an object's
# annotations may take 262,144 bytes together.
APPLIED_BYTES = 180_000
# All of a pod's Secrets are held in its host's memory, and each is a request at submission.
LIMIT_BYTES = API_BYTES

JOB, KEY, RUN, EXTRA, URL = "job.pyz", "key", RUN_FILE, "extra", "payload.url"
_PART = "part-{:03d}"
_ENV = "env."  # in front of a variable's name
_ROOM = 4096  # bytes for the key and the boot text


def claim(name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the empty Secret that only one job of a name can have, whatever its kind."""
    secret = _secret(claim_name(name), labels, {})
    return {key: value for key, value in secret.items() if key != "immutable"}


def manifests(
    info: JobInfo, labels: Mapping[str, str], key: bytes, payload: bytes, limit: int = SECRET_BYTES
) -> list[dict[str, Any]]:
    """Return the Secrets that hold a job's payload, at most ``LIMIT_BYTES``, in parts of ``limit``."""
    return _holding(first_name(info), labels, _own(info, key), payload, limit)


def shared(name: str, labels: Mapping[str, str], payload: bytes) -> list[dict[str, Any]]:
    """Return the Secrets, the first one called ``name``, of a payload that runs of a group share."""
    return _holding(name, labels, {}, payload, SECRET_BYTES)


def sharing(
    info: JobInfo, labels: Mapping[str, str], key: bytes, shared: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the Secret of a run whose payload is in Secrets of its group."""
    own = _secret(first_name(info), labels, _own(info, key))
    own["metadata"]["annotations"] = {labelling.SHARED: " ".join(shared)}
    return [own]


def _own(info: JobInfo, key: bytes) -> dict[str, bytes]:
    """Return the data of a single run; a node compares the run with its pod's (``runtime/start/node``)."""
    extra, sources = labelling.extra(info), dict(info.sources)
    while len(extra) > SECRET_BYTES - _ROOM and sources:  # all are in the cache of the machine that sends it
        del sources[max(sources, key=lambda name: len(sources[name][1]))]
        extra = labelling.extra(replace(info, sources=sources))
    return {KEY: key, RUN: info.run.encode(), EXTRA: extra}


def _holding(
    name: str, labels: Mapping[str, str], own: Mapping[str, bytes], payload: bytes, limit: int
) -> list[dict[str, Any]]:
    if len(payload) + sum(map(len, own.values())) + _ROOM <= limit:
        return [_secret(name, labels, {**own, JOB: payload})]
    parts = [payload[at : at + limit] for at in range(0, len(payload), limit)]
    return [
        _secret(name, labels, {**own, JOB: _boot()}),
        *(_secret(f"{name}-{i + 1}", labels, {_PART.format(i): part}) for i, part in enumerate(parts)),
    ]


def reference(
    info: JobInfo, labels: Mapping[str, str], key: bytes, url: str, digest: str
) -> list[dict[str, Any]]:
    """Return the Secret of a payload that lies in a store at ``url``."""
    stored = f"{url}\n{digest}".encode()
    return [_secret(first_name(info), labels, {**_own(info, key), JOB: _boot(), URL: stored})]


def payload(secrets: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the payload that :func:`manifests` put there. Raises ``ValueError`` if parts are gone."""
    texts = {key: text for secret in secrets for key, text in data(secret).items()}
    parts = sorted(key for key in texts if key.startswith("part-"))
    without_gap = parts == [_PART.format(i) for i in range(len(parts))]
    whole = b"".join(base64.b64decode(texts.get(key, "")) for key in parts or [JOB])
    # A zip file is recognized by its end; the text that boots a payload in parts isn't one.
    if not without_gap or not zipfile.is_zipfile(io.BytesIO(whole)):
        raise ValueError("parts of the payload are gone")
    return whole


def with_env(first: dict[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    """Return a job's first Secret, with the values of variables that are in no manifest."""
    entries = {env_key(name): base64.b64encode(text.encode()).decode() for name, text in values.items()}
    return {**first, "data": {**first["data"], **entries}}


def env_key(name: str) -> str:
    """Return the key of a variable's value in a job's first Secret."""
    return f"{_ENV}{name}"


def env(first: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables whose values are in a job's first Secret. Raises ``DamagedError``."""
    keys = [key for key in data(first) if key.startswith(_ENV)]
    return {key[len(_ENV) :]: value(first, key).decode(errors="replace") for key in keys}


def gone_error(name: str) -> SubmitError:
    """Return the error for a job whose payload is gone."""
    return SubmitError(f"the payload of {name} is gone from the cluster: run its cell again")


def claim_name(name: str) -> str:
    """Return the name of the Secret that only one job of a name can have."""
    return f"{name}-claim"


def swaps(name: str, labels: Mapping[str, str], owner: Mapping[str, str]) -> dict[str, Any]:
    """Return the empty Secret for the payloads of a job's swaps, which is deleted along with ``owner``."""
    secret = _secret(name, labels, {})
    metadata = {**secret["metadata"], "ownerReferences": [dict(owner)]}
    return {**{key: value for key, value in secret.items() if key != "immutable"}, "metadata": metadata}


def swaps_name(spec: JobSpec, info: JobInfo) -> str:
    """Return the name of the Secret for a job's swaps.

    "" where nodes keep them beside the job's checkpoints, and for a lab, where no attempt begins with them.
    """
    if stores.checkpoints(spec, info) or info.lab is not None:
        return ""
    return labelling.run_name(f"{info.name}-swaps", info)


def first_name(info: JobInfo) -> str:
    """Return the name of the Secret that holds the job's key: no other run has one of that name."""
    return labelling.run_name(f"{info.name}-payload", info)


def part_names(info: JobInfo, names: Iterable[str]) -> list[str]:
    """Return those of ``names`` that are names of Secrets of the job's payload, in order."""
    pattern = re.compile(rf"{re.escape(first_name(info))}(?:-(\d+))?")
    numbers = {match[0]: int(match[1] or 0) for match in map(pattern.fullmatch, names) if match}
    return sorted(numbers, key=numbers.__getitem__)


def names(secrets: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the names of those Secrets, in order."""
    return tuple(secret["metadata"]["name"] for secret in secrets)


def data(secret: Mapping[str, Any]) -> Mapping[str, str]:
    """Return what a Secret holds, each value as Base64; one that somebody else made may hold nothing."""
    return secret.get("data") or {}


def value(secret: Mapping[str, Any], key: str) -> bytes:
    """Return what a Secret holds under ``key``; raises ``DamagedError``."""
    try:
        return base64.b64decode(data(secret)[key])
    except UNREADABLE as exc:
        name = secret["metadata"]["name"]
        job = (secret["metadata"].get("labels") or {}).get(labelling.JOB, name)
        raise DamagedError("kubernetes", job, f"Secret {name}", why(exc)) from exc


def _boot() -> bytes:
    return Path(boot.__file__).read_bytes()


def shared_by(first: Mapping[str, Any]) -> list[str]:
    """Return the group's Secrets that a run's own Secret names, in order; none for any other job."""
    return str((first["metadata"].get("annotations") or {}).get(labelling.SHARED, "")).split()


def _secret(name: str, labels: Mapping[str, str], values: Mapping[str, bytes]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": dict(labels)},
        "type": "Opaque",
        "immutable": True,
        "data": {key: base64.b64encode(part).decode() for key, part in values.items()},
    }


_NAMED = 3  # of the biggest captures


class PackedPayload(FrozenDataclass):
    """A payload, the key that it is signed with, and the digest of what it runs and how.

    ``ours`` is whether its call was submitted from here, rather than repeated from another person's job. If
    it is ``shared``, Secrets of these names hold it, for all runs of a group. Else it is in Secrets of at
    most ``limit`` bytes.
    """

    data: memoryview
    key: bytes
    digest: str
    ours: bool = True
    shared: tuple[str, ...] = ()
    limit: int = SECRET_BYTES

    @cached_property
    def sha256(self) -> str:
        """The payload's own digest, in hex."""
        return sha256(self.data).hexdigest()

    @property
    def travels(self) -> bool:
        """Whether it fits through the API; else it goes through a store."""
        return len(self.data) <= LIMIT_BYTES

    def secrets(self, info: JobInfo, labels: dict[str, str], url: str) -> list[dict[str, Any]]:
        """Return the Secrets that its pods mount; ``url`` is where :meth:`store` puts what doesn't travel."""
        if self.shared:
            return sharing(info, labels, self.key, self.shared)
        if self.travels:
            return manifests(info, labels, self.key, bytes(self.data), self.limit)
        return reference(info, labels, self.key, url, self.sha256)

    def store(self, url: str, stopped: Callable[[], bool]) -> None:
        """Write the payload to a store, until ``stopped``. Raises ``SubmitError``."""
        stores.put(self.data, url, stopped)


class StoredPayload(FrozenDataclass):
    """A payload that an earlier job left in a store; otherwise like :class:`PackedPayload`.

    It is copied for a job that is sent; for a job that is only exported it ``stays`` where it is.
    """

    url: str
    sha256: str
    key: bytes
    digest: str
    ours: bool
    stays: bool = False
    travels = False
    shared: tuple[str, ...] = ()

    def secrets(self, info: JobInfo, labels: dict[str, str], url: str) -> list[dict[str, Any]]:
        """Return the Secret that its pods mount."""
        return reference(info, labels, self.key, self.url if self.stays else url, self.sha256)

    def store(self, url: str, stopped: Callable[[], bool]) -> None:
        """Copy it within the store, until ``stopped``: the original is removed with its job.

        Raises ``SubmitError``.
        """
        stores.copy(self.url, url, self.sha256, stopped)


def pack(call: Call, spec: JobSpec) -> PackedPayload:
    """Pack ``call``. Raises ``SubmitError`` if it is too big to travel through the API."""
    if call.size > LIMIT_BYTES and spec.cluster.storage is None:
        raise _too_big(call, call.size)
    file, key = io.BytesIO(), os.urandom(32)
    size = archive.write(file, call, spec, key)
    if size > LIMIT_BYTES and spec.cluster.storage is None:
        raise _too_big(call, size)
    # Not its buffer: a BytesIO freed before its exported buffer complains on stderr (Python 3.13).
    return PackedPayload(memoryview(file.getvalue()), key, identity.of_job(call, spec))


def _too_big(call: Call, size: int) -> SubmitError:
    biggest = sorted(call.ships, key=lambda ship: ship.size, reverse=True)[:_NAMED]
    named = ", ".join(f"{ship.name} ({ship.type}, {ship.human})" for ship in biggest)
    return SubmitError(
        f"the payload is {words.size(size)}, but at most {words.size(LIMIT_BYTES)} can be sent "
        f"through the API; the biggest in it: {named}: load them on the ranks, or set --storage URL"
    )
