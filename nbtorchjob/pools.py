"""Pools: pods that stay up, with torch imported, in which each job runs in fresh processes.

A pool is a lab whose turns are whole jobs (``runtime/pool``). Its pods were made from its own spec, so a job
fits if it requests nothing else of them. An option that a job leaves at its default is the pool's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nbtorchjob import capture
from nbtorchjob.backends import backend, resending, used
from nbtorchjob.errors import JobEndedError, JobNotFoundError, NBTorchJobError, Shape, SpecError
from nbtorchjob.job import Job
from nbtorchjob.labs import Lab, newest
from nbtorchjob.machine.folders import working
from nbtorchjob.runtime.rank import fresh
from nbtorchjob.spec import options, overlay
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic, Unsaid
from nbtorchjob.spec.jobspec import PLACES, JobSpec
from nbtorchjob.spec.overlay import SPEC, value_at
from nbtorchjob.spec.policies import Retry, RunPolicy
from nbtorchjob.state import JobInfo, turns
from nbtorchjob.state.info import MARK
from nbtorchjob.text.hints import hint

# Options that each job may choose for itself; all others were fixed when the pool's pods were made.
_OF_JOBS = frozenset(
    [
        *("pool", "or-own", "idle", "env", "secret-env", "all-ranks", "carry-settings", "strict"),
        *("no-locals", "no-autolog", "hold", "debug-wait", "ship"),
    ]
)
_DEADLINE = "active-deadline-seconds"
_RESTARTS = "max-restarts"
_NODES = "nnodes"  # a job may take a part of them
_PLACES = ("context", "namespace")  # the pool may have taken these from a kubeconfig
_BUDGETS_OF_JOBS = [o for o in options.TABLE if o.home == overlay.RETRY and o.key != "on-demand-last"]
_AGAIN_S = 300.0  # between two tries to follow a job of a pool that may be gone
_BUDGETS = Retry(retries=10)  # for a pool without any: pods that a job wears out are replaced


def call() -> capture.Call:
    """Return what a pool itself runs: nothing."""
    return replace(capture.from_cell("pass", {}, filename=turns.KEEP, root=working()), label="pool")


def requested(spec: JobSpec) -> JobSpec:
    """Return the spec of the pool that ``spec`` requests; raise ``SpecError`` for what no pool can have.

    A deadline, such as a profile's, is for jobs: a pool ends when nobody uses it.
    """
    if not PLACES[spec.backend].has_pods:
        raise SpecError(
            "backend",
            spec.backend,
            "a cluster, such as kubernetes: this machine has a pool already, for all local jobs",
        )
    for name, why in (("pool", "its pods are its own"), ("hold", "give it to a job there")):
        if value := getattr(spec, name):
            raise SpecError(name, value, f"for a pool: {why}", Shape.CONFLICT)
    if spec.launch.elastic:
        raise SpecError("nnodes", f"{spec.launch.min_nodes}:{spec.launch.max_nodes}", "one number for a pool")
    launch, policy = spec.launch, spec.launch.run_policy
    if policy is not None:
        launch = replace(launch, run_policy=replace(policy, active_deadline_seconds=None, leave_before=None))
    if isinstance(launch, Elastic):
        launch = replace(launch, max_restarts=0)  # pods that a job wears out are replaced, not restarted
    return replace(spec, lab=True, fresh=True, retry=spec.retry or _BUDGETS, launch=launch)


def find(name: str, cluster: Cluster) -> Lab:
    """Return a handle on a pool by its name, in the requested namespace if there is one.

    Raises ``JobNotFoundError``, and ``SpecError`` if that job isn't a pool, or is another user's.
    """
    pool_backend = backend(next(kind for kind, place in PLACES.items() if place.has_pods))
    where = (cluster.context, cluster.namespace) if cluster.namespace else ()
    info = newest(pool_backend, pool_backend.info("/".join([*filter(None, where), name])), name)
    if not info.is_pool:
        description = "a lab: --on NAME runs a cell there" if info.lab is not None else "an ordinary job"
        raise SpecError("pool", name, f"a pool ({hint('pool', 'NAME')} starts one); this is {description}")
    if not pool_backend.mine(info.address):
        raise SpecError("pool", name, "one of yours; this is another user's")
    return Lab(pool_backend, info)


def runs() -> Iterator[tuple[JobInfo, turns.Turn]]:
    """Yield the runs of groups that this user has sent to pools, each with its pool."""
    for pool_backend in used():
        pools = [state.info for state in pool_backend.jobs() if state.info.is_pool]
        for pool in pools:
            pool_turns = (
                turns.turns(pool_backend.brief_state(pool.address)) if pool_backend.mine(pool.address) else []
            )
            yield from ((pool, turn) for turn in pool_turns if turn.group)


class Sender:
    """Sends this user's jobs of pools again, from this machine, after the kernel that sent them has ended.

    Following such a job sends it again (``backends/resending.py``), so they are followed; with ``scopes``,
    only those in these namespaces.
    """

    def __init__(self, scopes: Sequence[str] = ()) -> None:
        self._namespaces = frozenset(scope.rpartition("/")[2] for scope in scopes)
        self._jobs: dict[str, Job[Any]] = {}
        self._again: dict[str, float] = {}  # when to look again at a job that can't be followed

    def look(self) -> None:
        """Begin to follow the jobs that were sent since the last look."""
        now = time.monotonic()
        for id_ in [id_ for id_, job in self._jobs.items() if job.done()]:
            del self._jobs[id_]
            self._again[id_] = now + _AGAIN_S
        for info in resending.unfinished():
            in_scope = not self._namespaces or info.cluster.get("namespace") in self._namespaces
            if not in_scope or info.id in self._jobs or now < self._again.get(info.id, now):
                continue
            try:
                job_backend = backend(info.backend)
                job = Lab(job_backend, job_backend.info(info.address.rpartition(MARK)[0])).turn(info.address)
                job.done()  # begins to follow it
                self._jobs[info.id] = job
            except NBTorchJobError:
                self._again[info.id] = now + _AGAIN_S


def placed(spec: JobSpec) -> tuple[JobSpec, Lab | None]:
    """Return a job's spec completed with its pool's options, and the pool.

    If the job doesn't fit, raise ``SpecError`` with all that differs; or, with ``or_own``, return the spec of
    a job with pods of its own, and None.
    """
    assert spec.pool is not None
    try:
        pool = find(spec.pool, spec.cluster)
        if pool.state.phase.terminal:
            raise JobEndedError(f"the pool {spec.pool} has ended: {hint('pool', spec.pool)} starts a new one")
        return fitted(spec, pool), pool
    except (JobNotFoundError, JobEndedError, SpecError):
        if not spec.or_own:
            raise
        return replace(spec, pool=None, or_own=False), None


def fitted(spec: JobSpec, pool: Lab) -> JobSpec:
    """Return a job's spec with its pool's options; raise ``SpecError`` for what differs."""
    pool_spec = pool.info.jobspec
    if differences := [*_differences(spec, pool.info)]:
        several = "; ".join(differences)
        raise SpecError("pool", spec.pool, f"one that the job fits: {several}; --or-own gives it own pods")
    launch, policy = pool_spec.launch, pool_spec.launch.run_policy or RunPolicy()
    if isinstance(launch, Elastic) and (part := _part(spec, launch)):
        launch = replace(launch, nnodes=part)
    if deadline := value_at(options.KEYS[_DEADLINE], spec):
        launch = replace(launch, run_policy=replace(policy, active_deadline_seconds=deadline))
    own = replace(pool_spec, lab=False, fresh=False, retry=spec.retry, name=None, launch=launch)
    chosen: dict[str, Any] = {
        o.name: value_at(o, spec) for o in options.TABLE if o.home == SPEC and o.key in _OF_JOBS
    }
    chosen["env"] = {n: text for n, text in {**pool_spec.env, **spec.env}.items() if n not in spec.secret_env}
    return replace(own, hidden=spec.hidden, **chosen)


def _part(spec: JobSpec, pool: Elastic) -> int | None:
    """Return how many of a pool's nodes a job gets; None if it requests no number, or too many."""
    launch = spec.launch
    if not isinstance(launch, Elastic) or isinstance(launch.nnodes, Unsaid) or launch.elastic:
        return None
    return launch.max_nodes if launch.max_nodes <= pool.max_nodes else None


def _differences(spec: JobSpec, pool: JobInfo) -> Iterator[str]:
    """Yield a line for each option that a job requests and its pool doesn't have."""
    default, pool_spec = JobSpec(), pool.jobspec
    for o in options.TABLE:
        if o.home[:1] == ("cell",) or o.key in (*_OF_JOBS, _DEADLINE):
            continue
        value = value_at(o, spec)
        if isinstance(value, Unsaid):
            continue
        if o.key == _NODES and isinstance(pool_spec.launch, Elastic) and _part(spec, pool_spec.launch):
            continue
        pool_value = pool.cluster.get(o.key) if o.key in _PLACES else value_at(o, pool_spec)
        if value in (value_at(o, default), None) or value == pool_value or o in _BUDGETS_OF_JOBS:
            continue
        flag = o.flags[-1]
        if o.key == "name":
            yield f"{flag} {value}: jobs in a pool are called {pool_spec.name}{MARK}1, 2, …"
        elif o.home in (overlay.RETRY, overlay.POLICY) or o.key == _RESTARTS:
            yield f"{flag} {value}: the pods are the pool's, and a job ends with its pool"
        else:
            yield f"{flag} is {_shown(value)}, and the pool's {_shown(pool_value)}"
    for name in (*spec.env, *spec.secret_env):
        if fresh.too_late(name) and (name not in spec.env or spec.env[name] != pool_spec.env.get(name)):
            yield f"--env {name} is read as libraries are loaded, before the job starts: give it to the pool"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        value = tuple(f"{name}={text}" for name, text in value.items())
    if isinstance(value, tuple):
        value = ", ".join(map(str, value))
    return "not set" if value in (None, "", False) else "set" if value is True else f"{value}"
