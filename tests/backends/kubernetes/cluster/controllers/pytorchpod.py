"""The pods and services of a PyTorchJob: names, labels, what the operator adds to the environment."""

import copy

from tests.backends.kubernetes.cluster.resources import Object

LABEL = "training.kubeflow.org"
PORT_NAME, PORT = "pytorchjob-port", 23456


def replicas_of(job: Object) -> Object:
    """Return the replica specs, Master first."""
    specs = job["spec"]["pytorchReplicaSpecs"]
    return {role: specs[role] for role in ("Master", "Worker") if role in specs}


def labels(job: Object, role: str) -> dict[str, str]:
    """Return the labels of all pods of a role."""
    return {
        f"{LABEL}/operator-name": "pytorchjob-controller",
        f"{LABEL}/job-name": job["metadata"]["name"],
        f"{LABEL}/replica-type": role.lower(),
    }


def _metadata(job: Object, role: str, index: int, owner: Object) -> Object:
    name = f"{job['metadata']['name']}-{role.lower()}-{index}"
    own = labels(job, role) | {f"{LABEL}/replica-index": str(index)}
    return {"name": name, "labels": own, "ownerReferences": [owner]}


def service_of(job: Object, role: str, index: int, owner: Object) -> Object:
    """Return the headless service of one pod."""
    meta = _metadata(job, role, index, owner)
    ports = [{"name": PORT_NAME, "port": _port(job, role), "protocol": "TCP"}]
    spec = {"clusterIP": "None", "selector": meta["labels"], "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def pod_of(job: Object, role: str, index: int, owner: Object) -> Object:
    """Return one pod."""
    replica = replicas_of(job)[role]
    template = copy.deepcopy(replica["template"])
    meta = _metadata(job, role, index, owner)
    template_meta = template.get("metadata") or {}
    own = {**(template_meta.get("labels") or {}), **meta["labels"]}
    # Without a Master, the first worker gets the label of one.
    if index == 0 and (role == "Master" or "Master" not in replicas_of(job)):
        own[f"{LABEL}/job-role"] = "master"
    spec = template["spec"]
    policy = replica.get("restartPolicy", "OnFailure")
    spec["restartPolicy"] = "Never" if policy == "ExitCode" else policy
    added = [{"name": name, "value": value} for name, value in _environment(job, role, index).items()]
    for container in spec["containers"]:
        # Later entries win: here, the operator's.
        container["env"] = [*(container.get("env") or ()), *added]
        ports = container.setdefault("ports", [])
        if container["name"] == "pytorch" and not any(port.get("name") == PORT_NAME for port in ports):
            ports.append({"name": PORT_NAME, "containerPort": PORT, "protocol": "TCP"})
    if role == "Worker" and "Master" in replicas_of(job):
        spec["initContainers"] = [*(spec.get("initContainers") or ()), _wait_for_master(job)]
    metadata = meta | {"labels": own, "annotations": template_meta.get("annotations") or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _wait_for_master(job: Object) -> Object:
    master = f"{job['metadata']['name']}-master-0"
    loop = (
        f"i=0; until ping -c1 -W1 {master} >/dev/null 2>&1; do i=$((i+1)); [ $i -gt 100 ] && exit 1; "
        "echo waiting for master; sleep 1; done;"
    )
    return {"name": "init-pytorch", "image": "localhost/busybox:1", "command": ["sh", "-c", loop]}


def _port(job: Object, role: str) -> int:
    """Return the port named pytorchjob-port of container pytorch."""
    containers = replicas_of(job)[role]["template"]["spec"]["containers"]
    named = [
        int(port["containerPort"])
        for container in containers
        if container["name"] == "pytorch"
        for port in container.get("ports") or ()
        if port.get("name") == PORT_NAME
    ]
    return named[0] if named else PORT


def _environment(job: Object, role: str, index: int) -> dict[str, str]:
    """Return the operator's variables: a rendezvous for an elastic job, an address for one with a Master."""
    spec, name, replicas = job["spec"], job["metadata"]["name"], replicas_of(job)
    elastic = spec.get("elasticPolicy")
    total = sum(replica.get("replicas", 1) for replica in replicas.values())
    environment = {"PYTHONUNBUFFERED": "1"}
    if "Master" in replicas:
        environment |= _master(job, role, index, total)
    nproc = spec.get("nprocPerNode") or (elastic or {}).get("nProcPerNode") or "auto"
    environment["PET_NPROC_PER_NODE"] = str(nproc)
    if elastic is None:
        return environment | {"PET_NNODES": str(total)}
    workers = replicas["Worker"].get("replicas", 1)
    least = elastic.get("minReplicas", elastic.get("maxReplicas", workers))
    most = elastic.get("maxReplicas", elastic.get("minReplicas", workers))
    host = elastic.get("rdzvHost", f"{name}-worker-0")
    environment |= {
        "PET_RDZV_ENDPOINT": f"{host}:{elastic.get('rdzvPort', _port(job, 'Worker'))}",
        "PET_RDZV_BACKEND": elastic.get("rdzvBackend", "c10d"),
        "PET_NNODES": f"{least}:{most}",
    }
    if "maxRestarts" in elastic:
        environment["PET_MAX_RESTARTS"] = str(elastic["maxRestarts"])
    if "rdzvId" in elastic:
        environment["PET_RDZV_ID"] = elastic["rdzvId"]
    if conf := elastic.get("rdzvConf"):
        environment["PET_RDZV_CONF"] = ",".join(f"{entry['key']}={entry['value']}" for entry in conf)
    return environment


def _master(job: Object, role: str, index: int, total: int) -> dict[str, str]:
    address, port = f"{job['metadata']['name']}-master-0", str(_port(job, "Master"))
    nproc = job["spec"].get("nprocPerNode", "")
    rank = str(index if role == "Master" else index + 1)
    return {
        "MASTER_PORT": port,
        "PET_MASTER_PORT": port,
        "MASTER_ADDR": address,
        "PET_MASTER_ADDR": address,
        "WORLD_SIZE": str(total * (int(nproc) if nproc.isdigit() else 1)),
        "RANK": rank,
        "PET_NODE_RANK": rank,
    }
