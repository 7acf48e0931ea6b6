"""Jobs on clusters through the server, and clusters that refuse, hang or aren't there."""

import asyncio
import json
import re
import socket
import sys

import pytest
import yaml

from nbtorchjob import JobCancelledError
from nbtorchjob.backends.kubernetes import namespaces
from nbtorchjob.spec.policies import Retry
from nbtorchjob.state import Phase
from tests.backends.kubernetes import wrong
from tests.backends.kubernetes.mortal import made
from tests.backends.kubernetes.stage import running, until
from tests.frontends.server.conftest import error, jobs
from tests.patience import LIMIT

WAIT = "begin(); log('line 1\\nline 2\\n'); wait('go'); value(1)"


def remote(job):
    return f"kubernetes:{job.info.address}"


async def heard(server):
    """Return the list of jobs once every scope has answered or failed."""
    while True:
        listed = json.loads((await server.get(jobs())).body)
        if not any("aren't listed yet" in note for note in listed["notes"]):
            return listed


@pytest.fixture
def job(stage):
    """Return a job that runs on the emulator until the test lets it end."""
    job = running(stage.submit(WAIT))
    until(lambda: "line 2" in job.logs(0))
    return job


async def test_a_job_of_a_cluster_is_shown_in_the_list_and_alone(server, job):
    listed = await heard(server)
    job_record = json.loads((await server.get(jobs(remote(job)))).body)

    assert [record["id"] for record in listed["jobs"]] == [job_record["id"]] == [remote(job)]
    assert job_record["phase"] == "RUNNING"
    assert job_record["where"] == f"kubernetes: indexedjob in {job.info.cluster['namespace']}"
    assert listed["notes"] == []


async def test_its_description_and_logs_are_text(server, job):
    described = (await server.get(jobs(remote(job), "describe"))).body.decode()
    part = await server.get(f"{jobs(remote(job), 'logs', '0')}?offset=5&limit=4")

    assert described.startswith(f"torchjob {job.name} running")
    assert (await server.get(jobs(remote(job), "logs", "0"))).body == b"line 1\nline 2\n"
    assert (part.body, part.headers["X-Log-End"]) == (b"1\nli", "9")


async def test_its_manifests_are_yaml_without_its_secrets(server, job):
    answer = await server.get(jobs(remote(job), "manifests"))

    manifests = list(yaml.safe_load_all(answer.body))
    assert "Job" in [obj["kind"] for obj in manifests]
    assert "Secret" not in [obj["kind"] for obj in manifests]
    assert answer.body.decode().startswith("# Its Secrets, which hold the payload and the job's key:")
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"


async def test_it_is_suspended_resumed_and_cancelled(server, stage, job):
    assert (await server.post(jobs(remote(job), "suspend"))).code == 204
    await asyncio.to_thread(until, lambda: job.state.suspended)
    assert json.loads((await server.get(jobs(remote(job)))).body)["status"] == "SUSPENDED"

    assert (await server.post(jobs(remote(job), "resume"))).code == 204
    await asyncio.to_thread(until, lambda: job.state.phase is Phase.RUNNING)
    assert (await server.post(jobs(remote(job), "cancel"))).code == 204
    assert isinstance(await asyncio.to_thread(job.exception, LIMIT), JobCancelledError)

    assert "a job that wasn't cancelled" in error(await server.post(jobs(remote(job), "resume")))[1]


async def test_it_is_deleted_for_good(server, stage, job):
    assert (await server.ask("DELETE", jobs(remote(job)))).code == 204

    await asyncio.to_thread(until, lambda: not stage.left())
    assert error(await server.get(jobs(remote(job))))[0] == 404
    assert error(await server.ask("DELETE", jobs(remote(job))))[0] == 404


async def test_a_namespace_that_refuses_is_a_note(server, stage, job):
    user = stage.become(("list", "pods"))
    listed = await heard(server)

    [note] = listed["notes"]
    scope = job.info.address.rpartition("/")[0]
    assert listed["jobs"] == []
    assert note.startswith(f'jobs in {scope} can\'t be listed: user "{user}" may not list pods')


async def test_a_refusal_is_passed_on_in_its_own_words(server, stage, job):
    user = stage.become(("patch", "jobs"))
    status, message = error(await server.post(jobs(remote(job), "cancel")))

    assert status == 502
    assert message.startswith(f'user "{user}" may not patch jobs.batch in namespace "{stage.namespace}"')


async def test_a_context_that_is_in_no_kubeconfig_is_told(server, stage):
    status, message = error(await server.get(jobs("kubernetes:nowhere/ml/train-2222")))

    assert status == 502
    assert "has no context 'nowhere': choose one with --context; available: " in message


FAR = jobs("kubernetes:far/ml/train-2222")


@pytest.fixture
def hanging(folder, monkeypatch):
    """Yield the socket of a cluster that accepts requests and answers none."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        config = {
            "current-context": "far",
            "contexts": [{"name": "far", "context": {"cluster": "far", "user": "me"}}],
            "clusters": [{"name": "far", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "me", "user": {}}],
        }
        (folder / "kubeconfig").write_text(yaml.safe_dump(config))
        monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
        yield listener


async def test_a_cluster_that_hangs_holds_up_nothing_else(server, hanging):
    slow = asyncio.create_task(server.get(FAR))
    connection, _ = await asyncio.to_thread(hanging.accept)

    assert (await server.get(jobs())).code == 200
    assert error(await server.get(jobs("local:train-2222")))[0] == 404
    assert (await server.get("api/status")).code == 200
    assert not slow.done()

    hanging.close()
    connection.close()
    status, message = error(await slow)
    assert status == 504
    assert re.match(r"the cluster at http://127\.0\.0\.1:[0-9]+ doesn't answer", message)


async def test_a_cluster_that_is_not_there_is_told(server, hanging):
    hanging.close()
    status, message = error(await server.get(FAR))

    assert status == 504
    assert "doesn't answer" in message


@pytest.mark.parametrize("name", ["a login page", "items that are null", "300 MiB", "a bomb"])
async def test_what_is_no_kubernetes_api_is_told(server, folder, monkeypatch, name):
    namespaces.remember(namespaces.Scope("far", "ml"))
    with wrong.serving(folder, monkeypatch, name) as sent:
        listed = await heard(server)
        status, message = error(await server.get(FAR))
        assert (await server.get("api/status")).code == 200

    assert status == 502
    assert "check the kubeconfig, or a proxy" in message
    [note] = listed["notes"]
    assert note.startswith("jobs in far/ml can't be listed: ")
    assert sent[0] < 300 << 20  # in several lists, each tried several times


class TestLittlePatience:
    """A server with a short timeout."""

    @pytest.fixture
    def jp_server_config(self, jp_server_config):
        """Set a timeout of half a second."""
        jp_server_config["TorchJobApp"]["patience_s"] = 0.5
        return jp_server_config

    async def test_who_asks_is_told_in_the_end(self, server, hanging):
        status, message = error(await server.get(FAR))

        assert status == 504
        assert message.startswith("kubernetes:far didn't answer within 0.5 s")

    async def test_other_jobs_are_listed_all_the_same(self, server, hanging, profile):
        [note] = (await heard(server))["notes"]
        assert note.startswith(
            "jobs in far/ml can't be listed: kubernetes:far/ml (all jobs) didn't answer within 0.5 s"
        )


@pytest.fixture
def profile(monkeypatch):
    """Make the cluster the backend of the user's jobs."""
    for name, value in (("BACKEND", "kubernetes"), ("CONTEXT", "far"), ("NAMESPACE", "ml")):
        monkeypatch.setenv(f"NBTORCHJOB_{name}", value)


async def test_a_server_without_the_package_says_what_to_install(server, hanging, profile, monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes.aio", None)
    status, message = error(await server.get(FAR))
    listed = await heard(server)

    assert status == 501
    needs = "a cluster needs kubernetes.aio: pip install 'nbtorchjob[kubernetes]'"
    assert message == f"where Jupyter Server runs, {needs}"
    assert listed["notes"] == [f"jobs in far/ml can't be listed: {message}"]


class TestTending:
    """A server that tends its user's jobs, as it does by default."""

    @pytest.fixture
    def jp_server_config(self, jp_server_config):
        """Restore the default."""
        del jp_server_config["TorchJobApp"]["tend"]
        return jp_server_config

    async def test_the_next_attempt_is_made_with_every_notebook_closed(self, stage, jp_serverapp):
        part = "begin()\nif ATTEMPT == 1: fail(recoverable=True)\nwait('go')"
        job = stage.submit(part, retry=Retry(retries=1, preemptions=1, backoff=0))
        until(lambda: made(stage)[0] == [job.name, f"{job.name}-a2"])
        [lease] = stage.objects("apis/coordination.k8s.io/v1/{}/leases")
        assert lease["spec"]["holderIdentity"].startswith("Jupyter server on ")
