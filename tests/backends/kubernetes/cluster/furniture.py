"""The objects of a new cluster: its node, namespaces, CRDs, Volcano's queue and Trainer's runtime."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tests.backends.kubernetes.cluster.resources import (
    ACCOUNTS,
    CONFIGMAPS,
    DEFINITIONS,
    NAMESPACES,
    OPERATORS,
    Object,
    Resource,
    definitions,
)
from tests.backends.kubernetes.cluster.store import Change, Store


def namespace(store: Store, name: str, labels: Mapping[str, str] = MappingProxyType({})) -> None:
    """Create a namespace."""
    meta = {"name": name, "labels": {"kubernetes.io/metadata.name": name, **labels}}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": meta, "spec": {"finalizers": ["kubernetes"]}}
    store.create(NAMESPACES, store.prepare(NAMESPACES, body | {"status": {"phase": "Active"}}))


def fill(store: Store, change: Change) -> None:
    """Put the default service account and the cluster's certificates into a new namespace."""
    if change.resource != NAMESPACES or change.type != "ADDED":
        return
    name = change.object["metadata"]["name"]
    for resource, inside, more in (
        (ACCOUNTS, "default", {}),
        (CONFIGMAPS, "kube-root-ca.crt", {"data": {"ca.crt": ""}}),
    ):
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        body = kind | {"metadata": {"name": inside, "namespace": name}} | more
        store.create(resource, store.prepare(resource, body))


def furnish(store: Store, resources: Iterable[Resource], kinds: Iterable[str], node: Object) -> None:
    """Create the objects that a cluster with these operators has from the start."""
    first = {"nodes": node, "queues": _queue(), "clustertrainingruntimes": _runtime()}
    for resource in resources:
        if resource.plural in first:
            kind = {"apiVersion": resource.api_version, "kind": resource.kind}
            store.create(resource, store.prepare(resource, kind | first[resource.plural]))
    for name in (name for kind in kinds for name in OPERATORS.get(kind, ())):
        crd = definitions()[name]
        bare = store.prepare(DEFINITIONS, {**crd, "spec": {}})
        # Nothing changes a schema, so its megabyte isn't copied.
        store.create(DEFINITIONS, bare | {"spec": crd["spec"]})


def _queue() -> Object:
    spec = {"weight": 1, "reclaimable": True}
    return {"metadata": {"name": "default"}, "spec": spec, "status": {"state": "Open"}}


def _runtime() -> Object:
    """Return the stock runtime of Kubeflow Trainer for torch."""
    pod = {"spec": {"containers": [{"name": "node", "image": "localhost/torch:1"}]}}
    label = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    job = {"metadata": {"labels": label}, "spec": {"template": pod}}
    jobs = [{"name": "node", "replicas": 1, "groupName": "default", "template": job}]
    return {
        "metadata": {"name": "torch-distributed", "labels": {"trainer.kubeflow.org/framework": "torch"}},
        "spec": {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": {"spec": {"replicatedJobs": jobs}}},
    }
