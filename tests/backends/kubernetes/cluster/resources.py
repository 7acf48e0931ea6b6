"""The served resources: those of Kubernetes itself, and those of the CRDs beside the checkout."""

import functools
import marshal
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]


def copied(value: Any) -> Any:
    """Return a copy of an object, or a part of one, in a seventh of the time that ``copy.deepcopy`` takes."""
    return marshal.loads(marshal.dumps(value))


SHARED = Path(__file__).resolve().parents[5] / "shared"
CRDS = SHARED / "crds"


@dataclass(frozen=True)
class Resource:
    """One kind of object at one version, with the schema that a CRD gives it."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    schema: Object | None = field(default=None, compare=False, repr=False)

    @functools.cached_property
    def api_version(self) -> str:
        """Return `group/version`, or the version alone for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """Return the name that messages use: `pods`, `jobs.batch`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def custom(self) -> bool:
        """Return whether a CRD defines the resource."""
        return self.group.endswith((".org", ".sh", "jobset.x-k8s.io", "kueue.x-k8s.io"))


def _core(plural: str, kind: str, *subresources: str, **more: Any) -> Resource:
    return Resource("", "v1", plural, kind, subresources=subresources, **more)


NAMESPACES = _core("namespaces", "Namespace", "status", namespaced=False, short=("ns",))
PODS = _core("pods", "Pod", "status", "exec", "log", "eviction", short=("po",))
SERVICES = _core("services", "Service", "status", short=("svc",))
SECRETS = _core("secrets", "Secret")
CONFIGMAPS = _core("configmaps", "ConfigMap", short=("cm",))
EVENTS = _core("events", "Event", short=("ev",))
QUOTAS = _core("resourcequotas", "ResourceQuota", "status", short=("quota",))
CLAIMS = _core("persistentvolumeclaims", "PersistentVolumeClaim", "status", short=("pvc",))
ACCOUNTS = _core("serviceaccounts", "ServiceAccount", short=("sa",))
JOBS = Resource("batch", "v1", "jobs", "Job", subresources=("status",))
PRIORITIES = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False, short=("pc",)
)
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
DEFINITIONS = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
    short=("crd",),
)
HOSTS = _core("nodes", "Node", "status", namespaced=False, short=("no",))
BUILT_IN = (
    NAMESPACES,
    HOSTS,
    PODS,
    SERVICES,
    SECRETS,
    CONFIGMAPS,
    EVENTS,
    QUOTAS,
    CLAIMS,
    ACCOUNTS,
    JOBS,
    Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False),
    Resource(
        "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
    ),
    Resource("apps", "v1", "deployments", "Deployment"),  # no controller acts on this one or the two above
    *(
        Resource("admissionregistration.k8s.io", "v1", plural, kind, namespaced=False)
        for plural, kind in (
            ("validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
            ("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"),
        )
    ),
    Resource("coordination.k8s.io", "v1", "leases", "Lease"),
    Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", short=("netpol",)),
    PRIORITIES,
    ROLES,
    BINDINGS,
    DEFINITIONS,
    # Volcano's objects to suspend and resume a job; their CRD accepts anything.
    Resource("bus.volcano.sh", "v1alpha1", "commands", "Command"),
)

# Kubernetes' own gang scheduling, if its feature gate GenericWorkload is on (1.36).
POD_GROUPS = Resource("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup", subresources=("status",))
GANGS = (POD_GROUPS, Resource("scheduling.k8s.io", "v1alpha2", "workloads", "Workload"))


def _kueue(plural: str, kind: str, **more: Any) -> Resource:
    return Resource("kueue.x-k8s.io", "v1beta2", plural, kind, **more)


# Kueue's resources; no schemas for them lie beside the checkout.
KUEUE = (
    _kueue("workloads", "Workload", subresources=("status",)),
    _kueue("localqueues", "LocalQueue", subresources=("status",)),
    _kueue("clusterqueues", "ClusterQueue", subresources=("status",), namespaced=False),
    _kueue("cohorts", "Cohort", subresources=("status",), namespaced=False),
    _kueue("resourceflavors", "ResourceFlavor", namespaced=False),
    _kueue("workloadpriorityclasses", "WorkloadPriorityClass", namespaced=False),
    # From its visibility server: the workloads that wait in each queue.
    Resource(
        "visibility.kueue.x-k8s.io",
        "v1beta2",
        "localqueues",
        "LocalQueue",
        subresources=("pendingworkloads",),
    ),
)


@functools.cache
def definitions() -> dict[str, Object]:
    """Return every CRD beside the checkout by name: `pytorchjobs.kubeflow.org`."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    read = [yaml.load(path.read_text(), loader) for path in sorted(CRDS.glob("*.yaml"))]
    return {crd["metadata"]["name"]: crd for crd in read}


def _of_definition(crd: Object) -> Iterable[Resource]:
    names, group = crd["spec"]["names"], crd["spec"]["group"]
    for version in crd["spec"]["versions"]:
        if version.get("served"):
            yield Resource(
                group,
                version["name"],
                names["plural"],
                names["kind"],
                namespaced=crd["spec"]["scope"] == "Namespaced",
                short=tuple(names.get("shortNames", ())),
                subresources=tuple(version.get("subresources", {})),
                schema=version["schema"]["openAPIV3Schema"],
            )


# A cluster has either all CRDs of an operator or none.
OPERATORS = {
    "pytorchjob": ("pytorchjobs.kubeflow.org",),
    "trainjob": (
        "trainjobs.trainer.kubeflow.org",
        "trainingruntimes.trainer.kubeflow.org",
        "clustertrainingruntimes.trainer.kubeflow.org",
        "jobsets.jobset.x-k8s.io",
    ),
    "volcano": (
        "jobs.batch.volcano.sh",
        "podgroups.scheduling.volcano.sh",
        "queues.scheduling.volcano.sh",
    ),
}


def served(operators: Iterable[str]) -> list[Resource]:
    """Return all resources of a cluster that has these operators."""
    operators = [*operators]
    names = [name for operator in operators for name in OPERATORS.get(operator, ())]
    kueue = KUEUE if "kueue" in operators else ()
    return [
        *BUILT_IN,
        *kueue,
        *(resource for name in names for resource in _of_definition(definitions()[name])),
    ]


def job_schema() -> Object | None:
    """Return the schema of batch/v1 Job: JobSet's CRD holds it whole, as the template of a replicated job."""
    jobset = definitions().get("jobsets.jobset.x-k8s.io")
    if jobset is None:
        return None
    spec = jobset["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    template = spec["properties"]["replicatedJobs"]["items"]["properties"]["template"]
    return {"type": "object", "properties": {"spec": template["properties"]["spec"]}}
