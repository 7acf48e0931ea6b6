"""A further kind of job is a module or folder, and one line: here a made-up kind in a copy of the package."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import nbtorchjob
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.machine import folders
from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.cluster.resources import Resource
from tests.programs import program

PACKAGE = Path(nbtorchjob.__file__).parent
HERE = Path(__file__).parent
LIST = Path("spec/cluster/__init__.py")
FOLDERS = Path("backends/kubernetes/kinds")
NAME = "crew"
CREWS = Resource("crews.example.org", "v1", "crews", "Crew", subresources=("status",))
LANDED = {
    "type": "Landed",
    "status": "True",
    "reason": "AllAshore",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Return the folder of a copy of the package, with the kind's folder and line added."""
    root = tmp_path_factory.mktemp("fifth")
    copy = root / "nbtorchjob"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "labextension"))
    shutil.copytree(HERE / NAME, copy / FOLDERS / NAME, ignore=shutil.ignore_patterns("__pycache__"))
    lines = (copy / LIST).read_text()
    (copy / LIST).write_text(re.sub(r"(?m)^KINDS = \(", f'KINDS = ("{NAME}", ', lines))
    return root


@pytest.fixture(scope="module")
def cluster():
    """Yield a cluster with the kind's operator and no other."""
    with Emulator(kinds=("indexedjob",), more=[CREWS]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def said(package, cluster, tmp_path_factory):
    """Return a user's views of a job of that kind, from its choice to its end."""
    folder = tmp_path_factory.mktemp("job")
    namespace = cluster.namespace("crews")
    path = f"/apis/{CREWS.api_version}/namespaces/{namespace}/{CREWS.plural}/train"
    places = {
        "PYTHONPATH": f"{package}{os.pathsep}{Path(__file__).parents[4]}",
        "KUBECONFIG": str(cluster.kubeconfig),
        folders.STATE: str(folder / "state"),
    }
    with subprocess.Popen(
        program("kind", NAME, namespace, folder / "exported"),
        env={**os.environ, **places},
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        views = heard(running)
        views["suspended"] = cluster.request("PATCH", path, {"spec": {"roster": ["ada", "bob"]}})["spec"]
        views["export"] = heard(running, "go on")
        cluster.request("PATCH", f"{path}/status", {"status": {"conditions": [LANDED]}})
        views["end"] = heard(running, "go on")
    assert running.returncode == 0
    return views


def heard(running, line=""):
    """Return the next line that a program prints, after sending it a line if there is one."""
    if line:
        running.stdin.write(f"{line}\n")
        running.stdin.flush()
    return json.loads(running.stdout.readline())


def one(findings, start):
    (match,) = [finding for finding in findings if finding[0].startswith(start)]
    return match


def test_it_can_be_chosen(said):
    assert said["choices"] == [NAME, *KINDS]
    assert f"the job would be a Crew (--kind {NAME})" in said["chosen"]


def test_its_manifest_is_as_it_was_written_down(said):
    path = HERE / NAME / "golden.yaml"
    if os.environ.get("GOLDEN") == "write":
        path.write_text(said["golden"])

    assert said["golden"] == path.read_text()


def test_it_is_shown_before_it_is_sent(said):
    assert "kind: Crew" in said["dry run"]
    assert "# checked by the server: namespace crews would take it" in said["dry run"]
    assert "# note: a Crew of several starts its captain first" in said["dry run"]


def test_the_doctor_knows_it(said):
    assert one(said["doctor"], f"{NAME}: ")[0] == "crew: crews.crews.example.org v1 is served"
    assert one(said["doctor"], "mind: a Crew")[0] == "mind: a Crew of several starts its captain first"
    assert one(said["doctor"], "all ")[0].endswith("permissions that a job needs are granted")


def test_it_can_be_taken_away_without_what_ties_it_to_its_pods(said):
    assert said["suspended"]["ashore"]
    assert said["suspended"]["roster"]

    crew = said["export"][-1]
    assert (crew["kind"], crew["metadata"]["name"]) == ("Crew", "train")
    assert not {"ashore", "roster"} & {*crew["spec"]}


def test_its_end_is_what_its_object_says(said):
    assert said["end"] == ["AllAshore", NAME]


def test_the_pages_of_the_documentation_have_it(said):
    can, permitted = said["pages"]

    assert "A Crew of a made-up operator (crews 0.1)" in can
    assert "| `crew` | `rosters.crews.example.org` | get | who is aboard |" in permitted


def test_where_its_operator_is_missing_it_says_how_to_install_it(said):
    assert one(said["missing"], f"{NAME}: ") == [
        "crew: crews.crews.example.org v1 is not served; it comes with crews 0.1",
        "helm install crews oci://example.org/charts/crews --version 0.1.0",
    ]


@pytest.mark.parametrize("name", KINDS)
def test_no_module_beside_its_own_asks_for_a_kinds_name(name):
    quoted = re.compile(rf"""["']{name}["']|kinds\.{name}\b|kinds import .*\b{name}\b""")
    own = PACKAGE / FOLDERS / f"{name}.py"
    paths = [
        path.relative_to(PACKAGE)
        for path in PACKAGE.rglob("*.py")
        if path != own and quoted.search(path.read_text())
    ]

    assert paths == [LIST]
