"""Checks everything that a job would need on a cluster, and says what to do if something is missing.

Nothing is created except a small file in the store; the cluster is asked each time, as an administrator
may have changed it in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes.api.login import log_in
from nbtorchjob.backends.kubernetes.doctor import capacity, named, server
from nbtorchjob.backends.kubernetes.kinds import Kind
from nbtorchjob.backends.kubernetes.session import Session, session
from nbtorchjob.errors import ClusterError, NBTorchJobError
from nbtorchjob.spec.jobspec import JobSpec


async def look(spec: JobSpec) -> list[Finding]:
    """Return the findings in the order in which things depend on each other; errors become findings."""
    parts = await asyncio.gather(_cluster(spec), _with_error(named.store_findings(spec.cluster)))
    return [*parts[0], *parts[1], *named.image_findings(spec)]


async def _cluster(spec: JobSpec) -> list[Finding]:
    # Not the session that jobs use, which asks only once what is served.
    cluster_session = Session((await session(spec.cluster.context)).client)
    context = cluster_session.client.context
    try:
        login = await log_in(context)
    except NBTorchJobError as exc:  # no credentials, or nothing to read them with
        return [Finding(False, str(exc)), _left_out("the cluster")]
    await login.api.close()
    findings = [server.login(context, login)]
    scope = await cluster_session.scope(spec)
    findings += await _with_error(server.version(cluster_session.client))
    if not all(finding.good for finding in findings):
        return [*findings, _left_out("what is on the cluster")]
    user, (kind, kinds_found) = await asyncio.gather(
        server.user(cluster_session.client), _kind(cluster_session, spec)
    )
    namespace = await _with_error(server.namespace(cluster_session.client, scope.namespace))
    inside_findings = [server.account(user), *namespace, *kinds_found]
    if not all(finding.good for finding in namespace):
        inside = [*inside_findings, _left_out("permissions, quotas and what the job names in that namespace")]
    else:
        parts = await asyncio.gather(
            _with_error(
                server.permission_findings(cluster_session.client, scope.namespace, kind, spec, user)
            ),
            _with_error(named.reference_findings(cluster_session.client, scope.namespace, kind, spec)),
            _with_error(capacity.queue_findings(cluster_session, scope.namespace, kind, spec)),
            _with_error(server.gang_findings(cluster_session, kind, spec)),
            _with_error(capacity.quota_findings(cluster_session.client, scope.namespace, kind, spec)),
            _with_error(server.pod_security_findings(cluster_session.client, scope.namespace, kind, spec)),
            _with_error(server.hosts(cluster_session.client, spec)),
            _with_error(capacity.room_findings(cluster_session.client, spec)),
        )
        inside = inside_findings + [finding for part in parts for finding in part]
    return [*findings, *inside]


async def _kind(cluster_session: Session, spec: JobSpec) -> tuple[Kind | None, list[Finding]]:
    try:
        served, minor = await cluster_session.soon()
    except ClusterError as exc:
        return None, [_refused(exc), _left_out("what only some kinds of job need")]
    chosen, findings = server.chosen(served, minor, spec)
    findings = [*server.per_kind(served, minor, spec, needed=chosen is None), *findings]
    return chosen, findings if chosen else [*findings, _left_out("what only some kinds of job need")]


async def _with_error(check: Awaitable[list[Finding]]) -> list[Finding]:
    """Return what a check found; an error that stopped it is a finding, too."""
    try:
        return await check
    except NBTorchJobError as exc:
        return [_refused(exc)]


def _refused(error: NBTorchJobError) -> Finding:
    return Finding(False, str(error), error.grant.rstrip() if isinstance(error, ClusterError) else "")


def _left_out(subject: str) -> Finding:
    return Finding(False, f"not checked for that reason: {subject}")
