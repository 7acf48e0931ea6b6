"""A tender's manifests on a real cluster: a job that is evicted without a notebook runs again, to its end.

KUBECONFIG leads to a cluster that has PyTorchJobs and a controller that acts on them, such as

    python -m tests.backends.kubernetes.cluster.controllers --kinds pytorchjob

If its pods can't reach its API server, ``--server HOST:PORT`` lets the tender use the host's network.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import yaml
from kubernetes import client, config, dynamic
from kubernetes.client.exceptions import ApiException

import nbtorchjob
from nbtorchjob.backends.kubernetes.deployment import NAME
from tests.backends.full import cluster_backend
from tests.benchmarks.measure import own_state

NAMESPACE = "tended"
LONGEST_S = 300.0

# A notebook that submits a job with a first attempt that never ends; the trial then kills the notebook.
NOTEBOOK = """
import sys, time
import nbtorchjob
from nbtorchjob import Cluster, Elastic, JobSpec, Retry

def run():
    print("attempt", nbtorchjob.attempt(), flush=True)
    if nbtorchjob.attempt() == 1:
        time.sleep(10000)
    return nbtorchjob.attempt()

where = Cluster(kind="pytorchjob", namespace=sys.argv[1], image=sys.argv[2], cpu="400m", memory="1500Mi")
twice = Retry(preemptions=2, backoff=0)
job = nbtorchjob.submit(run, spec=JobSpec(Elastic(), "kubernetes", retry=twice, cluster=where))
print(job.name, flush=True)
time.sleep(10000)
"""


def until(what: str, probe: "Callable[[], Any]") -> Any:
    """Wait until ``probe`` returns a true value; return that."""
    began = time.monotonic()
    while not (value := probe()):
        if time.monotonic() - began > LONGEST_S:
            sys.exit(f"{what}: not within {LONGEST_S:.0f} s")
        time.sleep(0.5)
    print(f"{time.monotonic() - began:6.1f} s  {what}")
    return value


def parts(image: str, server: str) -> "Iterator[dict[str, Any]]":
    """Yield the manifests, with this image and, if ``server`` is given, another way to the API server."""
    for part in yaml.safe_load_all(cluster_backend().tenders([NAMESPACE], image)):
        if part["kind"] == "Deployment" and server:
            host, _, port = server.rpartition(":")
            pod = part["spec"]["template"]["spec"]
            pod["hostNetwork"] = True
            pod["containers"][0]["env"] += [
                {"name": "KUBERNETES_SERVICE_HOST", "value": host},
                {"name": "KUBERNETES_SERVICE_PORT", "value": port},
            ]
        yield part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", default="localhost/torch:1", help="of the job: one with torch")
    parser.add_argument("--python", default="localhost/torch:1", help="of the tender: one with Python")
    parser.add_argument(
        "--server", default="", help="HOST:PORT of the API server, for pods on the host's network"
    )
    arguments = parser.parse_args()
    config.load_kube_config()
    dynamic_client, core = dynamic.DynamicClient(client.ApiClient()), client.CoreV1Api()
    with own_state():
        core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=NAMESPACE)))
        try:
            for part in parts(arguments.python, arguments.server):
                api = dynamic_client.resources.get(api_version=part["apiVersion"], kind=part["kind"])
                where = {"namespace": NAMESPACE} if api.namespaced else {}
                try:
                    api.create(body=part, **where)
                except ApiException as exc:
                    if exc.status != 409:  # objects outside the namespace stay from run to run
                        raise
            trial(dynamic_client, core, arguments.image)
        finally:
            core.delete_namespace(NAMESPACE)


def trial(here: "dynamic.DynamicClient", core: "client.CoreV1Api", image: str) -> None:
    """Evict a job while only the tender looks after it."""

    def pods(selector: str) -> "list[Any]":
        return [*core.list_namespaced_pod(NAMESPACE, label_selector=selector).items]

    def running(selector: str) -> "list[Any]":
        return [pod for pod in pods(selector) if pod.status.phase == "Running"]

    (tender,) = until("the tender runs", lambda: running(f"app.kubernetes.io/name={NAME}"))
    log = partial(core.read_namespaced_pod_log, namespace=NAMESPACE)
    until("it looks after jobs", lambda: "looking after all jobs" in log(tender.metadata.name))
    argv = [sys.executable, "-c", NOTEBOOK, NAMESPACE, image]
    notebook = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert notebook.stdout is not None
    name = notebook.stdout.readline().strip()
    label = f"nbtorchjob.dev/job={name}"
    (pod,) = until(f"{name} runs", lambda: running(label))
    until("its cell runs", lambda: "attempt 1" in log(pod.metadata.name))
    os.kill(notebook.pid, signal.SIGKILL)
    notebook.wait()
    print("          the notebook is killed")
    evict(core, pod.metadata.name)
    jobs = here.resources.get(api_version="kubeflow.org/v1", kind="PyTorchJob")

    def over() -> bool:
        items = [item for item in jobs.get(namespace=NAMESPACE).items if item.metadata.name == f"{name}-a2"]
        conditions = (items[0].to_dict().get("status") or {}).get("conditions") or () if items else ()
        return any(
            condition["type"] == "Succeeded" and condition["status"] == "True" for condition in conditions
        )

    until("the second attempt has ended well", over)
    print(log(tender.metadata.name), end="")
    job = nbtorchjob.attach(f"{NAMESPACE}/{name}")
    print(f"value {job.result(60)}, {len(job.state.attempts)} attempts, {job.state.phase.value}")
    if job.result() != 2:
        sys.exit("it isn't the second attempt's value")


def evict(core: "client.CoreV1Api", name: str) -> None:
    """Evict a pod, as a drain does; before Kubernetes 1.22 with an API version that is gone since."""
    meta = client.V1ObjectMeta(name=name, namespace=NAMESPACE)
    for version in ("policy/v1", "policy/v1beta1"):
        body = client.V1Eviction(api_version=version, kind="Eviction", metadata=meta)
        try:
            core.create_namespaced_pod_eviction(name, NAMESPACE, body)
        except ApiException as exc:
            print(f"          {version}: {exc.status}")
        else:
            return
    sys.exit("the cluster evicts nothing")


if __name__ == "__main__":
    main()
