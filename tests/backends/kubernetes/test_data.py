"""Data of pods: a claim is mounted read-only at the path that the payload gives to ranks."""

from dataclasses import replace
from pathlib import Path

import pytest

from nbtorchjob import Elastic, capture, submission
from nbtorchjob.backends.kubernetes import template
from nbtorchjob.spec import config
from tests.patience import LIMIT

pytestmark = pytest.mark.torch

FILLS = """
import os
claim = os.environ["CLAIM"]
os.makedirs(claim + "/en", exist_ok=True)
with open(claim + "/en/a.txt", "w") as file:
    file.write("words")
with open(os.path.join(os.environ["SIGNS"], "claim"), "w") as file:
    file.write(claim)
begin(); value(1)
"""
READS = """
import os
from nbtorchjob import data_dir
folder = data_dir("corpus")
(folder / "a.txt").read_text(), os.listdir(folder)
"""


@pytest.fixture
def claim(stage, tmp_path, monkeypatch):
    """Make a claim, and return the path at which pods find it, in a folder that this machine has, too."""
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "corpus"}, "spec": spec}
    stage.cluster.request("POST", f"/api/v1/namespaces/{stage.namespace}/persistentvolumeclaims", body)
    for module in (config, template):
        monkeypatch.setattr(module, "CLAIMS", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "corpus"


def test_ranks_read_a_folder_of_a_claim_that_is_mounted_for_reading(stage, claim):
    mount = ["type=volume,src=corpus,dst=/claim"]
    stage.submit(mount=mount, pod_patch=stage.acting(FILLS, CLAIM="/claim")).result(LIMIT)
    # The emulator's pods see this machine's files: this link stands in for a kubelet's mount.
    claim.symlink_to(Path((stage.signs / "claim").read_text()))

    place = {"image": "localhost/torch:1", "memory": "1500Mi", "cpu": "400m"}
    spec = replace(stage.spec(Elastic(1), **place), data={"corpus": "pvc://corpus/en"})
    job = submission.submit(capture.from_cell(READS, {}), spec)

    assert job.result(LIMIT) == ("words", ["a.txt"])
    (pod,) = [pod for pod in stage.pods() if pod["metadata"]["name"].startswith(job.name)]
    (volume,) = [volume for volume in pod["spec"]["volumes"] if "persistentVolumeClaim" in volume]
    (mounted,) = [
        mount for mount in pod["spec"]["containers"][0]["volumeMounts"] if mount["name"] == volume["name"]
    ]
    assert volume["persistentVolumeClaim"] == {"claimName": "corpus", "readOnly": True}
    assert (mounted["mountPath"], mounted["readOnly"]) == (str(claim), True)
