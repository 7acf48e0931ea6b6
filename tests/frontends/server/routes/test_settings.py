"""Options, profiles and the doctor through the server."""

import asyncio
import json
import sys
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from nbtorchjob import Elastic, JobSpec, Retry, RunPolicy, SpecError
from nbtorchjob.frontends.server.routes import settings
from nbtorchjob.spec import options, profiles
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import PyTorch, Worker
from nbtorchjob.spec.options import KEYS, CellOptions
from nbtorchjob.spec.overlay import overlay
from nbtorchjob.spec.policies import CleanPodPolicy
from tests.frontends.server.conftest import error, jobs
from tests.frontends.server.test_clusters import hanging, profile  # noqa: F401

API = "nbtorchjob/api"


async def told(server, path, method="GET"):
    answer = await server.ask(method, f"{API}/{path}")
    assert answer.code == 200, answer.body
    return json.loads(answer.body)


@pytest.fixture
def write(jp_root_dir):
    """Return a function that writes a profiles file into a folder of the server's root."""

    def write(text, folder="."):
        (jp_root_dir / folder).mkdir(parents=True, exist_ok=True)
        (jp_root_dir / folder / "nbtorchjob.toml").write_text(text, "utf-8")

    return write


async def test_the_options_are_a_json_schema_of_a_profile(server):
    schema = await told(server, "options")

    Draft202012Validator.check_schema(schema)
    assert list(schema["properties"]) == list(KEYS)


async def test_without_a_file_there_are_no_profiles(server):
    assert await told(server, "profiles") == {"default": None, "profiles": {}, "notes": []}


async def test_a_profile_comes_with_its_line_and_its_spec(server, write):
    write("default = 'pair'\n[profiles.pair]\nnnodes = '1:2'\n[profiles.'big one']\nmax-restarts = 3")
    answer = await told(server, "profiles")

    assert (answer["default"], list(answer["profiles"])) == ("pair", ["big one", "pair"])
    assert JobSpec.from_json(answer["profiles"]["pair"]["spec"]).launch.max_nodes == 2
    line = answer["profiles"]["big one"]["line"].removeprefix("%%torchjob ")
    assert options.parse(line, JobSpec()) == (JobSpec(), CellOptions(profile="big one"))


async def test_a_notebook_finds_the_profiles_of_its_folder_and_above(server, write):
    write("default = 'far'\n[profiles.far]\nnnodes = 2")
    write("default = 'near'\n[profiles.near]\nnnodes = 3", "a b/ü")

    async def found(path):
        answer = await told(server, f"profiles?path={path}")
        return answer["default"], [*answer["profiles"]]

    assert await found("") == await found("a%20b/other.ipynb") == ("far", ["far"])
    for path in ("a%20b/%C3%BC/train.ipynb", "/a%20b/%C3%BC/", "a%20b/%C3%BC/not/there/yet.ipynb"):
        assert await found(path) == ("near", ["far", "near"])


@pytest.mark.parametrize("served", [True, False])
async def test_profiles_are_searched_where_the_notebooks_kernel_starts(
    server, jp_serverapp, write, tmp_path, served
):
    write("[profiles.of-the-server]")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "nbtorchjob.toml").write_text("[profiles.elsewhere]")
    jp_serverapp.contents_manager.root_dir = str(tmp_path / "elsewhere")
    if served:
        jp_serverapp.kernel_manager.root_dir = str(tmp_path / "elsewhere")

    answer = await told(server, "profiles?path=train.ipynb")

    assert [*answer["profiles"]] == ["elsewhere" if served else "of-the-server"]


async def test_a_profile_that_can_not_be_used_is_told_beside_the_others(server, write):
    write("[profiles.bad]\nnnodes = 0\n[profiles.good]\nnnodes = 2")
    answer = await told(server, "profiles")

    assert list(answer["profiles"]) == ["good"]
    [note] = answer["notes"]
    assert note.endswith(
        "[profiles.bad] nnodes: got 0, but it must be a whole number, 1 or more, or 'MIN:MAX' with MIN no "
        "more than MAX"
    )


@pytest.mark.parametrize("text", ["default = ", "\0", "profiles = 1", "nodes = 2", "[profiles]\na = 1"])
@pytest.mark.parametrize(("method", "route"), [("GET", "profiles"), ("POST", "doctor")])
async def test_a_file_that_is_wrong_is_told(server, write, text, method, route):
    write(text)
    status, message = error(await server.ask(method, f"{API}/{route}"))

    assert status == 409
    assert "nbtorchjob.toml" in message


@pytest.mark.parametrize(("method", "route"), [("GET", "profiles"), ("POST", "doctor")])
@pytest.mark.parametrize("path", ["..", "../..", "a/../../b", "/..", "%2e%2e/x", "a/..%2f..%2fetc"])
async def test_a_path_leads_nowhere_else(server, jp_root_dir, method, route, path):
    (jp_root_dir.parent / "nbtorchjob.toml").write_text("default = 'secret'\n[profiles.secret]")
    status, message = error(await server.ask(method, f"{API}/{route}?path={path}"))

    assert status == 400
    assert message.startswith("path: got ")


@pytest.mark.parametrize("path", ["%00", "%0a", "a" * 5000, "~", "//etc//", "$HOME", "C:%5C", "%EF%BC%8E."])
async def test_a_path_that_is_not_there_finds_what_is_above(server, write, path):
    write("default = 'far'\n[profiles.far]")

    assert (await told(server, f"profiles?path={path}"))["default"] == "far"


async def test_the_doctor_looks_at_what_a_job_on_this_machine_would_need(server, state_dir):
    findings = (await told(server, "doctor", "POST"))["findings"]

    assert {*findings[0]} == {"good", "text", "remedy"}
    assert f"jobs are kept in {state_dir / 'jobs'}" in [finding["text"] for finding in findings]
    assert (await server.get(f"{API}/doctor")).code == 405  # it writes into stores: a link must not start it


async def test_the_doctor_takes_the_profile_that_is_named_else_the_default(server, write, hanging):  # noqa: F811
    hanging.close()
    write("default = 'here'\n[profiles.here]\n[profiles.there]\nbackend = 'kubernetes'\ncontext = 'far'", "a")

    default_answer = await server.post(f"{API}/doctor?path=a/b.ipynb")
    named_answer = await server.post(f"{API}/doctor?path=a/b.ipynb&profile=there")
    assert default_answer.code == 200
    assert b"doesn't answer" in named_answer.body


async def test_a_profile_that_there_is_not_is_refused(server, write):
    write("[profiles.pair]")
    status, message = error(await server.post(f"{API}/doctor?profile=pear"))

    assert status == 400
    assert message.startswith("unknown profile pear; did you mean pair? (searched: ")


async def test_a_doctor_who_waits_for_a_cluster_holds_up_nothing_else(server, hanging, profile):  # noqa: F811
    slow = asyncio.create_task(server.post(f"{API}/doctor"))
    connection, _ = await asyncio.to_thread(hanging.accept)

    assert (await server.get(f"{API}/profiles")).code == 200
    assert error(await server.get(jobs("local:train-2222")))[0] == 404
    assert (await server.get("api/status")).code == 200
    assert not slow.done()

    hanging.close()
    connection.close()
    assert b"doesn't answer" in (await slow).body


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROFILE = Draft202012Validator(settings.profile())


def test_it_is_a_json_schema_with_a_property_for_every_key_of_a_profile():
    Draft202012Validator.check_schema(settings.profile())

    assert list(settings.profile()["properties"]) == list(KEYS)
    assert all(option["description"] for option in settings.profile()["properties"].values())


def test_an_option_has_its_type_default_help_group_unit_and_form():
    fields = settings.profile()["properties"]

    assert fields["monitor-interval"] == {
        "type": "number",
        "description": "interval between checks of a node's ranks",
        "default": 5.0,
        "x-group": "Launch, in torchrun's words",
        "x-unit": "seconds",
        "x-form": "S",
    }
    assert fields["start-method"]["enum"] == ["spawn", "fork", "forkserver"]
    assert (fields["nnodes"]["type"], fields["nnodes"]["x-form"]) == (["string", "integer"], "N|MIN:MAX")
    assert fields["memory"]["type"] == ["string", "number"]
    assert fields["limit"]["additionalProperties"] == {"type": ["string", "number"]}
    assert fields["pod-patch"]["type"] == ["string", "object"]
    assert fields["mount"] == {
        "type": "array",
        "items": {"type": "string"},
        "description": "a mount: type=bind|volume|device,src=…,dst=…[,readonly]",
        "x-group": "Kubernetes",
        "x-form": "SPEC",
    }


@pytest.mark.parametrize("key", KEYS)
def test_to_give_the_default_changes_nothing(key):
    default = settings.profile()["properties"][key].get("default")
    base = JobSpec(retry=Retry())

    assert default is None or overlay(base, {KEYS[key]: default}, lambda option: option.key) == base


VALUES: tuple[Any, ...] = (
    *(0, 1, 7, -1, 2.5, True, False, "", "a", "2", "1:2", "8Gi", "s3://bucket/jobs", "unlimited"),
    *("type=bind,src=/data,dst=/data", "a/b=c:NoSchedule", "spec: {}", [], ["a"], [1], {}, {"a": "b"}),
    *({"a": 1}, {"example.com/a": 1}, {"example.com/a": "2"}, {"spec": {}}, {"spec": 1}),
)


@pytest.mark.parametrize("key", KEYS)
def test_what_a_profile_takes_is_never_refused(key):
    # A profile also takes a number in quotes, but the schema needn't offer that.
    values = [value for value in VALUES if not (KEYS[key].takes == "int" and isinstance(value, str))]
    profile_values = [value for value in values if _taken(key, value)]

    assert [value for value in profile_values if not PROFILE.is_valid({key: value})] == []


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
    file = profiles.save("mine", spec, cwd=folder)
    table = tomllib.loads(file.read_text())["profiles"]["mine"]

    assert list(PROFILE.iter_errors(table)) == []


def test_a_key_that_is_no_option_is_refused():
    assert not PROFILE.is_valid({"nodes": 2})
