"""Whether any host could hold a pod of the job if it were empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes.api.client import Client, Object
from nbtorchjob.backends.kubernetes.objects.paths import HOSTS
from nbtorchjob.backends.kubernetes.objects.submission import Submission
from nbtorchjob.backends.kubernetes.pod import fitting
from nbtorchjob.backends.kubernetes.pod.resources import replicas
from nbtorchjob.backends.kubernetes.pod.template import template
from nbtorchjob.errors import ForbiddenError
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import JobInfo
from nbtorchjob.text import words

_CORDONED = "node.kubernetes.io/unschedulable"
_GIB = 2.0**30
_GROWS = "unless the cluster adds hosts by itself"


async def look(client: Client, spec: JobSpec) -> list[Finding]:
    """Report whether the hosts could hold the job's pods. Raises ``ClusterError`` and ``SpecError``."""
    try:
        hosts = (await client.list(HOSTS, None)).items
    except ForbiddenError:
        text = "can't check whether any host has room for a pod, because listing nodes isn't permitted"
        return [Finding(True, text)]
    sub = Submission(spec, JobInfo("doctor"), "default", secrets=(), labels={}, annotations={})
    pods = [template(sub, "main", replica, {})["spec"] for replica in replicas(spec)]
    return list(dict.fromkeys(judge(pod, hosts) for pod in pods))


def judge(pod: Mapping[str, Any], hosts: Sequence[Object]) -> Finding:
    """Report how many of the hosts could hold a pod of that spec; if none could, why."""
    wanted = fitting.requested(pod)
    big = [host for host in hosts if _holds(host, wanted)]
    chosen = [host for host in big if fitting.matches(pod, host)]
    free = [host for host in chosen if not fitting.untolerated(pod, host)]
    if free:
        return Finding(True, f"{len(free)} of {words.count(len(hosts), 'host')} can hold a pod when empty")
    if not hosts:
        why = "the cluster has no hosts"
    elif not big:
        why = _too_small(wanted, hosts)
    elif not chosen:
        labels = ", ".join(f"{key}={value}" for key, value in (pod.get("nodeSelector") or {}).items())
        why = f"no big enough host has the requested labels{': ' if labels else ''}{labels}"
    else:
        taints = [_taint(taint) for host in chosen for taint in fitting.untolerated(pod, host)]
        why = f"no suitable host accepts the pod: {', '.join(dict.fromkeys(taints))}"
    return Finding(False, f"{why}; {_GROWS}")


def _holds(host: Object, wanted: Mapping[str, float]) -> bool:
    has = fitting.room(host)
    return all(has.get(name, 0.0) >= number for name, number in wanted.items())


def _too_small(wanted: Mapping[str, float], hosts: Sequence[Object]) -> str:
    """Return the resources of which no host has as much as is requested."""
    rooms = [fitting.room(host) for host in hosts]
    most = {name: max(has.get(name, 0.0) for has in rooms) for name in wanted}
    absent = [name for name, number in most.items() if not number]
    if absent:
        return f"no host could hold a pod: none has any {' or '.join(absent)}"
    short = [
        f"{_said(name, wanted[name])} {name} (the most is {_said(name, most[name])})"
        for name in wanted
        if most[name] < wanted[name]
    ]
    every = " and ".join(f"{_said(name, number)} {name}" for name, number in wanted.items())
    return f"no host has {' and '.join(short)}" if short else f"no host has all of {every} together"


def _taint(taint: Mapping[str, Any]) -> str:
    key, value = taint["key"], taint.get("value")
    if key == _CORDONED:
        return "a host is cordoned"
    said = f"{key}={value}" if value else key
    return f"a host has a taint that --toleration {said}:{taint['effect']} would tolerate"


def _said(name: str, number: float) -> str:
    return f"{number / _GIB:.3g} GiB" if name == "memory" else f"{number:g}"
