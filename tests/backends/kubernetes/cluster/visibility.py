"""Kueue 0.19's visibility server: the workloads that wait in a LocalQueue, in their order of admission."""

from collections.abc import Callable

from aiohttp import web

from tests.backends.kubernetes.cluster.controllers import facts
from tests.backends.kubernetes.cluster.controllers.kueuequota import active, order
from tests.backends.kubernetes.cluster.refusals import Refusal
from tests.backends.kubernetes.cluster.resources import KUEUE, Object
from tests.backends.kubernetes.cluster.server import Call
from tests.backends.kubernetes.cluster.store import Store

WORKLOADS, LOCAL_QUEUES = KUEUE[:2]


class Visibility:
    """A handler that answers from the store, as the queue manager does from its memory."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def serve(self, call: Call) -> web.StreamResponse:
        """Return a PendingWorkloadsSummary."""
        queue = self._store.find(LOCAL_QUEUES, call.namespace, call.name)
        if queue is None:
            group, kind = call.resource.group, "localqueue"
            about = {"name": call.name, "group": group, "kind": kind}
            raise Refusal(404, f'{kind}.{group} "{call.name}" not found', details=about)
        whole = queue["spec"]["clusterQueue"]
        items: list[Object] = []
        for place, workload in enumerate(
            sorted(filter(self._waits(whole), self._store.list(WORKLOADS, "")), key=order)
        ):
            meta = workload["metadata"]
            if (meta["namespace"], workload["spec"]["queueName"]) == (call.namespace, call.name):
                items.append(_item(workload, place, len(items)))
        body = {"kind": "PendingWorkloadsSummary", "apiVersion": call.resource.api_version, "metadata": {}}
        return web.json_response(body | {"items": items})

    def _waits(self, whole: str) -> Callable[[Object], bool]:
        def waits(workload: Object) -> bool:
            ended = facts.holds(workload, "Finished") or facts.holds(workload, "QuotaReserved")
            space, name = workload["metadata"]["namespace"], workload["spec"].get("queueName")
            queue = self._store.find(LOCAL_QUEUES, space, name or "")
            return bool(queue and queue["spec"]["clusterQueue"] == whole and active(workload) and not ended)

        return waits


def _item(workload: Object, place: int, local_place: int) -> Object:
    meta, spec = workload["metadata"], workload["spec"]
    owners = [
        {key: owner[key] for key in ("apiVersion", "kind", "name", "uid")}
        for owner in meta["ownerReferences"]
    ]
    kept = {key: meta[key] for key in ("name", "namespace", "creationTimestamp")}
    return {
        "metadata": kept | {"ownerReferences": owners},
        "priority": spec.get("priority", 0),
        "localQueueName": spec["queueName"],
        "positionInClusterQueue": place,
        "positionInLocalQueue": local_place,
    }
