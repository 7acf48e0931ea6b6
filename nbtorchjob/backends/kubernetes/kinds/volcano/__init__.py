"""Volcano's Job (1.15)."""

from __future__ import annotations

import json
import re
from contextlib import suppress

from nbtorchjob.backends.kubernetes.kinds.base import Commands, Complaints, Kind, Queues, Use
from nbtorchjob.backends.kubernetes.kinds.volcano.manifest import (
    API,
    CONTAINER,
    QUEUE,
    RETRIES,
    cautions,
    command,
    manifests,
    owns_retries,
)
from nbtorchjob.backends.kubernetes.objects import reading
from nbtorchjob.backends.kubernetes.objects.paths import (
    COMMANDS,
    CONFIGMAPS,
    POLICIES,
    QUEUES,
    SERVICES,
)
from nbtorchjob.backends.kubernetes.objects.reading import Object, seconds
from nbtorchjob.state import events as ev

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
    asked = reading.deleted(obj)
    if asked is not None and not events:
        events.append(ev.CancelRequested(asked))
    if phase in _PAUSES:
        events.append(ev.Suspended(time, True))
    elif _was_paused(obj):
        events.append(ev.Suspended(time, False))
    return events


def _was_paused(obj: Object) -> bool:
    # A condition of a Volcano Job is a phase that it was in, named under ``status``.
    return any(
        condition.get("status") in _PAUSES for condition in reading.status(obj).get("conditions") or ()
    )


def plain(_reason: str, message: str) -> str:
    """Return the message of an event of Volcano's in the API's own words."""
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


__all__ = ["KIND"]

KIND = Kind(
    name="volcano",
    about=__doc__,
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
    children={"PodGroup": "{name}-{uid}"},
    complaints=Complaints(
        refusals={"PodGroupError": "Volcano's own webhook refuses them; ask an administrator"}, plain=plain
    ),
    restarts=restarts,
    cautions=cautions,
    uses=(Use("create", COMMANDS, "`cancel`, `suspend`, `resume`"),),
    # Of plugin svc. As a job ends it deletes all three by name, whoever made them (1.15).
    adopts=((SERVICES, "{name}"), (CONFIGMAPS, "{name}-svc"), (POLICIES, "{name}")),
    queues=Queues(QUEUES, "Volcano", QUEUE, closed),
)
