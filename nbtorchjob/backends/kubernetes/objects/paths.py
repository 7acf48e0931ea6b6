"""Where the API keeps things (pure)."""

from __future__ import annotations

from typing import NamedTuple


class Api(NamedTuple):
    """One kind of object that a cluster may serve; the core group is ""."""

    group: str
    version: str
    plural: str
    kind: str

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def group_version(self) -> str:
        """The ``apiVersion`` in a manifest."""
        return f"{self.group}/{self.version}" if self.group else self.version


PODS = Api("", "v1", "pods", "Pod")
SECRETS = Api("", "v1", "secrets", "Secret")
SERVICES = Api("", "v1", "services", "Service")
CONFIGMAPS = Api("", "v1", "configmaps", "ConfigMap")
POLICIES = Api("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
EVENTS = Api("", "v1", "events", "Event")
NAMESPACES = Api("", "v1", "namespaces", "Namespace")
ACCOUNTS = Api("", "v1", "serviceaccounts", "ServiceAccount")
CLAIMS = Api("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
QUOTAS = Api("", "v1", "resourcequotas", "ResourceQuota")
HOSTS = Api("", "v1", "nodes", "Node")
PRIORITIES = Api("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass")
POD_GROUPS = Api("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup")
RUNTIMES = Api("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime")
CLUSTER_RUNTIMES = Api(
    "trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime"
)
QUEUES = Api("scheduling.volcano.sh", "v1beta1", "queues", "Queue")
COMMANDS = Api("bus.volcano.sh", "v1alpha1", "commands", "Command")
KUEUE = "kueue.x-k8s.io"
WORKLOADS = Api(KUEUE, "v1beta2", "workloads", "Workload")
LOCAL_QUEUES = Api(KUEUE, "v1beta2", "localqueues", "LocalQueue")
CLUSTER_QUEUES = Api(KUEUE, "v1beta2", "clusterqueues", "ClusterQueue")
COHORTS = Api(KUEUE, "v1beta2", "cohorts", "Cohort")
WORKLOAD_PRIORITIES = Api(KUEUE, "v1beta2", "workloadpriorityclasses", "WorkloadPriorityClass")
VISIBILITY = "visibility.kueue.x-k8s.io"
VISIBLE_QUEUES = Api(VISIBILITY, "v1beta2", "localqueues", "LocalQueue")
LEASES = Api("coordination.k8s.io", "v1", "leases", "Lease")
WHO = Api("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview")
REVIEWS = Api("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview")

# Versions that will do where an object's own isn't served, by group: before Kueue 0.15 there was one, and a
# PodGroup is new in 1.36.
OLDER = {KUEUE: ("v1beta1",), VISIBILITY: ("v1beta1",), POD_GROUPS.group: ("v1alpha3", "v1alpha2")}
# What a job owns besides its Secrets and pods, by kind.
BESIDE = {api.kind: api for api in (SERVICES, POLICIES)}


class Target(NamedTuple):
    """What a request is for: objects of one kind, or one of them, or a part of it (``pods/log``)."""

    api: Api
    namespace: str | None = None
    name: str | None = None
    part: str | None = None

    @property
    def path(self) -> str:
        """The URL's path."""
        api = self.api
        root = f"/apis/{api.group}/{api.version}" if api.group else f"/api/{api.version}"
        scope = f"/namespaces/{self.namespace}" if self.namespace else ""
        return f"{root}{scope}/{api.plural}" + "".join(f"/{word}" for word in (self.name, self.part) if word)

    def __str__(self) -> str:
        what = f"{self.api}/{self.part}" if self.part else str(self.api)
        what += f' "{self.name}"' if self.name else ""
        return what + (f' in namespace "{self.namespace}"' if self.namespace else "")
