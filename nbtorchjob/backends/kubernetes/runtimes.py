"""Which runtime a TrainJob refers to, and whether it is there."""

from __future__ import annotations

from contextlib import suppress

from nbtorchjob.backends.kubernetes.client import Client, Object
from nbtorchjob.backends.kubernetes.paths import CLUSTER_RUNTIMES, RUNTIMES, Target
from nbtorchjob.backends.kubernetes.refusals import CreateRefusal, Refusal
from nbtorchjob.backends.kubernetes.submission import Runtime

# The step that trains, among initializers and others (Trainer 2.3).
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"


async def find(client: Client, namespace: str, name: str | None) -> Runtime:
    """Give the runtime of that name, the namespace's own first; without a name Trainer's own for torch.

    Raises ``SubmitError`` where it isn't there, naming those that are; one that we may not read is
    taken on trust.
    """
    wanted = name or Runtime().name
    missing: Refusal | None = None
    for api, where in ((RUNTIMES, namespace), (CLUSTER_RUNTIMES, None)):
        try:
            found = await client.get(Target(api, where, wanted))
        except Refusal as exc:
            if exc.status != 404:
                return Runtime(wanted, CLUSTER_RUNTIMES.kind)
            missing = exc
        else:
            return Runtime(wanted, api.kind, _trainer(found))
    known = ", ".join(await names(client, namespace)) or "none"
    said = f"runtime: there is no TrainingRuntime {wanted!r} on the cluster (there are: {known})"
    raise CreateRefusal(f"{said}: choose one with --runtime", status=404) from missing


async def names(client: Client, namespace: str) -> list[str]:
    """Give the runtimes that can be chosen."""
    found = []
    for api, where in ((RUNTIMES, namespace), (CLUSTER_RUNTIMES, None)):
        with suppress(Refusal):
            found += [item["metadata"]["name"] for item in (await client.list(api, where)).items]
    return sorted(found)


def _trainer(runtime: Object) -> str:
    jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    for job in jobs:
        labels = job.get("template", {}).get("metadata", {}).get("labels", {})
        if labels.get(_STEP) == "trainer":
            return str(job["name"])
    return str(jobs[0]["name"])
