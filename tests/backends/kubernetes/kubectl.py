"""``kubectl apply -f FOLDER`` for objects that don't exist yet (recorded with 1.36)."""

import json
import re
import urllib.error

import yaml


class Loader(yaml.SafeLoader):  # type: ignore[misc]
    """A loader that reads numbers as Go does, without a dot before an exponent (``1e-3``)."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)

COPY = "kubectl.kubernetes.io/last-applied-configuration"
PLURALS = {
    "Secret": "api/v1/{}/secrets",
    "Service": "api/v1/{}/services",
    "NetworkPolicy": "apis/networking.k8s.io/v1/{}/networkpolicies",
    "Job": "apis/batch/v1/{}/jobs",
    "TrainJob": "apis/trainer.kubeflow.org/v1alpha1/{}/trainjobs",
}


def apply(cluster, folder, namespace):
    """Apply a folder's manifests in the order of their names, past any refusals; return the refusals.

    Each object gets a copy of itself in an annotation, written as Go's JSON encoder writes it.
    """
    refused = []
    for file in sorted(folder.glob("*.yaml")):
        body = yaml.load(file.read_text(), Loader)
        body["metadata"].setdefault("annotations", {}).pop(COPY, None)
        copy = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"
        for char in "<>&":
            copy = copy.replace(char, f"\\u{ord(char):04x}")
        body["metadata"]["annotations"][COPY] = copy
        path = PLURALS[body["kind"]].format(f"namespaces/{namespace}")
        try:
            cluster.request("POST", f"/{path}?fieldValidation=Strict", body)
        except urllib.error.HTTPError as refusal:
            refused.append(json.load(refusal)["message"])
    return refused
