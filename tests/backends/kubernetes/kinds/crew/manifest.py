"""A submission as a Crew."""

from typing import Any

from nbtorchjob.backends.kubernetes.objects.reading import Api
from nbtorchjob.backends.kubernetes.objects.submission import Submission
from nbtorchjob.backends.kubernetes.template import PORT, replicas, template

API = Api("crews.example.org", "v1", "crews", "Crew")
CONTAINER = "hand"


def manifests(sub: Submission) -> list[dict[str, Any]]:
    """Return the Crew."""
    env = {"NBTORCHJOB_DOMAIN": sub.name, "PET_RDZV_ENDPOINT": f"{sub.name}-0.{sub.name}:{PORT}"}
    spec = {
        "size": sub.spec.launch.max_nodes,
        "deadline": sub.deadline_s,
        "keep": sub.ttl_s,
        "again": sub.policy.backoff_limit,
        "template": template(sub, CONTAINER, replicas(sub.spec)[0], env),
    }
    fields = {key: value for key, value in spec.items() if value is not None}
    return [{"apiVersion": API.group_version, "kind": API.kind, "metadata": sub.metadata, "spec": fields}]
