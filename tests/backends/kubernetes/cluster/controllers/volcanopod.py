"""The pods of a Volcano Job, and what its plugins env and svc add."""

import copy

from tests.backends.kubernetes.cluster.resources import Object

ANNOTATION = "volcano.sh"


def _variable(task: str) -> str:
    return f"VC_{task.upper().replace('-', '_')}"


def _hosts(job: Object, task: Object) -> list[str]:
    name = job["metadata"]["name"]
    return [f"{name}-{task['name']}-{index}.{name}" for index in range(task["replicas"])]


def service_of(job: Object) -> Object:
    """Return the headless service of plugin svc."""
    meta = job["metadata"]
    selector = {"volcano.sh/job-name": meta["name"], "volcano.sh/job-namespace": meta["namespace"]}
    flags = job["spec"].get("plugins", {}).get("svc") or []
    early = "--publish-not-ready-addresses" in flags or "--publish-not-ready-addresses=true" in flags
    spec = {"clusterIP": "None", "selector": selector, "publishNotReadyAddresses": early}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": meta["name"]}, "spec": spec}


def config_of(job: Object) -> Object:
    """Return the ConfigMap of plugin svc: the hosts of each task."""
    data: dict[str, str] = {}
    for task in job["spec"]["tasks"]:
        hosts, variable = _hosts(job, task), _variable(task["name"])
        data |= {f"{variable}_HOSTS": ",".join(hosts), f"{variable}_NUM": str(len(hosts))}
        data[f"{task['name']}.host"] = "\n".join(hosts)
    meta = {"name": f"{job['metadata']['name']}-svc"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def policy_of(job: Object) -> Object:
    """Return the NetworkPolicy of plugin svc: only the job's own pods reach each other."""
    meta = job["metadata"]
    own = {
        "matchLabels": {"volcano.sh/job-name": meta["name"], "volcano.sh/job-namespace": meta["namespace"]}
    }
    spec = {"podSelector": own, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": own}]}]}
    head = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"}
    return {**head, "metadata": {"name": meta["name"]}, "spec": spec}


def pods_of(job: Object, status: Object, owner: Object, group: str) -> list[Object]:
    """Return all pods of a job."""
    return [
        _pod(job, status, task, index, owner, group)
        for task in job["spec"]["tasks"]
        for index in range(task["replicas"])
    ]


def _pod(job: Object, status: Object, task: Object, index: int, owner: Object, group: str) -> Object:
    name, spec = job["metadata"]["name"], job["spec"]
    template = copy.deepcopy(task["template"])
    template_meta, pod = template.get("metadata") or {}, template["spec"]
    own = {
        f"{ANNOTATION}/job-name": name,
        f"{ANNOTATION}/queue-name": spec["queue"],
        f"{ANNOTATION}/task-index": str(index),
        f"{ANNOTATION}/task-spec": task["name"],
    }
    notes = {
        "scheduling.k8s.io/group-name": group,
        f"{ANNOTATION}/job-retry-count": str(status.get("retryCount", 0)),
        f"{ANNOTATION}/job-version": str(status.get("version", 0)),
        f"{ANNOTATION}/template-uid": f"{name}-{task['name']}",
    }
    meta: Object = {
        "name": f"{name}-{task['name']}-{index}",
        "labels": {
            **(template_meta.get("labels") or {}),
            **own,
            f"{ANNOTATION}/job-namespace": job["metadata"]["namespace"],
        },
        "annotations": {**(template_meta.get("annotations") or {}), **own, **notes},
        "ownerReferences": [owner],
    }
    pod["schedulerName"] = spec.get("schedulerName", "volcano")
    if "priorityClassName" in spec:
        pod.setdefault("priorityClassName", spec["priorityClassName"])
    _plug_in(job, pod, meta["name"], index)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod}


def _plug_in(job: Object, pod: Object, name: str, index: int) -> None:
    plugins, job_name = job["spec"].get("plugins") or {}, job["metadata"]["name"]
    added: list[Object] = []
    if "env" in plugins:
        added += [{"name": variable, "value": str(index)} for variable in ("VK_TASK_INDEX", "VC_TASK_INDEX")]
    if "svc" in plugins:
        pod.setdefault("hostname", name)
        pod.setdefault("subdomain", job_name)
        config = f"{job_name}-svc"
        pod["volumes"] = [
            *(pod.get("volumes") or ()),
            {"name": config, "configMap": {"name": config, "defaultMode": 420}},
        ]
        for task in job["spec"]["tasks"]:
            for key in ("HOSTS", "NUM"):
                variable = f"{_variable(task['name'])}_{key}"
                source = {"configMapKeyRef": {"name": config, "key": variable}}
                added.append({"name": variable, "valueFrom": source})
    for container in pod["containers"]:
        container["env"] = [*(container.get("env") or ()), *added]
        if "svc" in plugins:
            mount = {"name": f"{job_name}-svc", "mountPath": "/etc/volcano"}
            container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
