"""A host that is about to end: a cloud says so on its Node, and the job's nodes there are told at once.

Pods hear of it by SIGTERM, which may come minutes later, or with less time to save than there was. It is told
by a question, once a pod, by whoever follows the job and may read Nodes. Most users may not: then nobody is.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from nbtorchjob.backends.base import NodeAnswer
from nbtorchjob.backends.kubernetes.api.client import Object
from nbtorchjob.backends.kubernetes.jobs import asking, find
from nbtorchjob.backends.kubernetes.objects.paths import HOSTS, Target
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.errors import ClusterError, DamagedError, ForbiddenError, JobEndedError, JobNotFoundError
from nbtorchjob.state import JobState, Phase

# What is put on a host that is about to end, as it is drained or before it. Missing are those of hosts whose
# pods go on: of a cordon (node.kubernetes.io/unschedulable), of mere candidates and recommendations
# (DeletionCandidateOfClusterAutoscaler, aws-node-termination-handler/rebalance-recommendation). So is
# karpenter.sh/disrupted, which is taken back where no other host can be had: what is final is that Karpenter
# deletes the Node, which its finalizer keeps until the host is drained.
TAINTS = (
    "cloud.google.com/impending-node-termination",  # GKE: the --taint of its handlers of VM terminations
    "aws-node-termination-handler/spot-itn",  # this and the next two: its pkg/node/node.go
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "remediator.kubernetes.azure.com/unschedulable",  # AKS: node auto-drain and auto-repair
    "ToBeDeletedByClusterAutoscaler",  # cluster-autoscaler: utils/taints/taints.go
)
EVERY_S = 5.0  # for all hosts of a job, and half of it for a host: Azure's notice is the shortest, 30 s
_APART_S = 0.2  # between two hosts at least
_ANSWER_WITHIN_S = 20.0
_MOST = 24  # questions to a pod whose ranks don't call leaving(), which they may still come to


def notice(host: Object) -> str:
    """Return what says that a host is about to end; "" where nothing does."""
    if host["metadata"].get("deletionTimestamp"):
        return "its host is being deleted"
    keys = {taint["key"] for taint in (host.get("spec") or {}).get("taints") or ()}
    reason = next((key for key in TAINTS if key in keys), "")
    return f"its host has the taint {reason}" if reason else ""


class Hosts:
    """The hosts of one job, at ``address``, which is in this ``state`` as far as is known."""

    def __init__(self, session: Session, address: str, state: Callable[[], JobState]) -> None:
        self._session = session
        self._address = address
        self._state = state
        self._asked: Counter[str] = Counter()  # how often, by the pod's uid; _MOST of one that leaves

    async def heed(self) -> None:
        """Tell the job's nodes of notices, until this user is found not to be permitted to read them."""
        with suppress(ForbiddenError):
            while True:
                # The hosts, and by node the uids of the pods on each that haven't been told.
                state, hosts = self._state(), dict[str, dict[int, str]]()
                for node in state.nodes.values() if state.phase is Phase.RUNNING else ():
                    life = node.life
                    if life.running and node.host and self._asked[life.pod] < _MOST:
                        hosts.setdefault(node.host, {})[node.index] = life.pod
                for host, nodes in hosts.items():
                    if why := await self._notice(host):
                        await self._tell(nodes, why)
                    await asyncio.sleep(max(_APART_S, EVERY_S / len(hosts)))
                if not hosts:
                    await asyncio.sleep(EVERY_S)

    async def _notice(self, host: str) -> str:
        """Return its notice, as another job here may have just asked for it: many run on one host."""
        now, known = time.monotonic(), self._session.notices
        if host not in known or now - known[host][0] > EVERY_S / 2:
            known[host] = now, asyncio.ensure_future(self._look(host))
        return await asyncio.shield(known[host][1])

    async def _look(self, host: str) -> str:
        try:
            return notice(await self._session.client.get(Target(HOSTS, None, host)))
        except ForbiddenError:
            raise
        except ClusterError:  # it is gone, or nobody answers for now
            return ""

    async def _tell(self, pods: dict[int, str], why: str) -> None:
        def heard(answer: NodeAnswer) -> None:
            if any(record.get("leaves") is True for record in answer.records):
                self._asked[pods[answer.node]] = _MOST

        self._asked.update(pods.values())
        with suppress(ClusterError, DamagedError, JobEndedError, JobNotFoundError):
            job = await find.find(self._address)
            question = {"question": "leave", "why": why}
            await asking.ask(job, question, [*pods], _ANSWER_WITHIN_S, heard)
