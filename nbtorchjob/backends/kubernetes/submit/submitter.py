"""Send a job: its Secrets, the job object, and what belongs to it; all of it, or nothing."""

from __future__ import annotations

import asyncio
import base64
import logging
import threading
import time
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from nbtorchjob.backends import naming
from nbtorchjob.backends.kubernetes import namespaces
from nbtorchjob.backends.kubernetes.api.answers import Object
from nbtorchjob.backends.kubernetes.cache import JobCache
from nbtorchjob.backends.kubernetes.jobs import JobRef, find, over
from nbtorchjob.backends.kubernetes.kinds import KINDS, Kind, fit
from nbtorchjob.backends.kubernetes.namespaces import Scope
from nbtorchjob.backends.kubernetes.objects import labelling, workloads
from nbtorchjob.backends.kubernetes.objects.reading import BESIDE, SECRETS, Target, created
from nbtorchjob.backends.kubernetes.objects.submission import Runtime, Submission, network_policies
from nbtorchjob.backends.kubernetes.payload import package, stores
from nbtorchjob.backends.kubernetes.payload.package import PackedPayload, StoredPayload
from nbtorchjob.backends.kubernetes.session import KNOWN_S, Session
from nbtorchjob.backends.kubernetes.submit import attempts
from nbtorchjob.backends.kubernetes.submit.attempts import reference
from nbtorchjob.capture.identity import user
from nbtorchjob.errors import (
    AlreadyExistsError,
    ClusterError,
    NameTakenError,
    NotFoundError,
    Shape,
    SpecError,
    SubmitError,
)
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.machine import loop
from nbtorchjob.runtime.store.payload import signed_given
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import JobInfo
from nbtorchjob.state.attempts import first_on_demand
from nbtorchjob.state.facts.events import AWAITED
from nbtorchjob.text.hints import hint

_log = logging.getLogger(__name__)

_TRIES = 5
_DIGITS = 12  # of a digest, in a file's name
_MOMENT_S = 1.0  # another kernel that sends the same cell needs less, and so does the garbage collector
_COLLECTED_S = 30.0  # for what belonged to a deleted job to be deleted, too
_LOOK_S = 0.2
HALF_MADE_S = 60.0  # from a Secret to its job; an older Secret without a job has lost its kernel


class Draft(FrozenDataclass):
    """A job ready to be sent: the job object is the first of its ``manifests``."""

    kind: Kind
    scope: Scope
    info: JobInfo
    submission: Submission
    secrets: list[dict[str, Any]]  # the first one is the claim to the job's name
    manifests: list[dict[str, Any]]

    @property
    def job(self) -> Target:
        """Where the job object goes."""
        return Target(self.kind.api, self.scope.namespace, self.info.name)


class Submitter:
    """Sends one call to one cluster; ``anew`` makes it another job, under a name that no other job has.

    A mere draft may have the ``name`` of an existing job. The coroutines run on our own event loop.
    """

    def __init__(
        self,
        session: Session,
        packed: PackedPayload | StoredPayload,
        spec: JobSpec,
        info: JobInfo,
        *,
        anew: bool = False,
        name: str = "",
    ) -> None:
        self._session = session
        self._client = session.client
        self._packed = packed
        self._spec = spec
        self._anew = anew
        self._given_name = None if anew else spec.name  # the given name, if there is one
        # A job that is sent again has its variant signed already, with the same key.
        own = (
            info.variant
            if anew or not info.variant
            else signed_given(base64.b64decode(info.variant), packed.key)
        )
        self._info = replace(info, call=packed.digest, variant=own)
        self._drafted = name
        self._count = 0  # how many names were tried and are taken

    async def send(self) -> JobInfo:
        """Send the job; return the record of the job that now runs, which may have been sent before.

        If an ended job has the given name, a number is appended. Raises ``SubmitError`` with nothing left
        behind; ``NameTakenError`` for a given name that is another running job's, or somebody else's.
        """
        draft = await self.draft()
        # Before anything is made: what a killed kernel leaves behind must be found.
        namespaces.remember(draft.scope)
        if self._anew:
            # Before the payload is stored: what the store has under the first name is another job's.
            draft = await self._renamed(draft, _names(await self._others(draft)))
        for _ in range(_TRIES):
            try:
                await self._await_collection(draft)
                if not self._packed.travels:
                    await self._store(draft.info)
                uid = await self._create(draft)
            except AlreadyExistsError as exc:
                others = await self._others(draft)
                for job in [job for job in others if self._same(job.info) and not await over(job)]:
                    if job.info.call != self._info.call:
                        raise naming.busy(self._given_name or "", job.info) from exc
                    existing = job.info
                    names = ("name", "created", "cluster_created", "cluster")
                    return replace(draft.info, **{name: getattr(existing, name) for name in names})
                if draft.info.name not in _names(others):
                    foreign = await self._foreign(draft)
                    if not foreign and await self._cleared(draft):
                        continue
                    if self._given_name is not None:
                        raise _taken_error(draft, foreign) from exc
                # An ended job of the same call, or of the given name, has the name.
                draft = await self._renamed(draft, {draft.info.name, *_names(others)})
            else:
                JobCache(draft.scope.folder(draft.info.name, uid)).begin(
                    draft.info, self._packed.key, ours=self._packed.ours
                )
                return draft.info
        if self._given_name is not None:
            raise _taken_error(draft, "")
        raise NameTakenError(f"{_TRIES} names for this job are taken on the cluster: choose one with --name")

    async def _renamed(self, draft: Draft, used_names: Collection[str]) -> Draft:
        if draft.info.name not in used_names:
            return draft
        while self._name() in used_names:  # not drafted: that copies the payload
            self._count += 1
        return await self._draft(draft.kind, draft.scope)

    async def draft(self, *, blind: bool = False) -> Draft:
        """Return everything that would be sent; if ``blind``, to a cluster about which nothing is known."""
        if blind:
            kind = fit.choose({kind.api[:3] for kind in KINDS.values()}, self._spec)
            # Where the job would go; without a kubeconfig that says where, to kubectl's own default
            try:
                blind_scope = await self._session.scope(self._spec)
            except ClusterError:
                blind_scope = Scope(self.context, "default")
            return await self._draft(kind, blind_scope, blind=True)
        try:
            served, minor = await self._session.soon()
            kind = fit.choose(served, self._spec, minor)
        except SubmitError:  # an operator may have been installed since we looked
            served, minor = await self._session.soon(anew=True)
            kind = fit.choose(served, self._spec, minor)
        await attempts.check_priority(self._session, self._spec.cluster.workload_priority)
        return await self._draft(kind, await self._session.scope(self._spec))

    @property
    def context(self) -> str:
        """The requested kubeconfig context; "" is the current one."""
        return self._spec.cluster.context or ""

    async def _draft(self, kind: Kind, scope: Scope, *, blind: bool = False) -> Draft:
        name = self._name()
        where = {"context": scope.context, "namespace": scope.namespace, "kind": kind.name}
        minor = fit.NEWEST if blind else await self._session.minor()
        owner = fit.retry_owner(kind, self._spec, minor)
        created = self._session.client.at(self._info.created)
        info = replace(self._info, name=name, cluster=where, retry_owner=owner, cluster_created=created)
        labels = labelling.labels(info, user(), self._spec.cluster.label)
        own, *others = self._packed.secrets(info, labels, self._url(info))
        secrets = [package.with_env(own, {} if self._drafted else self._spec.secrets()), *others]
        sub = Submission(
            spec=self._spec,
            info=info,
            namespace=scope.namespace,
            secrets=(*package.names(secrets), *self._packed.shared),
            labels=labels,
            annotations=labelling.info_annotations(info, self._spec.cluster.annotation),
            minor=minor,
            runtime=None if blind else await self._runtime(kind, scope.namespace),
            on_demand=first_on_demand(self._spec.retry),
        )
        manifests = [*kind.manifests(sub), *network_policies(sub)]
        if info.at_once is not None and not self._anew:
            # A run's job object waits for its turn, suspended, unless the run is among the first
            job = manifests[0]
            if not kind.suspend:
                why = (
                    f"on a {kind.api.kind}, which can't be created suspended: its queue decides how many run"
                )
                raise SpecError("at_once", info.at_once, why, Shape.CONFLICT)
            if info.number > info.at_once:
                waits: dict[str, Any] = {"annotations": {labelling.TURN: AWAITED}}
                if queue := workloads.queue(job):
                    # Kueue starts what has quota, suspended or not: before its turn the run is in no queue.
                    waits = _merged(labelling.parked(queue), waits)
                manifests[0] = _merged(_merged(job, {"metadata": waits}), kind.suspended(suspended=True))
        return Draft(kind, scope, info, sub, [package.claim(name, labels), *secrets], manifests)

    def _name(self) -> str:
        if self._drafted:
            return self._drafted
        if self._spec.name is None:
            # Without the cell's number: a cell that is run again unchanged has another, but is the same job.
            title = naming.title(self._info.label, self._info.notebook)
            return naming.derive(title, f"{self._info.call}-{self._count}")
        return naming.run(self._spec.name, self._count + (2 if self._anew else 1))

    async def _runtime(self, kind: Kind, namespace: str) -> Runtime | None:
        if kind.runtimes is None:
            return None
        name, runtimes, now = self._spec.cluster.runtime, self._session.runtimes, time.monotonic()
        key = (kind.name, namespace, name or "")
        if runtimes.get(key, (0.0,))[0] < now:
            # If the runtime is removed meanwhile, the operator refuses the job.
            runtime = await attempts.find(self._client, kind.runtimes, namespace, name)
            runtimes[key] = now + KNOWN_S, runtime
        return runtimes[key][1]

    def _url(self, info: JobInfo) -> str:
        return stores.payload(str(self._spec.cluster.storage), info, self._packed.sha256)

    async def _create(self, draft: Draft) -> str:
        """Create everything; return the job's uid."""
        targets: list[tuple[Target, str]] = []  # with their uids

        async def unmake() -> None:
            for target, uid in targets:
                await _deleted(self._session, target, uid)
            if not self._packed.travels:
                await self._unstore(draft.info)

        return await loop.all_or_nothing(self._make(draft, targets), unmake)

    async def _store(self, info: JobInfo) -> None:
        stopped = threading.Event()
        writing = asyncio.to_thread(self._packed.store, self._url(info), stopped.is_set)
        await loop.all_or_nothing(writing, partial(self._unstore, info), stopped.set)

    async def _unstore(self, info: JobInfo) -> None:
        try:
            await asyncio.to_thread(stores.remove, stores.folder(str(self._spec.cluster.storage), info))
        except SubmitError as exc:
            _log.warning("a payload is left in the store: %s", exc)

    async def _make(self, draft: Draft, targets: list[tuple[Target, str]]) -> str:
        """Create everything; the job's claim to its name owns the Secrets, and the job owns the claim."""
        namespace = draft.scope.namespace
        first = await self._client.create(SECRETS, namespace, draft.secrets[0])
        owner = Target(SECRETS, namespace, first["metadata"]["name"])
        targets.append((owner, first["metadata"]["uid"]))
        for secret in draft.secrets[1:]:
            await self._client.create(SECRETS, namespace, _owned(secret, first))
        job = await self._client.create(draft.kind.api, namespace, draft.manifests[0])
        targets.append((draft.job, job["metadata"]["uid"]))
        await self._client.patch(owner, _owned({}, job))
        for name in self._packed.shared[:1]:  # it owns the others
            await self._client.patch(Target(SECRETS, namespace, name), _owned({}, job), join=True)
        for part in draft.manifests[1:]:
            await self._client.create(BESIDE[part["kind"]], namespace, _owned(part, job))
        return str(job["metadata"]["uid"])

    async def _others(self, draft: Draft) -> list[JobRef]:
        """Return all jobs that have the name, of whatever user, and all jobs of this user."""
        both = [labelling.of(draft.info.name), labelling.of_user(user())]
        jobs = [job for labels in both for job in await find.selected(self._session, draft.scope, labels)]
        return [*{job.root["metadata"]["uid"]: job for job in jobs}.values()]

    def _same(self, other: JobInfo) -> bool:
        """Whether a job is a run of the given name or, without one, of this call."""
        if self._given_name is None:
            return not self._anew and other.call == self._info.call
        return self._given_name in (other.name, other.spec.get("name"))

    async def _foreign(self, draft: Draft) -> str:
        """Name an object that has the job's name and that nbtorchjob didn't make; "" if there is none."""
        claim = Target(SECRETS, draft.scope.namespace, package.claim_name(draft.info.name))
        for target in (draft.job, claim):
            obj = await self._existing(target)
            if obj is not None and not labelling.is_ours(obj):
                return f"{target.api.kind} {target.name!r}"
        strangers = (
            target for target, obj in await self._beside(draft) if not attempts.made_for(draft.info.name, obj)
        )
        return next((f"{target.api.kind} {target.name!r}" for target in strangers), "")

    async def _await_collection(self, draft: Draft) -> None:
        """Wait until what an operator made for an earlier job of the name is gone with that job.

        The operator would take it for the new job's. Raises ``AlreadyExistsError`` for what somebody else
        made, which the operator would take as well, and even delete when the job ends.
        """
        until = time.monotonic() + _COLLECTED_S
        while left := await self._beside(draft):
            for target, obj in left:
                if not attempts.made_for(draft.info.name, obj):
                    raise AlreadyExistsError(f"{target} isn't this job's, but has a name that it needs")
            if time.monotonic() > until or await self._existing(draft.job) is not None:
                return
            await asyncio.sleep(_LOOK_S)

    async def _beside(self, draft: Draft) -> list[tuple[Target, Object]]:
        return await attempts.adopted(self._client, draft.kind, draft.scope.namespace, draft.info.name)

    async def _cleared(self, draft: Draft) -> bool:
        """Remove a claim to the name that has no job; False if its job may appear at any moment."""
        secret = Target(SECRETS, draft.scope.namespace, package.claim_name(draft.info.name))
        orphan = await self._existing(secret)
        if orphan is not None and await self._is_lost(orphan):
            return await self._client.delete(secret, uid=orphan["metadata"]["uid"])
        await asyncio.sleep(_MOMENT_S)
        return orphan is None or await self._existing(draft.job) is not None

    async def _is_lost(self, orphan: Object) -> bool:
        """Whether a claim's kernel was killed before it made the job, or its job has just been deleted."""
        owners = orphan["metadata"].get("ownerReferences")
        if not owners:
            return self._client.now() - created(orphan) > HALF_MADE_S
        owner_kind = (owners[0]["apiVersion"], owners[0]["kind"])
        apis = (kind.api for kind in KINDS.values())
        api = next((api for api in apis if (api.group_version, api.kind) == owner_kind), None)
        if api is None:
            return False
        owner = await self._existing(Target(api, orphan["metadata"]["namespace"], owners[0]["name"]))
        return owner is None or owner["metadata"]["uid"] != owners[0]["uid"]

    async def _existing(self, target: Target) -> Object | None:
        try:
            return await self._client.get(target)
        except NotFoundError:
            return None


@asynccontextmanager
async def sharing(
    session: Session, packed: PackedPayload, spec: JobSpec, info: JobInfo
) -> AsyncIterator[PackedPayload]:
    """Create a payload's Secrets once for all runs of ``info``'s group; yield what each run is to send.

    The Secrets are removed again if the runs can't be sent.
    """
    if not packed.travels:
        yield packed
        return
    scope = await session.scope(spec)
    namespaces.remember(scope)  # before anything is made, as for a job
    name = f"{info.group}-payload-{packed.sha256[:_DIGITS]}"
    secrets = package.shared(name, labelling.of_group(info, user()), bytes(packed.data))
    uid = ""
    try:
        first = await session.client.create(SECRETS, scope.namespace, secrets[0])
        uid = first["metadata"]["uid"]
        for secret in secrets[1:]:
            await session.client.create(SECRETS, scope.namespace, _owned(secret, first))
        yield replace(packed, shared=package.names(secrets))
    except BaseException as exc:
        if uid or not isinstance(exc, AlreadyExistsError):  # else it is somebody else's
            await asyncio.shield(_deleted(session, Target(SECRETS, scope.namespace, name), uid))
        raise


async def _deleted(session: Session, target: Target, uid: str) -> None:
    try:
        await session.client.delete(target, uid=uid)
    except ClusterError as exc:
        # The raised error says why there is no job; this is only about what was left of it.
        _log.warning("%s is left on the cluster (%s): %s lists it", target, exc, hint("gc"))


def _merged(obj: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(obj.get(key) or {}, value) for key, value in patch.items() if isinstance(value, dict)
    }
    return {**obj, **patch, **both}


def _names(jobs: Iterable[JobRef]) -> set[str]:
    return {job.info.name for job in jobs}


def _owned(obj: dict[str, Any], owner: Object) -> dict[str, Any]:
    """Return ``obj`` with an owner: it is deleted along with ``owner``."""
    return {**obj, "metadata": {**obj.get("metadata", {}), "ownerReferences": [reference(owner)]}}


def _taken_error(draft: Draft, foreign: str) -> NameTakenError:
    name, scope = draft.info.name, draft.scope
    if foreign:
        return NameTakenError(
            f"namespace {scope.namespace!r} has a {foreign} that "
            "nbtorchjob didn't make: choose another --name"
        )
    return NameTakenError(
        f"a job named {name!r} exists already in namespace {scope.namespace!r}; choose another --name, or "
        f"{hint('delete', name)}"
    )
