"""The controllers of each kind, a module each, written against the HTTP API.

They run in the emulator and, with `python -m` on this package, on a real cluster that has no operators.
"""

from collections.abc import Iterable

from tests.backends.kubernetes.cluster.controllers.client import Client
from tests.backends.kubernetes.cluster.controllers.indexedjob import IndexedJob
from tests.backends.kubernetes.cluster.controllers.jobset import JobSet
from tests.backends.kubernetes.cluster.controllers.kueue import QueuedJob, QueuedPyTorchJob, QueuedTrainJob
from tests.backends.kubernetes.cluster.controllers.kueuequota import Quotas, Unqueued
from tests.backends.kubernetes.cluster.controllers.loop import Controller, Runner
from tests.backends.kubernetes.cluster.controllers.pytorchjob import PyTorchJob
from tests.backends.kubernetes.cluster.controllers.trainerstatus import StatusServer
from tests.backends.kubernetes.cluster.controllers.trainjob import TrainJob
from tests.backends.kubernetes.cluster.controllers.volcano import Volcano

CONTROLLERS: dict[str, tuple[type[Controller], ...]] = {
    "pytorchjob": (PyTorchJob,),
    "trainjob": (TrainJob, JobSet),
    "volcano": (Volcano,),
    "indexedjob": (IndexedJob,),
}
# Kueue's controllers: its own, and those of the kinds of jobs beside it.
QUEUED: dict[str, tuple[type[Controller], ...]] = {
    "kueue": (Quotas, Unqueued, QueuedJob),
    "pytorchjob": (QueuedPyTorchJob,),
    "trainjob": (QueuedTrainJob,),
}


async def run_controllers(
    client: Client,
    kinds: Iterable[str],
    *,
    backoff_s: float = 10.0,
    scheduler: str = "",
    status_server: StatusServer | None = None,
    grouped: bool = False,
) -> None:
    """Run the controllers of these kinds until cancelled.

    `backoff_s` is the first wait before a new pod. `scheduler` replaces the one that a Volcano Job names.
    `status_server` turns on Trainer's TrainJobStatus, `grouped` the Job controller's EnableWorkloadWithJob.
    """
    # A TrainJob becomes a JobSet, which becomes Jobs.
    all_kinds = {"indexedjob" if kind == "trainjob" else kind for kind in kinds} | set(kinds)
    classes = [controller for kind in sorted(all_kinds) for controller in CONTROLLERS.get(kind, ())]
    if "kueue" in all_kinds:
        classes += [controller for kind in sorted(all_kinds) for controller in QUEUED.get(kind, ())]
    controllers = [controller(client, backoff_s=backoff_s, scheduler=scheduler) for controller in classes]
    for controller in controllers:
        if isinstance(controller, TrainJob):
            controller.status_server = status_server
        if isinstance(controller, IndexedJob):
            controller.grouped = grouped
    async with client:
        if status_server is None:
            await Runner(client, controllers).run()
            return
        await status_server.start()
        try:
            await Runner(client, controllers).run()
        finally:
            await status_server.stop()
