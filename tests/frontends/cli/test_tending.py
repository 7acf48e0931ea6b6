"""A tender's manifests as a kustomize base: one object per file, and only its own files replaced."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

BASE = ("tend", "--namespace", "ml", "--kustomize", "base")


def listed(folder=Path("base")):
    """Return the objects that a base lists, in its order."""
    base = yaml.safe_load((folder / "kustomization.yaml").read_text())
    return [yaml.load((folder / name).read_text(), yaml.CSafeLoader) for name in base["resources"]]


def in_order(objects):
    """Return the objects, sorted by kind, namespace and name."""
    return sorted(
        objects, key=lambda o: (o["kind"], o["metadata"].get("namespace", ""), o["metadata"]["name"])
    )


def test_a_base_has_what_the_manifests_have_each_object_in_a_file_of_its_own(command):
    done = command(*BASE)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("base/kustomization.yaml and 11 objects")

    assert listed() == [
        *yaml.load_all(command("tend", "--namespace", "ml", "--manifests").out, yaml.CSafeLoader)
    ]


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl isn't here to render it")
def test_kubectl_renders_the_base(command):
    command(*BASE)
    rendered = subprocess.run(["kubectl", "kustomize", "base"], capture_output=True, text=True, check=True)
    assert in_order(yaml.load_all(rendered.stdout, yaml.CSafeLoader)) == in_order(listed())


def test_a_base_is_written_anew_in_its_place_beside_files_of_others(command):
    command(*BASE, "--namespace", "research")
    Path("base/overlay.txt").touch()
    command(*BASE)

    assert {body["metadata"].get("namespace") for body in listed()} == {"ml", None}
    assert len([*Path("base").iterdir()]) == 13


def test_a_folder_of_something_else_is_left_as_it_is(command):
    Path("base").mkdir()
    mine = b"resources: [mine-\xe9.yaml]\n"
    Path("base/kustomization.yaml").write_bytes(mine)
    done = command(*BASE)

    assert (done.code, done.out) == (2, "")
    assert done.err == ("nbtorchjob tend: --kustomize expects an empty folder or one of its own, got base\n")
    assert Path("base/kustomization.yaml").read_bytes() == mine
