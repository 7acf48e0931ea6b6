"""Secret values of environment variables: in the job's own Secret, and in none of its other objects."""

import json

import pytest

from nbtorchjob import api, capture, submission
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.commands.table import VERBS
from nbtorchjob.errors import SpecError
from nbtorchjob.spec.policies import Retry
from tests.backends.full import cluster_backend
from tests.backends.kubernetes.stage import COLLECTIONS
from tests.patience import LIMIT

VALUE = "hunter2-hunter2"
AGAIN = (
    "begin()\nif ATTEMPT == 1: fail(recoverable=True)\nvalue([os.environ['HF_TOKEN'], os.environ['MINE']])"
)


def spec_with(stage, **asked):
    spec = stage.spec(**asked)
    return type(spec)(
        spec.launch,
        "kubernetes",
        env={"HF_TOKEN": VALUE},
        secret_env=["MINE"],
        retry=asked.get("retry"),
        cluster=spec.cluster,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_secret_value_reaches_every_attempt_and_is_only_in_the_jobs_secret(
    stage, kind, tmp_path, monkeypatch
):
    monkeypatch.setenv("MINE", "mine-" + VALUE)
    spec = spec_with(stage, kind=kind, pod_patch=stage.acting(AGAIN), retry=Retry(retries=1, backoff=0))
    dry = submission.dry_run(capture.from_cell("1", {}), spec)
    job = submission.submit(capture.from_cell("1", {}), spec)

    assert job.result(LIMIT) == [VALUE, "mine-" + VALUE]
    monkeypatch.delenv("MINE")
    again = job.retry()
    assert again.result(LIMIT) == [VALUE, "mine-" + VALUE]

    row = VERBS["describe"]
    assert row.answers is not None
    [*_, described] = row.answers(row.parse([job.name]), api.attach)
    exported = "".join(path.read_text() for path in job.export(tmp_path / "exported"))
    objects = [obj for path in COLLECTIONS if "secrets" not in path for obj in stage.objects(path)]
    for text in (
        *(dry, described.text, json.dumps(described.data), str(described.html), exported),
        *(json.dumps(objects), cluster_backend().manifests(job.name)),
    ):
        assert VALUE not in text
    assert "env.HF_TOKEN" in exported


def test_a_secret_that_is_there_gives_its_keys_to_the_ranks(stage):
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "mine"},
        "data": {"FROM_THERE": "aHVudGVyMg=="},
    }
    stage.cluster.request("POST", f"/api/v1/namespaces/{stage.namespace}/secrets", body)
    part = "begin()\nvalue(os.environ['FROM_THERE'])"

    assert stage.submit(part, env_from=["secret/mine"]).result(LIMIT) == "hunter2"
    refusal = stage.refused(SpecError, part, kind="trainjob", env_from=["secret/mine"])
    assert "env_from" in str(refusal)
    with pytest.raises(SpecError, match="secret/NAME"):
        stage.spec(env_from=["mine"])
