"""Volcano's Job (1.15): one task, whose pods are scheduled as a gang.

When a job of a fixed size loses a pod, it ends, or all of its pods are started again, as often as the
backoff limit allows. An elastic job continues without the lost pod, and succeeds as soon as its minimum
number of pods has: else it would wait for pods that never start.

There is no field for a suspension: Volcano's controller obeys Commands (1.15).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from nbtorchjob.backends.kubernetes.kinds import Commands, Kind, Queues
from nbtorchjob.backends.kubernetes.lifecycle import Complaints
from nbtorchjob.backends.kubernetes.objects import reading
from nbtorchjob.backends.kubernetes.objects.reading import (
    COMMANDS,
    CONFIGMAPS,
    POLICIES,
    QUEUES,
    SERVICES,
    Api,
    Object,
    Use,
    seconds,
)
from nbtorchjob.backends.kubernetes.objects.submission import Submission
from nbtorchjob.backends.kubernetes.template import PORT, replicas, template
from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.facts.injected import RESTARTS
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.policies import RunPolicy
from nbtorchjob.state.facts import events as ev

_INDEX = "volcano.sh/task-index"
_ENDS = {"Completed": True, "Failed": False, "Terminated": False, "Aborted": False}
_PAUSES = ("Aborting", "Aborted")
# Volcano prints the Go values of the API's refusals, one for each pod that it wants.
_GO_VALUE = re.compile(r'errors\.StatusError\{.*?Message:("(?:[^"\\]|\\.)*"), Reason:')


def facts(obj: Object) -> list[ev.Event]:
    """Return the facts that a Volcano Job's status reports.

    Its state has a phase and hardly ever a reason. ``Aborted`` is the phase of a suspended job, and of
    one that failed and was ended by a policy: both are reported.
    """
    state: Object = reading.status(obj).get("state") or {}
    phase, time = str(state.get("phase") or ""), seconds(state.get("lastTransitionTime"))
    events: list[ev.Event] = []
    if phase in _ENDS:
        reason = str(state.get("reason") or phase)
        text = str(state.get("message") or "")
        events.append(ev.Verdict(time, _ENDS[phase], reason, text, pauses=phase in _PAUSES))
    deletion = reading.deleted(obj)
    if deletion is not None and not events:
        events.append(ev.CancelRequested(deletion))
    # A condition of a Volcano Job is a phase that it was in, named under ``status``. Each phase is listed
    # once, by its last time: the first after the last pause ended it, until a restart gives that a new time.
    past: list[Object] = reading.status(obj).get("conditions") or []
    pauses = [at for at, condition in enumerate(past) if condition.get("status") in _PAUSES]
    if phase in _PAUSES:
        events.append(ev.Suspended(time, True))
    elif pauses:
        paused, resumed, *_ = [*past[pauses[-1] :], state]
        events.append(ev.Suspended(reading.since(resumed), False, began=reading.since(paused)))
    return events


def plain(_reason: str, message: str) -> str:
    """Return the message of a Volcano event in the API's own words."""
    if refused := _GO_VALUE.search(message):
        with suppress(ValueError):  # Go escapes nearly as JSON does
            return str(json.loads(refused[1]))
    return message


def node(pod: Object) -> int | None:
    """Return which node a pod is: the index within its task."""
    labels: Object = reading.meta(pod).get("labels") or {}
    return reading.index(labels.get(_INDEX))


def closed(queue: Object) -> str:
    """Return the state of a queue that accepts no jobs; "" for one that does."""
    # No state yet means Open: Volcano's controller writes it on its first look.
    state = str(reading.status(queue).get("state") or "Open")
    return "" if state == "Open" else state


def restarts(pod: Object) -> int | None:
    """Return how often all nodes had been started again when a pod was made."""
    annotations: Object = reading.meta(pod).get("annotations") or {}
    return reading.index(annotations.get(RETRIES))


RETRIES = "volcano.sh/job-retry-count"  # an annotation of pods
API = Api("batch.volcano.sh", "v1alpha1", "jobs", "Job")
CONTAINER = "main"
TASK = "node"
QUEUE = "default"  # for a job that names none
_RETRIES = f"metadata.annotations['{RETRIES}']"

# Another try would end the same way.
_FINAL = [{"action": "TerminateJob", "exitCode": code} for code in (exits.USER_ERROR, exits.CONFIG_ERROR)]
_LOSSES = ["PodFailed", "PodEvicted"]
# Volcano counts a resume as a restart (1.15), so where nothing is restarted the count mustn't end the job.
_UNCOUNTED = 1000


def owns_retries(spec: JobSpec, minor: int) -> bool:
    """Whether Volcano can enforce the budgets: it counts restarts of the whole job, whatever their cause."""
    return not spec.launch.elastic and spec.retry is not None and not spec.retry.most_preemptions


def cautions(spec: JobSpec, minor: int) -> Iterator[str]:
    """Yield a caution for a deadline that works otherwise than a user might expect."""
    policy = spec.launch.run_policy or RunPolicy()
    if policy.backoff_limit and policy.active_deadline_seconds:
        yield (
            "active_deadline_seconds starts over with each restart of a Volcano job that no session follows; "
            "use --retries instead of backoff_limit to enforce it"
        )


def manifests(sub: Submission) -> list[dict[str, Any]]:
    """Return the Job; Volcano makes the Service and the NetworkPolicy itself."""
    launch, cluster = sub.spec.launch, sub.spec.cluster
    restarts = sub.retries
    task_launch = sub.spec.launch
    env: dict[str, Any] = {
        "NBTORCHJOB_DOMAIN": sub.name,
        "PET_RDZV_ENDPOINT": f"{sub.name}-{TASK}-0.{sub.name}:{PORT}",
    }
    if not sub.retried_by_us:
        env[RESTARTS] = {"valueFrom": {"fieldRef": {"fieldPath": _RETRIES}}}
    # Volcano has no deadline (1.15); a pod's counts from its own start.
    deadline: dict[str, Any] = {"activeDeadlineSeconds": sub.deadline_s} if sub.deadline_s else {}
    task = {
        "name": TASK,
        "replicas": task_launch.max_nodes,
        "minAvailable": task_launch.min_nodes,
        "template": template(sub, CONTAINER, replicas(sub.spec)[0], env, **deadline),
    }
    spec = {
        "schedulerName": "volcano",
        "queue": cluster.queue or QUEUE,
        "minAvailable": launch.min_nodes,
        "minSuccess": launch.min_nodes if launch.elastic else None,
        # Volcano allows one restart less than the field's name promises.
        "maxRetry": restarts + 1 if restarts else _UNCOUNTED,
        "policies": _FINAL if launch.elastic else [*_FINAL, *_losses(sub)],
        "plugins": {"env": [], "svc": ["--publish-not-ready-addresses"]},
        "priorityClassName": cluster.priority_class,
        "ttlSecondsAfterFinished": sub.ttl_s,
        "tasks": [task],
    }
    return [
        {
            "apiVersion": API.group_version,
            "kind": API.kind,
            "metadata": sub.metadata,
            "spec": {key: value for key, value in spec.items() if value is not None},
        }
    ]


def _losses(sub: Submission) -> list[dict[str, Any]]:
    if sub.spec.retry is None:
        return [{"action": "RestartJob" if sub.policy.backoff_limit else "TerminateJob", "events": _LOSSES}]
    again = [{"action": "RestartJob", "exitCode": exits.RECOVERABLE_ERROR}] if sub.retries else []
    return [
        *again,
        {"action": "TerminateJob", "events": _LOSSES},
    ]


def command(obj: Object, suspended: bool) -> dict[str, Any]:
    """Return the Command that suspends a job, or resumes it."""
    meta = obj["metadata"]
    about = {
        "apiVersion": API.group_version,
        "kind": API.kind,
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }
    return {
        "apiVersion": COMMANDS.group_version,
        "kind": COMMANDS.kind,
        "metadata": {"generateName": f"{meta['name']}-", "ownerReferences": [about]},
        "action": "AbortJob" if suspended else "ResumeJob",
        "target": about,
    }


KIND = Kind(
    name="volcano",
    about="Volcano's Job (1.15).",
    operator="Volcano 1.15",
    install=(
        "helm repo add volcano-sh https://volcano-sh.github.io/helm-charts\n"
        "helm install volcano volcano-sh/volcano --version 1.15.1 -n volcano-system --create-namespace"
    ),
    api=API,
    container=CONTAINER,
    manifests=manifests,
    facts=facts,
    node=node,
    can=frozenset(["elastic", "elastic ttl", "backoff", "priority class", "ttl"]),
    owns_retries=owns_retries,
    notes={
        "deadline": "Volcano has none (1.15)",
        "clean pods": "Volcano keeps the ended pods of a job's last start",
        "backoff": "counts restarts of all pods",
        "retries": "policies by exit code restart all pods, up to maxRetry times",
        "suspend": "AbortJob and ResumeJob, as Commands",
        "at once": "always",
    },
    commands=Commands(COMMANDS, command),
    children={"PodGroup": lambda obj: "{name}-{uid}".format_map(obj["metadata"])},
    complaints=Complaints(
        refusals={"PodGroupError": "Volcano's own webhook refuses them; ask an administrator"}, plain=plain
    ),
    restarts=restarts,
    cautions=cautions,
    uses=(Use("create", COMMANDS, "`cancel`, `suspend`, `resume`"),),
    # Made by the plugin svc, which deletes all three by name when a job ends, whoever made them (1.15).
    adopts=((SERVICES, "{name}"), (CONFIGMAPS, "{name}-svc"), (POLICIES, "{name}")),
    queues=Queues(QUEUES, "Volcano", QUEUE, closed),
)
