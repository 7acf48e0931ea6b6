"""Volcano's Job (1.15)."""

from nbtorchjob.backends.kubernetes.kinds.base import Commands, Complaints, Kind, Queues, Use
from nbtorchjob.backends.kubernetes.kinds.volcano.manifest import (
    API,
    CONTAINER,
    QUEUE,
    cautions,
    command,
    manifests,
    owns_retries,
)
from nbtorchjob.backends.kubernetes.kinds.volcano.status import closed, facts, node, plain, restarts
from nbtorchjob.backends.kubernetes.objects.paths import (
    COMMANDS,
    CONFIGMAPS,
    POLICIES,
    QUEUES,
    SERVICES,
)

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
