"""The verbs of the Kubernetes backend."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import queue
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nbtorchjob.backends.base import Backend, Choice, Finding, Leftover, NodeAnswer, SwapKeeper, TenderStatus
from nbtorchjob.backends.kubernetes import deployment, doctor, namespaces
from nbtorchjob.backends.kubernetes.api.errors import submit_error
from nbtorchjob.backends.kubernetes.cache import Fresh, JobCache
from nbtorchjob.backends.kubernetes.control import actions, cleanup
from nbtorchjob.backends.kubernetes.control.follow import Follower
from nbtorchjob.backends.kubernetes.control.service import Background, Service, tended, tends
from nbtorchjob.backends.kubernetes.doctor import named
from nbtorchjob.backends.kubernetes.jobs import JobRef, find, results
from nbtorchjob.backends.kubernetes.kinds import KINDS, fit
from nbtorchjob.backends.kubernetes.payload import package, shared
from nbtorchjob.backends.kubernetes.payload.package import PackedPayload, pack
from nbtorchjob.backends.kubernetes.session import session
from nbtorchjob.backends.kubernetes.submit import again, attempts
from nbtorchjob.backends.kubernetes.submit.submitter import Submitter, sharing
from nbtorchjob.backends.kubernetes.template import requested_images
from nbtorchjob.backends.talk import Conversation, Talk
from nbtorchjob.environment import images
from nbtorchjob.environment.images import Contents
from nbtorchjob.errors import (
    AskError,
    ClusterError,
    ForbiddenError,
    JobEndedError,
    JobNotFoundError,
    SpecError,
)
from nbtorchjob.machine import interrupts, loop
from nbtorchjob.machine.interrupts import Interrupted, Once
from nbtorchjob.payload.results import FetchedValue
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.text.hints import hint

if TYPE_CHECKING:
    from nbtorchjob.capture import Call
    from nbtorchjob.state.turns import View

_log = logging.getLogger(__name__)
T = TypeVar("T")
_TAKE_BACK_S = 10.0
_SENT_AT_A_TIME = 8  # runs of a group
_LATELY_S = 60.0  # for which a tender that was there is assumed to be there still
_MOMENT_S = 1.0  # for asking whether there is one


def create() -> KubernetesBackend:
    """Return the backend (see ``backends.backend``)."""
    return KubernetesBackend()


def _log_events(name: str, ranks: Sequence[int]) -> Iterable[ev.Event]:
    try:
        return loop.run(_act(name, lambda job: results.log(job, ranks)))
    except JobNotFoundError:
        return results.from_cache(find.cached_job(name)[1])


class KubernetesBackend(Backend):
    """All clusters that kubeconfig contexts lead to. See ``backends/base.py`` for what each verb promises."""

    where = "a cluster"

    def check(self, spec: JobSpec) -> list[str]:
        """Refuse what the named kind can't do; an unnamed kind is chosen, and checked, at submission."""
        if spec.cluster.kind is None:
            return []
        kind = KINDS[spec.cluster.kind]
        fit.check(kind, spec)
        left = fit.left_to_us(kind, spec)
        return [*(left if left and not _tended(spec) else ()), *fit.cautions(kind, spec)]

    def most_shipped(self, spec: JobSpec) -> int | None:
        """Return what fits into Secrets; None if there is a store."""
        return None if spec.cluster.storage else package.LIMIT_BYTES

    def submit(self, call: Call, spec: JobSpec, info: JobInfo) -> JobInfo:
        """Send the Secrets and the job object, unless a job of the same call runs already."""
        packed = pack(call, spec)
        _store(call, spec, info)
        (sent,) = _sent(_send(packed, spec, info))
        return sent

    def submit_runs(self, call: Call, spec: JobSpec, infos: Sequence[JobInfo]) -> list[JobInfo]:
        """Pack the call once, and send it as each of the runs, several at a time."""
        packed = pack(call, spec)
        for info in infos:
            _store(call, spec, info)
        return _sent(_send_runs(packed, spec, infos))

    def retry(self, name: str, *, resume: bool = False) -> JobInfo:
        """Send the content of the job's Secrets once more, as a new job beside it."""

        async def send(job: JobRef) -> list[JobInfo]:
            return [_remember(await again.retry(job, resume=resume))]

        try:
            (sent,) = _sent(_act(name, send))
        except JobNotFoundError:
            raise package.gone_error(find.cached_job(name)[0].name) from None
        return sent

    async def follow(
        self,
        name: str,
        *,
        since: Mapping[tuple[int, int], int] | None = None,
        turn: View | None = None,
    ) -> AsyncGenerator[ev.Event, None]:
        """Watch the job's object and pods, and follow their logs."""
        fresh = (lambda event: event) if since is None else Fresh(since).part
        async with aclosing(_followed(name, in_order=since is not None)) as events:
            async for event in events:
                if (part := fresh(event)) is not None:
                    yield part
                if turn is not None and turn.over:  # a pod reports a turn's end after all that it wrote
                    return

    def scopes(self) -> list[str]:
        """Return the namespaces that this user sends jobs to, with their contexts."""
        return [str(scope) for scope in namespaces.looked_at()]

    def jobs(self, *, everyone: bool = False, scope: str | None = None) -> list[JobState]:
        """List the objects and pods of a scope, or of every one that this user sends jobs to."""
        listed: list[JobState] = []
        if scope is not None:
            listed = loop.run(_listed(namespaces.Scope.parse(scope), everyone=everyone))
        else:
            scopes = namespaces.looked_at()

            async def beside() -> list[list[JobState] | BaseException]:
                looks = (_listed(place, everyone=everyone) for place in scopes)
                return await asyncio.gather(*looks, return_exceptions=True)

            for place, states in zip(scopes, loop.run(beside()), strict=True):
                with find.asking(place):
                    if isinstance(states, BaseException):
                        raise states
                    listed += states
        return sorted(listed, key=lambda state: state.info.created)

    def several(self, names: Sequence[str]) -> list[JobState]:
        """List each of their scopes once; jobs that are gone are read from this machine's cache."""
        scopes = dict.fromkeys(name.rpartition("/")[0] for name in names)
        states = {state.info.address: state for scope in scopes for state in self.jobs(scope=scope or None)}
        return [states[name] if name in states else self.brief_state(name) for name in names]

    def snapshot(self, name: str) -> JobState:
        """Read the job's object, its pods and their logs once."""
        try:
            return loop.run(_act(name, results.snapshot))
        except JobNotFoundError:
            info, cache = find.cached_job(name)
            return reduce(apply, results.from_cache(cache), JobState(info))

    def facts(self, name: str, turn: View | None = None) -> Iterator[ev.Event]:
        """Read the facts that :meth:`snapshot` is made of."""
        try:
            yield from loop.run(_act(name, results.facts_now))
        except JobNotFoundError:
            yield from results.from_cache(find.cached_job(name)[1])

    def info(self, name: str) -> JobInfo:
        """Read the annotations of the job's object."""

        async def read(job: JobRef) -> JobInfo:
            return await job.whole_info()

        try:
            return loop.run(_act(name, read))
        except JobNotFoundError:
            return find.cached_job(name)[0]

    def cancel(self, name: str, *, gently: bool = False, early: str = "") -> None:
        """Suspend the job for good: its object stays, its pods go, in their grace period anyway."""
        loop.run(_act(name, partial(actions.cancel, early=early)))

    def delete(self, name: str) -> None:
        """Delete the job's object with all that it owns, and the job's files here and in the store."""
        loop.run(_delete(name))

    def suspend(self, name: str) -> None:
        """Remove the job's pods."""
        loop.run(_act(name, actions.suspend))

    def resume(self, name: str) -> None:
        """Have the job's pods made again, once the earlier ones are gone."""
        loop.run(_act(name, actions.resume))

    def begin(self, name: str) -> None:
        """Have pods made for a run that waits for its turn."""
        loop.run(_act(name, actions.begin))

    def log(self, name: str, rank: int, offset: int = 0) -> Iterator[bytes]:
        """Read the logs of the job's pods, or this machine's cache for those that are gone."""
        return results.behind(offset, results.rank_log(_log_events(name, [rank]), rank))

    def chunks(self, name: str, ranks: Sequence[int]) -> list[Iterator[ev.LogChunk]]:
        """Read the logs of the job's pods once for all of these ranks."""
        events = list(_log_events(name, ranks))
        return [results.chunks(events, rank) for rank in ranks]

    def ask(
        self,
        name: str,
        question: Mapping[str, Any],
        nodes: Sequence[int] | None = None,
        timeout: float = 10.0,
    ) -> Iterator[NodeAnswer]:
        """Run a command in each pod that connects to its node."""
        answers: queue.SimpleQueue[NodeAnswer | BaseException | None] = queue.SimpleQueue()

        async def work() -> None:
            end: BaseException | None = None
            try:
                await results.ask(await find.find(name), question, nodes, timeout, answers.put)
            except BaseException as exc:
                end = exc
            answers.put(end)

        future = loop.start(work())
        try:
            while (answer := answers.get()) is not None:
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
        except JobNotFoundError:
            info, _ = find.cached_job(name)
            raise JobEndedError(f"{info.name} has ended: its nodes can't be asked any more") from None
        finally:
            future.cancel()  # end requests that aren't waited for any more

    def talk(self, name: str, node: int, question: Mapping[str, Any], timeout: float = 10.0) -> Talk:
        """Run a command in the node's pod that connects to it."""

        async def reach() -> tuple[Conversation, results.PodLine]:
            job = await find.find(name)
            key, line = await results.reach(job, node)
            return Conversation(node, key, results.whole(question), goes_on=True), line

        try:
            return Talk(*loop.run(reach()), timeout)
        except JobNotFoundError:
            info, _ = find.cached_job(name)
            raise JobEndedError(f"{info.name} has ended: its nodes can't be asked any more") from None

    def swap_keeper(self, name: str) -> SwapKeeper | None:
        """Return the job's Secret for swaps, unless its nodes keep them with its checkpoints."""
        return loop.run(_act(name, attempts.swap_keeper))

    def key(self, name: str) -> bytes:
        """Read the key from the job's Secret, or this machine's cache."""

        async def read(job: JobRef) -> bytes:
            return await job.key()

        try:
            return loop.run(_act(name, read))
        except ForbiddenError as exc:
            raise AskError(f"the key of {name} can't be read: {exc}") from exc

    def number(self, name: str, newest: int) -> int:
        """Count in an annotation of the pool's object."""
        return loop.run(_act(name, partial(actions.number, newest=newest)))

    @property
    def login(self) -> str:
        """The kubeconfig that the environment names."""
        return os.environ.get("KUBECONFIG", "")

    def ours(self, name: str) -> bool:
        """Return what this machine's cache says."""

        async def read(job: JobRef) -> bool:
            return job.cache.ours

        return loop.run(_act(name, read))

    def mine(self, name: str) -> bool:
        """Read the label of the job's object."""

        async def read(job: JobRef) -> bool:
            return job.mine

        return loop.run(_act(name, read))

    def note(self, info: JobInfo, fact: ev.CheckoutTold) -> None:
        """Write the fact to this machine's cache."""
        cached_info, cache = find.cached_job(info.address)
        if cached_info.run == info.run:
            cache.put_checkout(fact)

    def annotate(self, name: str, fact: ev.Annotated) -> None:
        """Write it to an annotation of the job's object; for a job that is gone, to this machine's cache."""
        try:
            loop.run(_act(name, partial(actions.annotate, fact=fact)))
        except JobNotFoundError:
            info, cache = find.cached_job(name)
            if cache.claim(info):
                try:
                    cache.note(fact)
                finally:
                    cache.release()

    def fetch(self, name: str, value: ev.ValueReady) -> FetchedValue:
        """Take the value from this machine, else from the pods' logs or the store."""
        return loop.run(results.fetch(name, value))

    def artifacts(self, name: str, sent: ev.ArtifactsReady) -> Path:
        """Take the archive from the same places as values."""
        return loop.run(results.fetch(name, sent)).path

    def dry_run(self, call: Call, spec: JobSpec, info: JobInfo) -> str:
        """Return the manifests, and what the server says about them."""
        packed = pack(call, spec)

        async def show() -> str:
            cluster_session = await session(spec.cluster.context)
            return await again.dry_run(cluster_session, Submitter(cluster_session, packed, spec, info))

        return loop.run(show())

    def export(self, name: str, folder: Path) -> list[Path]:
        """Write the job's manifests, payload and source."""
        again.check_empty(folder)

        async def read() -> tuple[list[dict[str, Any]], JobInfo]:
            job = await find.find(name)
            return await again.manifests(job), await job.whole_info()

        return again.write(*loop.run(read()), folder)

    def manifests(self, name: str) -> str:
        """Return the job's manifests, without its Secrets."""
        return loop.run(_act(name, again.shown))

    def tend(
        self, who: str, scopes: Sequence[str] = (), *, everyone: bool = False, listen: str = ""
    ) -> Background:
        """Watch the namespaces, and look after the jobs in them."""
        chosen = [namespaces.Scope.parse(scope) for scope in scopes]
        service = Service(lambda: chosen or namespaces.looked_at(), who, everyone=everyone)
        return Background(service, listen)

    def tenders(self, scopes: Sequence[str], image: str | None = None) -> str:
        """Return a Deployment, its account and the account's permissions."""
        if not scopes:
            raise SpecError("namespace", None, "one with jobs (repeatable); the tender runs in the first")
        named = [namespaces.Scope.parse(scope).namespace for scope in scopes]
        return deployment.manifests(named, image or deployment.IMAGE)

    def leftovers(self) -> list[Leftover]:
        """Return ended jobs, and Secrets and Services without one."""
        return loop.run(cleanup.leftovers())

    def clear(self, leftover: Leftover) -> None:
        """Download the values, then delete."""
        loop.run(cleanup.clear(leftover))

    def enforcement(self, info: JobInfo) -> Mapping[str, str]:
        """Return, for each policy, whether the cluster or the job's follower enforces it."""
        kind = KINDS.get(info.cluster.get("kind", ""))
        if kind is None:  # a later version's, or none: the job is cached here, and gone from its cluster
            return {}
        policies = fit.enforced(kind, info.jobspec, info.retry_owner)
        return {field: str(enforcement) for field, enforcement in policies.items()}

    def tended(self, info: JobInfo) -> TenderStatus | None:
        """Look into the namespace's Leases and this machine's cache, if the job needs a tender."""
        kind = KINDS.get(info.cluster.get("kind", ""))
        if kind is None or info.unreadable:
            return None
        if info.at_once is None and not fit.own_policies(kind, info.jobspec, info.retry_owner):
            return None
        with suppress(ClusterError, JobNotFoundError):
            return loop.run(_act(info.address, tended))
        return None

    def doctor(self, spec: JobSpec) -> list[Finding]:
        """Check the kubeconfig, server, kinds, permissions and what the job names."""
        return loop.run(doctor.look(spec))

    def image_contents(self, spec: JobSpec) -> list[Contents]:
        """Return what nodes with these images reported when this user followed their jobs."""
        return [
            contents
            for image in requested_images(spec)
            if (contents := images.contents_of(image)) is not None
        ]

    def choices(self, spec: JobSpec) -> Mapping[str, Sequence[Choice]]:
        """List contexts, namespaces, kinds and what else a job can name."""
        return loop.run(named.look(spec))


_tended_lately: dict[tuple[str | None, str | None], tuple[float, bool]] = {}


def _tended(spec: JobSpec) -> bool:
    """Whether a tender looks after this user's jobs there, as far as can be found out in a moment."""
    where = spec.cluster.context, spec.cluster.namespace
    then, has_tender = _tended_lately.get(where, (-math.inf, False))
    if time.monotonic() - then < _LATELY_S:
        return has_tender
    try:
        has_tender = loop.run(tends(spec), _MOMENT_S)
    except Exception:  # whatever kubeconfigs and clusters raise: the submission reports it
        has_tender = False
    _tended_lately[where] = time.monotonic(), has_tender
    return has_tender


async def _followed(name: str, *, in_order: bool) -> AsyncGenerator[ev.Event, None]:
    try:
        job = await find.find(name)
    except JobNotFoundError:
        for event in results.from_cache(find.cached_job(name)[1]):
            yield event
        return
    info = await job.whole_info()
    follower = Follower(job, info, job.cache, mine=job.mine, in_order=in_order)
    async with aclosing(follower.stream()) as events:
        async for event in events:
            yield event
    cleanup.expire_later(job, follower.state)


def _store(call: Call, spec: JobSpec, info: JobInfo) -> None:
    """Put the files that a job shares with others into the store, and record that it uses them."""
    storage = spec.cluster.storage or ""
    shared.put_files(storage, info.run, call.stored)
    if storage and call.packages:
        shared.remember(storage)


async def _send(packed: PackedPayload, spec: JobSpec, info: JobInfo) -> list[JobInfo]:
    sent_info = replace(info, packed=time.time(), payload=len(packed.data))
    return [_remember(await Submitter(await session(spec.cluster.context), packed, spec, sent_info).send())]


def _remember(sent: JobInfo) -> JobInfo:
    """Remember where the job is; return its record."""
    scope = namespaces.Scope(sent.cluster["context"], sent.cluster["namespace"])
    find.know(sent.name, scope, KINDS[sent.cluster["kind"]])
    return sent


async def _send_runs(packed: PackedPayload, spec: JobSpec, infos: Sequence[JobInfo]) -> list[JobInfo]:
    """Send the runs of a group, several at a time: all, or none."""
    sent: list[JobInfo] = []
    room = asyncio.Semaphore(_SENT_AT_A_TIME)

    async def send(part: PackedPayload, info: JobInfo) -> None:
        async with room:
            sent.extend(await _send(part, replace(spec, name=info.name), info))

    tasks: list[asyncio.Future[None]] = []
    async with sharing(await session(spec.cluster.context), packed, spec, infos[0]) as part:
        try:
            # What the first run finds out is known for the others, and what refuses it refuses them all.
            await send(part, infos[0])
            tasks += [asyncio.ensure_future(send(part, info)) for info in infos[1:]]
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # The last runs first: otherwise the end of each would have the next one start.
            for run in sorted(sent, key=lambda info: info.number, reverse=True):
                try:
                    await _delete(run.address)
                except ClusterError as exc:
                    # The error that is raised says why there is no group; this only names what is left of it.
                    command = hint("delete", run.name)
                    _log.warning("%s is left on the cluster (%s): delete it, %s", run.name, exc, command)
            raise
    return sorted(sent, key=lambda info: info.number)


def _sent(work: Coroutine[Any, Any, list[JobInfo]]) -> list[JobInfo]:
    infos: list[JobInfo] = []
    over = Once[None]()

    async def noted() -> None:
        try:
            infos.extend(await work)
        finally:
            over.bring(None)

    try:
        loop.run(noted())
    except KeyboardInterrupt:
        # What was made is being removed meanwhile, but the job may exist all the same.
        with suppress(KeyboardInterrupt):
            over.wait(_TAKE_BACK_S)
        if infos:
            name = infos[0].group or infos[0].name
            interrupted = Interrupted(
                f"Interrupted, but {name} had been submitted: {hint('attach', name)} follows it."
            )
        elif over.come:
            interrupted = Interrupted(interrupts.NOTHING)
        else:
            interrupted = Interrupted(
                "Interrupted; what was created is still being removed: "
                f"{hint('list')} and {hint('gc')} show it."
            )
        raise interrupted from None
    except ClusterError as exc:
        raise submit_error(exc) from exc
    return infos


async def _act(name: str, verb: Callable[[JobRef], Awaitable[T]]) -> T:
    return await verb(await find.find(name))


async def _listed(scope: namespaces.Scope, *, everyone: bool) -> list[JobState]:
    client = (await session(scope.context)).client
    states = await client.unless_away(find.states(scope, everyone=everyone))
    return await cleanup.unexpired(states)


async def _delete(name: str) -> None:
    only, name_ = find.parsed(name)
    where = [only] if only else namespaces.named_in()
    with suppress(JobNotFoundError):
        job = await find.find(name)
        where = [job.scope]
        await actions.remove(job)
    # Last, so that the cache of a job that may not be deleted stays as well.
    for scope in where:
        for folder in scope.folders(name_):
            JobCache(folder).remove()
