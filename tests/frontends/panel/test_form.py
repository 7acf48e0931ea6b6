"""Entries of the form: every option, every error, and the words that make the same spec again."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbtorchjob
from nbtorchjob import submission
from nbtorchjob.errors import SpecError
from nbtorchjob.frontends.panel import form
from nbtorchjob.spec import options, profiles
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic, Master, PyTorch, Unsaid, Worker
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.options import KEYS
from nbtorchjob.spec.policies import RestartPolicy, Retry, RunPolicy
from tests.spec.test_options import specs as specs_without_retries

LOCAL, CLUSTER = JobSpec(), JobSpec(backend="kubernetes")
SAMPLES = {
    "backend": "kubernetes",
    "name": "mine",
    "env": ("A=1", "B=x=y z"),
    "data": ("digits=./digits",),
    "ship": ("configs", "tokenizer.json"),
    "all-ranks": True,
    "carry-settings": True,
    "hang-after": "30",
    "grace": "90",
    "debug-wait": "60",
    "hold": True,
    "or-own": True,
    "pool": "warm",
    "strict": True,
    "no-locals": True,
    "no-autolog": True,
    "nnodes": "1:4",
    "nproc-per-node": "2",
    "start-method": "fork",
    "monitor-interval": "0.5",
    "max-restarts": "3",
    "worker-replicas": "2",
    "clean-pod-policy": "Running",
    "ttl-seconds-after-finished": "60",
    "active-deadline-seconds": "3600",
    "backoff-limit": "4",
    "start-within": "600",
    "leave-before": "60",
    "retries": "2",
    "preemptions": "unlimited",
    "retry-backoff": "2.5",
    "retry-on": ("OSError", "mine.Error"),
    "on-demand-last": True,
    "kind": "volcano",
    "context": "dev",
    "namespace": "team",
    "image": "torch:2",
    "cpu": "500m",
    "memory": "8Gi",
    "gpu": "2",
    "gpu-resource": "amd.com/gpu",
    "device": ("rdma/hca=1",),
    "limit": ("ephemeral-storage=9G",),
    "request": ("cpu=1",),
    "full-requests": True,
    "shm": "2Gi",
    "queue": "q",
    "priority-class": "high",
    "workload-priority": "urgent",
    "service-account": "me",
    "run-as": "1000:100",
    "network-policy": True,
    "image-pull-secret": ("one", "two"),
    "env-from": ("secret/mine",),
    "secret-env": ("HOME",),
    "node-selector": ("disk=ssd",),
    "toleration": ("gpu",),
    "preemptible": True,
    "spot-selector": ("spot=true",),
    "spot-toleration": ("spot",),
    "label": ("team=a",),
    "annotation": ("example.com/note=a b",),
    "mount": ("type=volume,src=data,dst=/data",),
    "package": ("einops>=0.8",),
    "requirements": ("requirements.txt",),
    "storage": "s3://bucket/jobs",
    "checkpoints": "/data/checkpoints",
    "data-cache": "/data/cache",
    "pod-patch": '{"spec": {"hostNetwork": true}}',
    "runtime": "torch",
}
BESIDE = {"preemptible": ("spot-selector",), "checkpoints": ("mount",), "data-cache": ("mount",)}


def fits(spec):
    """Accept any spec, like a backend that can do everything."""
    return []


def held(base=LOCAL, /, **changed):
    return {**form.entries(base), **{key.replace("_", "-"): entry for key, entry in changed.items()}}


def judged(base=LOCAL, /, check=fits, **changed):
    return form.judge(held(base, **changed), base, check)


@pytest.mark.parametrize("key", SAMPLES)
def test_an_entry_becomes_a_value_and_that_the_same_entry(key):
    entries = held(CLUSTER, **{field: SAMPLES[field] for field in (key, *BESIDE.get(key, ()))})
    if key == "worker-replicas":
        entries[form.LAUNCH] = "PyTorch"

    spec = form.judge(entries, CLUSTER, fits).spec

    assert spec is not None
    assert form.entries(spec)[key] == SAMPLES[key]


def test_every_option_of_a_job_has_one_field():
    shown = [o.key for section in (form.common(), *form.advanced()) for o in section.options]

    assert sorted(shown) == sorted(KEYS.keys() - {"idle"}) == sorted(SAMPLES)  # a form starts no lab
    assert form.LAUNCH not in KEYS


def test_nodes_ranks_gpus_and_the_image_come_first():
    keys = [o.key for o in form.common().options if form.shows(o, form.entries(CLUSTER))]

    assert keys[:4] == ["nnodes", "nproc-per-node", "gpu", "image"]


def test_no_option_is_on_or_filled_by_default_unless_its_default_says_so():
    for key, entry in form.entries(LOCAL).items():
        assert key == form.LAUNCH or entry in (False, (), "", KEYS[key].default)


@pytest.mark.parametrize(
    ("key", "entry", "error"),
    [
        ("name", "3 Bad Names", "got '3 Bad Names', but it must be a letter first"),
        ("env", ("A=1", "B"), "got 'B', but it must be NAME=VALUE"),
        ("nnodes", "4:1", "got '4:1', but it must be a whole number, 1 or more, or 'MIN:MAX'"),
        ("nproc-per-node", "gpu", "got 'gpu', but it must be a whole number"),
        ("monitor-interval", "soon", "got 'soon', but it must be a number of seconds above 0"),
        ("max-restarts", "-1", "got -1, but it must be a whole number, 0 or more"),
        ("active-deadline-seconds", "0", "got 0, but it must be a whole number, 1 or more"),
        ("retry-backoff", "-1", "got -1.0, but it must be a number of seconds, 0 or more"),
        ("retry-on", ("not a type",), "the name of an exception type"),
        ("cpu", "two", "got 'two', but it must be an amount above 0"),
        ("gpu", "many", "got 'many', but it must be a whole number"),
        ("device", ("hca=1",), "a name with a domain"),
        ("mount", ("type=nfs",), "but it must be type=bind or"),
        ("pod-patch", "{", "'{'"),
        ("pod-patch", "{metadata: {name: 2026-02-30}}", "JSON or YAML, or a file's path (day "),
        ("data", ("d=s3://[bucket/x",), "got 's3://[bucket/x', but it must be hf://"),
    ],
)
def test_a_wrong_entry_is_told_at_its_own_field(key, entry, error):
    verdict = judged(CLUSTER, **{key: entry})

    assert verdict.spec is None
    assert list(verdict.errors) == [key]
    assert error in verdict.errors[key]


def test_all_wrong_entries_are_told_at_once():
    verdict = judged(nnodes="x", name="3", env=("A",), retries="many")

    assert set(verdict.errors) == {"nnodes", "name", "env", "retries"}


def test_what_does_not_go_together_is_told_at_a_field():
    assert set(judged(CLUSTER, preemptible=True).errors) == {"preemptible"}
    assert set(judged(CLUSTER, checkpoints="/data").errors) == {"checkpoints"}


def test_what_belongs_to_no_field_is_told_by_name():
    spec = JobSpec(
        PyTorch(Master(restart_policy=RestartPolicy.ALWAYS), Worker(1)), "kubernetes", retry=Retry()
    )

    def check(checked):
        raise SpecError("restart_policy", "Always", "left out")

    assert judged(spec, check).errors == {"": "restart_policy: got 'Always', but it must be left out"}


def test_what_the_backend_cannot_honour_is_told_at_its_field():
    verdict = judged(check=submission.cautions, backoff_limit="2")

    assert list(verdict.errors) == ["backoff-limit"]
    assert "use --retries" in verdict.errors["backoff-limit"]


def test_what_the_backend_misses_is_told_at_its_field():
    verdict = judged(CLUSTER, submission.cautions, kind="pytorchjob")

    assert list(verdict.errors) == ["image"]


def test_what_works_but_not_well_is_a_note():
    verdict = judged(check=lambda spec: ["slow"])

    assert verdict.spec == LOCAL
    assert verdict.notes == ("slow",)


def test_fields_that_do_not_show_do_not_count():
    entries = held(CLUSTER, backend="local", image="a b", nnodes="x", worker_replicas="2", launch="PyTorch")

    assert form.judge(entries, CLUSTER, fits).spec == JobSpec(PyTorch(worker=Worker(2)))
    assert not form.shows(KEYS["image"], entries)
    assert not form.shows(KEYS["nnodes"], entries)
    assert form.shows(KEYS["worker-replicas"], entries)


def test_blanks_around_a_text_and_empty_rows_do_not_count():
    verdict = judged(nnodes=" 2 ", name="  ", env=("", "A=1"))

    assert verdict.errors.keys() == {"name"}
    assert judged(nnodes=" 2 ", env=("", "A=1")).spec == JobSpec(Elastic(2), env={"A": "1"})


def test_what_no_option_can_say_is_kept():
    elastic = JobSpec(Elastic(2, rdzv_configs={"timeout": 1}))
    pytorch = JobSpec(PyTorch(Master(image="a"), Worker(1, limits={"cpu": "1"}), RunPolicy(backoff_limit=1)))

    for spec in (elastic, pytorch):
        assert judged(spec).spec == spec
    assert judged(pytorch, backoff_limit="", worker_replicas="3").spec == JobSpec(
        PyTorch(Master(image="a"), Worker(3, limits={"cpu": "1"}))
    )


HELD = JobSpec(
    backend="kubernetes", name="My Job", env={"HF_TOKEN": "abc", "MODE": "fast"}, pool="warm", idle="30m"
)


def test_what_no_entry_shows_is_kept():
    spec = judged(HELD).spec

    assert spec == HELD
    assert (spec.title, spec.idle, spec.secrets()) == ("My Job", 1800, {"HF_TOKEN": "abc"})
    assert judged(HELD, grace="9").spec == replace(HELD, grace=9)


@pytest.mark.filterwarnings("ignore:increase_shared_mem is deprecated")
@pytest.mark.parametrize("launch", [Elastic, lambda **shared: PyTorch(worker=Worker(1), **shared)])
def test_what_flytekit_says_of_shared_memory_is_kept(launch):
    spec = JobSpec(launch(increase_shared_mem=False))

    assert judged(spec).spec == spec


def test_a_number_of_nodes_that_nobody_chose_is_an_empty_entry_and_stays_unchosen():
    assert form.entries(HELD)["nnodes"] == ""
    assert isinstance(judged(HELD).spec.launch.nnodes, Unsaid)
    for base in (HELD, replace(HELD, launch=Elastic(1))):
        assert not isinstance(judged(base, nnodes="1").spec.launch.nnodes, Unsaid)
        assert isinstance(judged(base, nnodes="").spec.launch.nnodes, Unsaid)


@pytest.mark.parametrize("nnodes", ["2", "'1:4'"])
def test_a_sites_number_of_nodes_is_shown_unless_a_pool_has_its_own(nnodes, tmp_path, monkeypatch):
    (tmp_path / "site.toml").write_text(f"[defaults]\nnnodes = {nnodes}")
    monkeypatch.setenv("NBTORCHJOB_SITE_CONFIG", str(tmp_path / "site.toml"))
    base = profiles.default()
    pooled = replace(base, pool="warm")

    assert form.entries(base)["nnodes"] == nnodes.strip("'")
    assert judged(base).spec == base
    assert form.entries(pooled)["nnodes"] == ""
    assert judged(pooled).spec == pooled
    assert "nnodes" not in form.python(pooled)


def test_a_secret_goes_with_its_row_and_another_value_takes_its_place():
    removed, replaced = judged(HELD, secret_env=()), judged(HELD, env=("HF_TOKEN=new",))

    assert (removed.spec.secret_env, removed.spec.hidden) == ((), {})
    assert replaced.spec.secrets() == {"HF_TOKEN": "new"}


def test_the_other_launch_begins_with_its_defaults():
    assert judged(JobSpec(Elastic(4)), launch="PyTorch").spec == JobSpec(PyTorch(worker=Worker(0)))
    assert judged(JobSpec(PyTorch(worker=Worker(3))), launch="Elastic").spec == LOCAL


retries = st.none() | st.builds(
    Retry,
    st.integers(0, 9),
    st.just("unlimited") | st.integers(0, 9),
    st.floats(0, 1000) | st.integers(0, 1000),
    st.lists(st.sampled_from(["OSError", "a.B"])),
    st.booleans(),
)


@st.composite
def specs(draw):
    """Draw a spec that the form can express, on either backend."""
    spec, retry = draw(specs_without_retries), draw(retries)
    if spec.backend == "local":
        spec = replace(spec, cluster=Cluster())
    policy = spec.launch.run_policy
    return spec if policy and policy.backoff_limit is not None else replace(spec, retry=retry)


@given(specs())
def test_the_form_says_every_spec(spec):
    assert form.judge(form.entries(spec), LOCAL, fits) == form.Verdict(spec)


@given(specs())
def test_the_line_makes_the_same_spec(spec):
    assert options.parse(options.magic_line(spec, base=LOCAL), LOCAL)[0] == spec
    assert form.unsaid(spec, LOCAL) == ""


@given(specs(), specs())
def test_the_line_makes_the_same_spec_of_a_default_profile_or_says_why_not(spec, base):
    line, unsaid = options.magic_line(spec, base=base), form.unsaid(spec, base)

    assert unsaid or options.parse(line, base)[0] == spec


@given(specs())
def test_the_line_can_be_laid_over_what_it_made(spec):
    assert options.parse(options.magic_line(spec, base=LOCAL), spec)[0] == spec


@given(specs())
def test_the_call_in_python_has_the_same_spec(spec):
    assert called(form.python(spec)) == spec


def called(python):
    """Return the spec that the text passes to ``submit``."""
    names, submitted = {"fn": None}, []
    imports, _, call = python.partition("\n\n")
    exec(imports, names)
    assert names["submit"] is nbtorchjob.submit
    names["submit"] = lambda fn, spec: submitted.append(spec)
    exec(call, names)
    return submitted[0]


@pytest.mark.parametrize("launch", [Elastic(), Elastic(1), Elastic(1, 2)])
def test_the_call_of_a_job_in_a_pool_says_one_node_where_it_was_chosen(launch):
    copy = called(form.python(JobSpec(launch, pool="warm"))).launch

    assert (copy, type(copy.nnodes)) == (launch, type(launch.nnodes))
    assert "nnodes" not in form.python(JobSpec(Elastic(1)))


def test_python_says_what_no_option_can():
    spec = JobSpec(
        PyTorch(Master(image="a", restart_policy=RestartPolicy.NEVER), Worker(1, limits={"cpu": "1"})),
        "kubernetes",
    )

    assert called(form.python(spec)) == spec
    assert "only Python" in form.unsaid(spec, LOCAL)


def test_the_value_of_a_secret_is_in_no_text():
    call = form.python(HELD)

    assert "secret_env=['HF_TOKEN']" in call
    assert "abc" not in call
    assert called(call) == replace(HELD, hidden={})
    assert form.unsaid(HELD, HELD) == ""
    assert form.unsaid(HELD, LOCAL) == (
        "The line omits the values of secrets: this process must have HF_TOKEN set."
    )


def test_what_only_labs_have_is_not_missed_in_the_line_of_a_job():
    assert form.unsaid(JobSpec(idle="30m"), LOCAL) == ""


def test_a_short_call_is_one_line_and_a_long_one_is_not():
    assert form.python(JobSpec(Elastic("1:2")), "train").splitlines()[-1] == (
        "job = submit(train, spec=JobSpec(launch=Elastic(nnodes='1:2')))"
    )
    long = form.python(JobSpec(Elastic("1:2"), env={"A": "x" * 40}, name="y" * 40))
    assert max(map(len, long.splitlines())) <= 88


def test_the_line_says_again_what_the_default_profile_has_otherwise():
    assert options.magic_line(LOCAL, base=JobSpec(Elastic(4, 2))) == "--nnodes 1 --nproc-per-node 1"
    assert options.magic_line(JobSpec(Elastic(2)), base=LOCAL) == "--nnodes 2"


def test_what_the_line_cannot_take_back_is_named():
    base = JobSpec(env={"A": "1"}, all_ranks=True)

    assert "env, all-ranks" in form.unsaid(LOCAL, base)


def test_nodes_that_a_line_cannot_leave_to_the_pool_are_named():
    base = JobSpec(Elastic(4), pool="warm")

    assert "has nnodes, which no option can remove" in form.unsaid(JobSpec(pool="warm"), base)
    assert form.unsaid(JobSpec(Elastic(1), pool="warm"), base) == ""
    assert form.unsaid(LOCAL, JobSpec(Elastic(4))) == ""  # a job of its own has one node either way


def test_a_profile_that_the_line_contradicts_is_told():
    base = JobSpec(Elastic(), "kubernetes", cluster=Cluster(spot_selector={"disk": "ssd"}))
    spec = JobSpec(Elastic(), "kubernetes", cluster=Cluster(node_selector={"disk": "ssd"}))

    assert form.unsaid(spec, base).startswith("The default profile conflicts with these settings: ")
