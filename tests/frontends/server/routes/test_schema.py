"""The option table as JSON Schema."""

import sys
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from nbtorchjob import Elastic, JobSpec, Retry, RunPolicy, SpecError
from nbtorchjob.frontends.server.routes import schema
from nbtorchjob.spec import saving
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import CleanPodPolicy, PyTorch, Worker
from nbtorchjob.spec.options import KEYS
from nbtorchjob.spec.overlay import overlay

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROFILE = Draft202012Validator(schema.profile())


def test_it_is_a_json_schema_with_a_property_for_every_key_of_a_profile():
    Draft202012Validator.check_schema(schema.profile())

    assert list(schema.profile()["properties"]) == list(KEYS)
    assert all(found["description"] for found in schema.profile()["properties"].values())


def test_an_option_has_its_type_default_help_group_unit_and_form():
    found = schema.profile()["properties"]

    assert found["monitor-interval"] == {
        "type": "number",
        "description": "how often a node checks its ranks",
        "default": 5.0,
        "x-group": "Launch, in torchrun's words",
        "x-unit": "seconds",
        "x-form": "S",
    }
    assert found["start-method"]["enum"] == ["spawn", "fork", "forkserver"]
    assert (found["nnodes"]["type"], found["nnodes"]["x-form"]) == (["string", "integer"], "N|MIN:MAX")
    assert found["memory"]["type"] == ["string", "number"]
    assert found["limit"]["additionalProperties"] == {"type": ["string", "number"]}
    assert found["pod-patch"]["type"] == ["string", "object"]
    assert found["mount"] == {
        "type": "array",
        "items": {"type": "string"},
        "description": "a mount: type=bind|volume|device,src=…,dst=…[,readonly]",
        "x-group": "Kubernetes",
        "x-form": "SPEC",
    }


@pytest.mark.parametrize("key", KEYS)
def test_to_give_the_default_changes_nothing(key):
    default = schema.profile()["properties"][key].get("default")
    base = JobSpec(retry=Retry())

    assert default is None or overlay(base, {KEYS[key]: default}, lambda option: option.key) == base


VALUES: tuple[Any, ...] = (
    *(0, 1, 7, -1, 2.5, True, False, "", "a", "2", "1:2", "8Gi", "s3://bucket/jobs", "unlimited"),
    *("type=bind,src=/data,dst=/data", "a/b=c:NoSchedule", "spec: {}", [], ["a"], [1], {}, {"a": "b"}),
    *({"a": 1}, {"example.com/a": 1}, {"example.com/a": "2"}, {"spec": {}}, {"spec": 1}),
)


@pytest.mark.parametrize("key", KEYS)
def test_what_a_profile_takes_is_never_refused(key):
    # A number in quotes is taken too, but nobody need offer that.
    values = [value for value in VALUES if not (KEYS[key].takes == "int" and isinstance(value, str))]
    taken = [value for value in values if _taken(key, value)]

    assert [value for value in taken if not PROFILE.is_valid({key: value})] == []


@pytest.mark.parametrize("key", KEYS)
def test_what_is_of_another_type_is_refused(key):
    wrong = [None, *([1, "a"] if KEYS[key].repeated else [["a"]])]

    assert [value for value in wrong if PROFILE.is_valid({key: value})] == []


def _taken(key, value):
    try:
        overlay(JobSpec(), {KEYS[key]: value}, lambda option: option.key)
    except SpecError:
        return False
    return True


@pytest.mark.parametrize(
    "spec",
    [
        JobSpec(),
        JobSpec(
            Elastic(nnodes="1:4", nproc_per_node=2, run_policy=RunPolicy(CleanPodPolicy.ALL, 60)),
            retry=Retry(3),
        ),
        JobSpec(PyTorch(worker=Worker(replicas=3)), env={"A": "1"}, all_ranks=True),
        JobSpec(
            backend="kubernetes",
            cluster=Cluster(
                cpu="2", memory="8Gi", gpu=1, limit={"cpu": "2"}, mount=["type=volume,src=a,dst=/a"]
            ),
            retry=Retry(1, "unlimited", 0.5, ["OSError"]),
        ),
    ],
)
def test_what_a_saved_spec_says_fits(spec, folder):
    file = saving.save("mine", spec, cwd=folder)
    said = tomllib.loads(file.read_text())["profiles"]["mine"]

    assert list(PROFILE.iter_errors(said)) == []


def test_a_key_that_is_no_option_is_refused():
    assert not PROFILE.is_valid({"nodes": 2})
