"""The emulator's Volcano heeds a command in the same states as Volcano's state machine (1.15)."""

from tests.backends.kubernetes.stage import until

COMMANDS = "/apis/bus.volcano.sh/v1alpha1/namespaces/ns/commands"
JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/ns/jobs"


def start(cluster, script):
    container = {"name": "main", "image": "localhost/busybox:1", "command": ["sh", "-c", script]}
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1000, "containers": [container]}
    spec = {"tasks": [{"name": "node", "replicas": 1, "template": {"spec": pod}}]}
    about = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"}
    cluster.request("POST", JOBS, {**about, "metadata": {"name": "vj"}, "spec": spec})


def command(cluster, action):
    uid = cluster.request("GET", f"{JOBS}/vj")["metadata"]["uid"]
    about = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "vj", "uid": uid}
    meta = {"generateName": "vj-", "ownerReferences": [about]}
    body = {"apiVersion": "bus.volcano.sh/v1alpha1", "kind": "Command", "metadata": meta}
    cluster.request("POST", COMMANDS, body | {"action": action, "target": about})


def status(cluster):
    return cluster.request("GET", f"{JOBS}/vj").get("status", {})


def reaches(cluster, phase):
    until(lambda: status(cluster).get("state", {}).get("phase") == phase)


def test_a_job_is_resumed_while_its_pods_still_end_and_then_heeds_nothing_until_they_are_gone(
    cluster, tmp_path
):
    cluster.namespace("ns")
    may_end = f"until [ -e {tmp_path}/go ]; do sleep 0.02; done; exit 0"
    start(cluster, f"trap '{may_end}' TERM; touch {tmp_path}/ready; while :; do sleep 0.02; done")
    until((tmp_path / "ready").exists)
    reaches(cluster, "Running")
    command(cluster, "AbortJob")
    reaches(cluster, "Aborting")
    command(cluster, "ResumeJob")
    reaches(cluster, "Restarting")
    command(cluster, "AbortJob")
    until(lambda: not cluster.request("GET", COMMANDS)["items"])
    (tmp_path / "go").touch()

    reaches(cluster, "Running")
    assert status(cluster)["retryCount"] == 1
