import json
import pickle
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.errors import SpecError
from nbtorchjob.spec.cluster import KINDS, Cluster
from nbtorchjob.spec.config import Elastic, Master, PyTorch, Worker
from nbtorchjob.spec.jobspec import BACKENDS, JobSpec
from nbtorchjob.spec.policies import CleanPodPolicy, RestartPolicy, RunPolicy
from nbtorchjob.state import JobInfo

counts = st.integers(1, 1000)
words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
amounts = st.none() | st.dictionaries(st.sampled_from(["cpu", "memory"]), st.sampled_from(["64M", "8Gi"]))
policies = st.builds(
    RunPolicy,
    st.none() | st.sampled_from(CleanPodPolicy),
    st.none() | st.integers(0, 1000),
    st.none() | counts,
    st.none() | st.integers(0, 1000),
)
elastics = st.builds(
    Elastic,
    st.builds(lambda low, more: f"{low}:{low + more}", counts, st.integers(0, 9)),
    counts,
    st.sampled_from(["spawn", "fork", "forkserver"]),
    counts | st.floats(0, 1000, exclude_min=True),
    st.integers(0, 1000),
    st.dictionaries(words, words | st.integers() | st.booleans()),
    st.none(),
    st.none() | policies,
)
images = st.none() | st.sampled_from(["torch", "registry.example.com:5000/team/torch:2.13"])
replicas = (images, amounts, amounts, st.none() | st.sampled_from(RestartPolicy))
pytorches = st.builds(
    PyTorch,
    st.builds(Master, *replicas),
    st.builds(Worker, st.integers(0, 1000), *replicas),
    st.none() | policies,
)
names = st.from_regex(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True)
envs = st.dictionaries(words.filter(lambda name: name and "=" not in name), words)
clusters = st.builds(
    Cluster,
    kind=st.none() | st.sampled_from(KINDS),
    cpu=st.none() | counts,
    gpu=st.none() | counts,
    limit=amounts.map(lambda limit: limit or {}),
    full_requests=st.booleans(),
    toleration=st.lists(st.sampled_from(["gpu", "a=b:NoExecute"])),
    mount=st.lists(st.sampled_from(["type=bind,src=/a,dst=/b", "type=volume,src=c,dst=/c,readonly"])),
    pod_patch=st.none() | st.just({"spec": {"hostNetwork": True}}),
)
specs = st.builds(
    JobSpec,
    elastics | pytorches,
    st.sampled_from(BACKENDS),
    st.none() | names,
    envs,
    clusters,
    package=st.lists(st.sampled_from(["einops>=0.8", "like-here", "./mylib"]), unique=True),
    all_ranks=st.booleans(),
    no_locals=st.none() | st.booleans(),
    no_autolog=st.none() | st.booleans(),
)


@given(specs)
def test_a_spec_survives_json_and_pickle(spec):
    assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_json_is_plain_words():
    spec = JobSpec(PyTorch(worker=Worker(2), run_policy=RunPolicy(CleanPodPolicy.RUNNING)), name="a")

    record = spec.to_json()

    assert record["launch"]["kind"] == "PyTorch"
    assert record["launch"]["worker"]["replicas"] == 2
    assert record["launch"]["run_policy"]["clean_pod_policy"] == "Running"


def test_a_record_may_have_fewer_or_more_fields():
    record = JobSpec(Elastic(2), name="a").to_json()
    del record["env"], record["cluster"]
    record["launch"] |= {"later": 1}

    assert JobSpec.from_json({**record, "later": 1}) == JobSpec(Elastic(2), name="a")


def test_a_record_of_before_has_packages_in_its_cluster_settings():
    record = JobSpec(name="a").to_json()
    del record["package"], record["requirements"]
    record["cluster"] |= {"package": ["einops"]}

    assert JobSpec.from_json(record) == JobSpec(name="a", package=["einops"])


def test_a_record_of_a_deprecated_field_doesnt_warn_again():
    with pytest.warns(DeprecationWarning, match="shm"):
        spec = JobSpec(Elastic(increase_shared_mem=True))

    assert JobSpec.from_json(spec.to_json()) == spec


def test_a_launch_alone_is_a_spec():
    spec = JobSpec(Elastic(2), name="mine")

    assert JobSpec.of(None) == JobSpec()
    assert JobSpec.of(Elastic(2)) == JobSpec(launch=Elastic(2))
    assert JobSpec.of(spec) is spec


@pytest.mark.parametrize("name", ["a", "train-2", "a--b", "a" * 40, None])
def test_a_name_is_a_label(name):
    assert JobSpec(name=name).name == name


def test_the_name_that_was_given_is_kept_where_it_did_not_fit():
    spec = JobSpec(name="Lauf für Züge")
    assert spec.title == "Lauf für Züge"
    assert JobSpec.from_json(spec.to_json()) == spec
    assert replace(spec, all_ranks=True).title == "Lauf für Züge"
    assert replace(spec, name="another").title == ""
    assert "title" not in JobSpec(name="train").to_json()
    assert JobInfo("x", label="cell", spec=spec.to_json()).full_label == "“Lauf für Züge” cell"
    assert JobInfo("x", label="cell", spec=JobSpec(name="train").to_json()).full_label == "cell"


@pytest.mark.parametrize(
    ("name", "fitted"),
    [
        ("a" * 41, "a" * 25),
        ("Train the very large model of the third quarter", "train-the-very-large-mode"),
        ("Größe", "groe"),
        ("训练", "job"),
        ("1é", "e"),
    ],
)
def test_a_name_that_does_not_fit_is_made_fit_and_stays_different_from_others(name, fitted):
    short = JobSpec(name=name).name

    assert re.fullmatch(rf"{fitted}-[0-9a-f]{{6}}", str(short))
    assert short != JobSpec(name=f"{name}é").name
    assert JobSpec(name=short).name == short


@pytest.mark.parametrize("name", ["My_Job", "my job", "-my.job-", "My__Job\n"])
def test_a_name_is_cleaned_up_as_one_that_is_made_up(name):
    assert JobSpec(name=name).name == "my-job"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("name", n) for n in ("", "_", "1a", "-1", "—", 1)),
        *(("backend", b) for b in ("", "Local", "cloud", None)),
        *(("env", e) for e in (None, "A=1", {"": "1"}, {"A=B": "1"}, {"A": 1}, {"A": "\0"}, {"\0": ""})),
        ("env", {1: "1"}),
        ("all_ranks", 1),
        ("no_locals", 1),
        ("no_autolog", 1),
        *(("cluster", c) for c in (None, {}, {"gpu": 1})),
        ("launch", None),
        ("launch", Elastic),
        *(("package", names) for names in (["-e ."], ["--index-url=x"], ["a\nb"], "einops")),
        ("requirements", "requirements.txt"),
    ],
)
def test_a_spec_refuses_a_wrong_value_by_its_field(field, value):
    with pytest.raises(SpecError, match=f"^{field}: got ") as caught:
        JobSpec(**{field: value})

    assert (caught.value.field, "\n" in str(caught.value)) == (field, False)


def test_env_is_a_read_only_copy():
    env = {"A": "1"}
    spec = JobSpec(env=env)
    env["A"] = "2"

    assert spec.env == {"A": "1"}
    assert {**spec.env, "B": "2"} == {"A": "1", "B": "2"}


def test_a_backend_of_torchs_is_told_from_where_a_job_runs():
    with pytest.raises(SpecError, match=r"'local' or 'kubernetes'; .* init_process_group\('nccl'\).*'gloo'"):
        JobSpec(backend="nccl")


def test_the_ranks_of_a_lab_are_held_by_nothing():
    with pytest.raises(SpecError, match="hold can't be given with a lab, which keeps its ranks"):
        JobSpec(lab=True, hold=True)


@pytest.mark.parametrize(
    "text",
    [
        "hf://datasets/org/name?includes=*.csv",
        "hf://org/model?revision=v1",
        "hf://org/model#v1",
        "s3://bucket/key?versionId=a",
        "s3://bucket?include=*.csv&page=",
        "pvc://claim/a?include=*.csv",
    ],
)
def test_a_query_that_nobody_reads_is_refused(text):
    with pytest.raises(SpecError, match=r"no query but \?include=… and \?exclude=…"):
        JobSpec(data={"d": text}, backend="kubernetes")


@pytest.mark.parametrize(
    "text", ["hf://datasets/o/n@v1?include=*.csv&exclude=a", "https://h/f?sig=a#b", "s3://b/a#1"]
)
def test_a_query_that_is_read_stays(text):
    assert JobSpec(data={"d": text}).data == {"d": text}


@pytest.mark.parametrize(
    "address", ["h:port", "h:99999", "...", f"{'a' * 64}.org", "a host", ":80", "token@h", "user:@h"]
)
def test_a_page_on_a_host_that_can_be_none_is_refused(address):
    with pytest.raises(SpecError, match="https://HOST/FILE"):
        JobSpec(data={"d": f"https://{address}/f"})


@pytest.mark.parametrize("address", ["h", "h:8080", "[::1]:80", "bücher.example", "a_b.example."])
def test_a_page_on_any_host_is_taken(address):
    assert JobSpec(data={"d": f"https://{address}/f"}).data == {"d": f"https://{address}/f"}
