"""What ``kubectl apply -f FOLDER`` does to objects that aren't there yet (recorded of 1.36)."""

import json
import urllib.error

import yaml

COPY = "kubectl.kubernetes.io/last-applied-configuration"
PLURALS = {
    "Secret": "api/v1/{}/secrets",
    "Service": "api/v1/{}/services",
    "NetworkPolicy": "apis/networking.k8s.io/v1/{}/networkpolicies",
    "Job": "apis/batch/v1/{}/jobs",
    "TrainJob": "apis/trainer.kubeflow.org/v1alpha1/{}/trainjobs",
}


def apply(cluster, folder, namespace):
    """Apply a folder's manifests in the order of their names; give the refusals, past which it goes on.

    Each object gets a copy of itself in an annotation, written as Go's JSON encoder writes it.
    """
    refused = []
    for file in sorted(folder.glob("*.yaml")):
        body = yaml.safe_load(file.read_text())
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
