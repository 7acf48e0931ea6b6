"""A cluster's refusals: answers as a real Kubernetes 1.36 sends them, and our messages for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from docs._generate.markdown import code
from nbtorchjob.backends.kubernetes.api.errors import api_error
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.objects.reading import PODS, SECRETS, Api, Target

_JOBS = KINDS["pytorchjob"].api
_VOLCANO = KINDS["volcano"].api
_TRAINJOBS = KINDS["trainjob"].api
_DENIED = 'User "ann" cannot create resource "pytorchjobs" in API group "kubeflow.org" in the namespace "ml"'
_WEBHOOK = 'admission webhook "{}" denied the request: {}'
_TERMINATING = {"causes": [{"reason": "NamespaceTerminating"}]}
_IMAGE = (
    "spec.pytorchReplicaSpecs[Worker].template.spec.containers[0].image: Required value: must be required"
)


@dataclass(frozen=True)
class _Answer:
    """An answer of the API server; one without a message comes from something before it."""

    status: int
    message: str
    api: Api = _JOBS
    verb: str = "create"
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        if not self.message:
            return b"404 page not found"
        status = {"kind": "Status", "message": self.message, "reason": self.reason, "details": self.details}
        return json.dumps(status).encode()

    @property
    def said(self) -> str:
        return str(api_error(self.verb, Target(self.api, "ml", "train"), self.status, self.body))


_ANSWERS: Sequence[_Answer] = (
    _Answer(401, "Unauthorized", PODS, "list"),
    _Answer(403, 'pods is forbidden: User "system:anonymous" cannot list resource "pods"', PODS, "list"),
    _Answer(403, f"pytorchjobs.kubeflow.org is forbidden: {_DENIED}"),
    _Answer(
        403,
        'pods "train" is forbidden: exceeded quota: team, requested: pods=1, used: pods=4, limited: pods=4',
    ),
    _Answer(403, 'pods "train" is forbidden: failed quota: team: must specify requests.cpu for: main'),
    _Answer(
        403,
        "unable to create new content in namespace ml because it is being terminated",
        details=_TERMINATING,
    ),
    _Answer(403, 'error looking up account: serviceaccount "train" not found'),
    _Answer(403, "no PriorityClass with name high was found"),
    _Answer(
        403, _WEBHOOK.format("validatejob.volcano.sh", 'queue.scheduling.volcano.sh "q" not found;'), _VOLCANO
    ),
    _Answer(
        403,
        _WEBHOOK.format(
            "validator.trainjob.trainer.kubeflow.org", 'TrainingRuntime.trainer.kubeflow.org "r" not found'
        ),
        _TRAINJOBS,
    ),
    _Answer(403, _WEBHOOK.format("validator.pytorchjob.training-operator.kubeflow.org", _IMAGE)),
    _Answer(404, 'namespaces "ml" not found', details={"kind": "namespaces", "name": "ml"}),
    _Answer(404, 'pytorchjobs.kubeflow.org "train" not found', verb="get"),
    _Answer(404, ""),
    _Answer(409, 'pytorchjobs.kubeflow.org "train" already exists', reason="AlreadyExists"),
    _Answer(413, "Request entity too large: limit is 3145728", SECRETS),
    _Answer(
        422,
        "PyTorchJob is invalid",
        details={"causes": [{"field": "spec.pytorchReplicaSpecs", "message": "Required value"}]},
    ),
    _Answer(504, "Timeout: Too large resource version: 99999999, current: 14429", PODS, "list"),
)


def rows() -> Iterator[Sequence[str]]:
    """Yield a cluster's answers, and our messages for them."""
    for answer in _ANSWERS:
        yield str(answer.status), code(answer.message or "404 page not found"), answer.said
