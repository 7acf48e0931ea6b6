import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.errors import SpecError
from nbtorchjob.runtime.facts.secret import has_password, is_secret
from nbtorchjob.spec import options
from nbtorchjob.spec.cluster import KINDS, Cluster
from nbtorchjob.spec.config import Elastic, Master, PyTorch, Worker
from nbtorchjob.spec.jobspec import BACKENDS, JobSpec
from nbtorchjob.spec.options import CellOptions, magic_line, parse
from nbtorchjob.spec.policies import CleanPodPolicy, RunPolicy

counts = st.integers(1, 1000)
words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
identifiers = st.from_regex(r"[a-z_]\w{0,8}_", fullmatch=True).filter(str.isidentifier)
policies = st.none() | st.builds(
    RunPolicy,
    st.none() | st.sampled_from(CleanPodPolicy),
    st.none() | st.integers(0, 1000),
    st.none() | counts,
    st.none() | st.integers(0, 1000),
).filter(lambda policy: policy != RunPolicy())
launches = st.builds(
    Elastic,
    st.builds(lambda low, more: f"{low}:{low + more}", counts, st.integers(0, 9)),
    counts,
    st.sampled_from(["spawn", "fork", "forkserver"]),
    counts | st.floats(0, 1000, exclude_min=True),
    st.integers(0, 1000),
    run_policy=policies,
) | st.builds(
    PyTorch,
    worker=st.builds(Worker, st.integers(0, 1000)),
    run_policy=policies,
)
clusters = st.builds(
    Cluster,
    kind=st.none() | st.sampled_from(KINDS),
    memory=st.none() | counts.map("{}Gi".format),
    gpu=st.none() | counts,
    request=st.dictionaries(st.sampled_from(["cpu", "example.com/tpu"]), counts),
    full_requests=st.booleans(),
    toleration=st.lists(st.sampled_from(["gpu", "a=b:NoExecute"])),
    mount=st.lists(st.sampled_from(["type=bind,src=/a,dst=/b", "type=volume,src=c,dst=/c,readonly"])),
    annotation=st.dictionaries(st.just("example.com/note"), words),
    pod_patch=st.none() | st.just({"spec": {"hostNetwork": True}}),
)
# Names that look secret leave the environment; Hypothesis makes some of words that it meets in the code.
names = words.filter(lambda name: name and "=" not in name and not is_secret(name))
specs = st.builds(
    JobSpec,
    launches,
    st.sampled_from(BACKENDS),
    st.none() | st.from_regex(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True),
    st.dictionaries(names, words.filter(lambda text: not has_password(text))),
    clusters,
    all_ranks=st.booleans(),
    no_locals=st.none() | st.just(True),
    no_autolog=st.none() | st.just(True),
)
cells = st.builds(
    CellOptions,
    arg=st.lists(st.tuples(identifiers, words)).map(tuple),
    out=st.none() | identifiers,
    detach=st.booleans(),
    profile=st.none() | words.filter(lambda name: name and not name.startswith("-")),
    dry_run=st.booleans(),
    quiet=st.booleans(),
)


def refusal(line, base=None):
    with pytest.raises(SpecError) as caught:
        parse(line, base or JobSpec())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@given(specs, cells)
def test_a_magic_line_says_all_that_options_can_but_for_secret_values(spec, cell):
    assert parse(magic_line(spec, cell), JobSpec()) == (replace(spec, hidden={}), cell)


def test_the_defaults_need_no_words():
    assert magic_line(JobSpec()) == ""
    assert magic_line(JobSpec(PyTorch(worker=Worker(0)))) == "--worker-replicas 0"


@pytest.mark.parametrize("base", [None, JobSpec(pool="warm"), JobSpec(Elastic(1))])
def test_a_magic_line_of_a_job_in_a_pool_says_one_node_and_not_that_none_were_chosen(base):
    assert magic_line(JobSpec(Elastic(1), pool="warm"), base=base) == "--nnodes 1 --pool warm"
    assert magic_line(JobSpec(pool="warm"), base=base) == "--pool warm"
    assert magic_line(JobSpec(Elastic(1))) == magic_line(JobSpec()) == ""


def test_a_magic_line_of_workers_has_none_of_torchruns_options():
    spec, base = JobSpec(PyTorch(worker=Worker(1))), JobSpec(Elastic(2, 4, max_restarts=3))

    line = magic_line(spec, base=base)

    assert line == "--worker-replicas 1"
    assert parse(line, base)[0] == spec


def test_a_magic_line_is_quoted():
    line = magic_line(
        JobSpec(Elastic("1:2"), env={"A": "b c"}), CellOptions(arg=(("s", "'x'"),), detach=True)
    )

    assert line == "--nnodes 1:2 --env 'A=b c' --arg 's='\"'\"'x'\"'\"'' --detach"


def test_what_stands_behind_two_dashes_is_the_cells():
    spec, cell = parse("--nnodes 2 -- 3 --lr 0.1 -- 'a b'", JobSpec())

    assert (spec.launch.max_nodes, cell.argv) == (2, ("3", "--lr", "0.1", "--", "a b"))
    assert parse(magic_line(spec, cell), JobSpec()) == (spec, cell)


def test_every_flag_lands_in_its_field():
    spec, cell = parse(
        "--nnodes 1:2 --nproc-per-node 2 --max-restarts 3 --start-method fork --monitor-interval 0.5 "
        "--active-deadline-seconds 60 --ttl-seconds-after-finished 0 --clean-pod-policy all "
        "--backoff-limit 4 --backend local --name mine --env A=1 --env B=x=y --all-ranks "
        "--arg lr=0.1 --arg 'name=\"a b\"' -o out -d -p big --dry-run --quiet",
        JobSpec(),
    )

    policy = RunPolicy(CleanPodPolicy.ALL, 0, 60, 4)
    launch = Elastic("1:2", 2, "fork", 0.5, 3, run_policy=policy)
    assert spec == JobSpec(launch, "local", "mine", {"A": "1", "B": "x=y"}, all_ranks=True)
    arg = (("lr", "0.1"), ("name", '"a b"'))
    assert cell == CellOptions(arg=arg, out="out", detach=True, profile="big", dry_run=True, quiet=True)


def test_every_flag_of_a_cluster_lands_in_its_field():
    spec, _ = parse(
        "--kind volcano --context dev --namespace team --image a:1 --cpu 4 --memory 8Gi --gpu 2 "
        "--gpu-resource amd.com/gpu --device vpc.amazonaws.com/efa=1 --limit ephemeral-storage=9G "
        "--request cpu=1 --full-requests --shm 2Gi --queue q --priority-class high --service-account me "
        "--workload-priority urgent "
        "--image-pull-secret one --image-pull-secret two --node-selector disk=ssd --toleration gpu "
        "--label team=a --annotation note='a b' --mount type=volume,src=data,dst=/data --package 'a>=1' "
        "--storage s3://bucket/jobs --pod-patch '{spec: {hostNetwork: true}}' --runtime torch "
        "--network-policy --run-as 1000:100",
        JobSpec(),
    )

    assert spec.package == ("a>=1",)
    assert spec.cluster == Cluster(
        kind="volcano",
        context="dev",
        namespace="team",
        image="a:1",
        cpu="4",
        memory="8Gi",
        gpu=2,
        gpu_resource="amd.com/gpu",
        device={"vpc.amazonaws.com/efa": "1"},
        limit={"ephemeral-storage": "9G"},
        request={"cpu": "1"},
        full_requests=True,
        shm="2Gi",
        queue="q",
        priority_class="high",
        workload_priority="urgent",
        service_account="me",
        run_as="1000:100",
        network_policy=True,
        image_pull_secret=("one", "two"),
        node_selector={"disk": "ssd"},
        toleration=("gpu",),
        label={"team": "a"},
        annotation={"note": "a b"},
        mount=("type=volume,src=data,dst=/data",),
        storage="s3://bucket/jobs",
        pod_patch='{"spec": {"hostNetwork": true}}',
        runtime="torch",
    )


def test_lists_and_pairs_are_added_to_what_the_base_has():
    base = JobSpec(cluster=Cluster(toleration=["gpu"], label={"a": "1"}), package=["a"])

    spec, _ = parse("--toleration spot --toleration gpu --label b=2 --package b", base)

    assert spec.cluster == Cluster(toleration=["gpu", "spot"], label={"a": "1", "b": "2"})
    assert spec.package == ("a", "b")


def test_only_given_options_replace_what_the_base_says():
    base = JobSpec(Elastic(2, 4, max_restarts=3), name="kept", env={"A": "1", "B": "1"}, all_ranks=True)

    spec, _ = parse("--nnodes=3 --env B=2", base)

    launch = Elastic(3, 4, max_restarts=3)
    assert spec == JobSpec(launch, name="kept", env={"A": "1", "B": "2"}, all_ranks=True)
    assert parse("", base) == (base, CellOptions())


def test_the_last_of_a_repeated_option_counts():
    assert parse("--nnodes 2 --nnodes 3", JobSpec())[0].launch == Elastic(3)


def test_worker_replicas_select_pytorch():
    policy = RunPolicy(backoff_limit=1)
    old = JobSpec(PyTorch(Master(image="mine"), Worker(1, image="mine"), policy))

    assert parse("--worker-replicas 2", JobSpec(Elastic(4, 4)))[0].launch == PyTorch(worker=Worker(2))
    assert parse("--worker-replicas 2", old)[0].launch == PyTorch(
        Master(image="mine"), Worker(2, image="mine"), policy
    )


def test_torchruns_options_select_elastic():
    policy = RunPolicy(backoff_limit=1)
    base = JobSpec(PyTorch(worker=Worker(1), run_policy=policy))

    assert parse("--nnodes 2", base)[0].launch == Elastic(2, run_policy=policy)


@pytest.mark.parametrize("launch", [Elastic(2), PyTorch(worker=Worker(1))])
def test_run_policy_options_keep_the_launch(launch):
    spec, _ = parse("--backoff-limit 2", JobSpec(launch))

    assert type(spec.launch) is type(launch)
    assert spec.launch.max_nodes == 2
    assert spec.launch.run_policy == RunPolicy(backoff_limit=2)


@pytest.mark.parametrize(
    "flag",
    [
        "--nnodes 1",
        "--nproc-per-node 1",
        "--max-restarts 1",
        "--start-method fork",
        "--monitor-interval 1",
    ],
)
def test_worker_replicas_exclude_torchruns_options(flag):
    assert refusal(f"--worker-replicas 1 {flag}") == (
        f"--worker-replicas can't be given with {flag.split()[0]}"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--node 2", "unknown option --node; did you mean --nnodes?"),
        ("--nnod=2", "did you mean --nnodes"),
        ("--timeout 60", "did you mean --active-deadline-seconds?"),
        ("--ttl 60", "did you mean --ttl-seconds-after-finished?"),
        ("--k8s", "did you mean --backend kubernetes?"),
        ("--watch", "unknown option --watch; %torchjob lists them"),
        ("--rdzv_backend etcd", "--rdzv-backend: got 'etcd', but it must be 'c10d'"),
        ("--rdzv-conf a=1", "--rdzv-conf can't be given as an option: in Python"),
        ("--master-port", "--master-port expects a value"),
        ("--backend kubernetes --nproc-per-node gpu", "a whole number, because --gpu isn't set"),
        ("--zzzzzz", "%torchjob lists them"),
        ("--help", "unknown option --help; %torchjob lists them"),
        ("-h", "unknown option -h; "),
        ("train", "unexpected argument 'train': options start with \"--\"; quote values that contain spaces"),
        ("--name a b", "unexpected argument 'b'"),
        ("--nnodes", "--nnodes expects a value: N|MIN:MAX"),
        ("--nnodes -d", "--nnodes expects a value: N|MIN:MAX"),
        ("--nnodes two", "--nnodes: got 'two'"),
        ("--max-restarts -1", "--max-restarts: got -1, but it must be a whole number, 0 or more"),
        ("--max-restarts 1.5", "--max-restarts: got '1.5'"),
        ("--worker-replicas x", "--worker-replicas: got 'x'"),
        ("--monitor-interval soon", "--monitor-interval: got 'soon'"),
        ("--monitor-interval inf", "--monitor-interval: got inf"),
        ("--clean-pod-policy x", "--clean-pod-policy: got 'x', but it must be 'None' or 'All' or 'Running'"),
        ("--backend moon", "--backend: got 'moon', but it must be 'local' or 'kubernetes'"),
        ("--name 3A", "--name: got '3A', but it must be a letter first"),
        ("--env A", "--env: got 'A', but it must be NAME=VALUE"),
        ("--env =1", "--env: got '=1', but it must be NAME=VALUE"),
        ("--cpu two", "--cpu: got 'two', but it must be an amount above 0"),
        ("--gpu many", "--gpu: got 'many'"),
        ("--toleration a:Never", "--toleration: got 'a:Never'"),
        ("--mount type=nfs", "--mount: got 'type=nfs', but it must be type=bind or"),
        ("--all-ranks=1", "--all-ranks can't be given a value"),
        ("--out 1a", "--out: got '1a', but it must be a Python name"),
        ("-o class", "--out: got 'class'"),
        ("--arg a-b=1", "--arg: got 'a-b'"),
        ("--profile ''", "--profile: got ''"),
        ("--name 'a", 'options: got "--name \'a", but it must be words with closed quotes'),
    ],
)
def test_a_wrong_line_is_one_line_of_error(line, message):
    assert message in refusal(line)


@given(st.text())
def test_any_line_is_understood_or_refused_in_one_line(line):
    try:
        parse(line, JobSpec())
    except SpecError as exc:
        message = str(exc)
    else:
        message = ""
    assert "\n" not in message


def test_torchruns_spellings_are_understood_and_what_has_no_effect_is_noted():
    line = "--standalone --nproc_per_node=2 --rdzv_backend c10d --master-port=1 --max_restarts 3 -t 3"
    spec, cell = options.parse(line, JobSpec())

    assert spec == JobSpec(Elastic(nproc_per_node=2, max_restarts=3))
    assert [note.partition(":")[0] for note in cell.notes] == [
        "--standalone, --rdzv-backend, --master-port have no effect",
        "-t has no effect",
    ]


@pytest.mark.parametrize(
    ("line", "visible", "ranks"),
    [
        ("--nproc-per-node auto", "", os.cpu_count()),
        ("--nproc-per-node cpu", "0,1", os.cpu_count()),
        ("--nproc-per-node auto", "4,5,6", 3),
        ("--nproc-per-node gpu", "4,-1,6", 1),
        ("--nproc-per-node gpu", "0,1,x", 2),
        ("--nproc-per-node auto", "NoDevFiles", os.cpu_count()),
        ("--nproc-per-node auto", "0,0", os.cpu_count()),
        ("--nproc-per-node gpu", "GPU-27e3c1a4-1111-4c22, GPU-8932f937-d72c-4106", 2),
        ("--nproc-per-node gpu --gpu 8 --backend kubernetes", "", 8),
        ("--nproc-per-node auto --cpu 6 --backend kubernetes", "0", 6),
        ("--nproc-per-node cpu --cpu 4000m --backend kubernetes", "0", 4),
        ("--nproc-per-node auto --cpu 29.5 --backend kubernetes", "0", 29),
        ("--nproc-per-node cpu --cpu 500m --backend kubernetes", "0", 1),
    ],
)
def test_torchruns_words_for_a_nodes_ranks_are_counted(monkeypatch, line, visible, ranks):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    spec, cell = options.parse(line, JobSpec())

    assert spec.launch.nproc_per_node == ranks
    assert cell.notes == (f"--nproc-per-node {line.split()[1]} is {ranks} here",)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--nproc-per-node gpu --cpu 8", "--gpu isn't set"),
        ("--nproc-per-node cpu --gpu 8", "--cpu isn't set"),
        ("--nproc-per-node auto", "neither --gpu nor --cpu is set"),
    ],
)
def test_a_nodes_ranks_that_cant_be_counted_name_the_resource_that_is_missing(line, why):
    message = refusal(f"{line} --backend kubernetes")

    assert message.startswith("--nproc-per-node: got ")
    assert message.endswith(f"but it must be a whole number, because {why}")


def test_help_has_every_flag_with_its_default_and_unit():
    text = options.help_text()

    for flag in options.flags():
        assert flag in text
    assert "--max-restarts N                 maximum restarts of all ranks" in text
    assert "(seconds; default 5)" in text
    assert "(spawn or fork or forkserver; default spawn)" in text
    assert max(map(len, text.splitlines())) <= 110


def test_help_begins_with_the_ten_common_options_and_tells_each_option_once():
    common, *groups = options.help_text().split("\n\n")

    flags = [line.split()[0] for line in common.splitlines()[1:]]
    assert flags[:4] == ["--nnodes", "--nproc-per-node", "--gpu", "--image"]
    assert len(flags) == 10
    rows = [line for group in (common, *groups) for line in group.splitlines()[1:]]
    assert len(rows) == len({*rows}) == len(options.TABLE)


def test_every_option_is_described_and_unique():
    flags = [flag for option in options.TABLE for flag in option.flags]

    assert sorted(flags) == sorted(set(flags))
    assert all(option.help and option.path for option in options.TABLE)
    assert all(option.metavar for option in options.TABLE if option.takes != "switch")
    assert "-o" in options.flags()
    assert "--out" in options.flags()


def test_choices_are_those_that_parse_takes():
    assert options.choices("--backend") == BACKENDS
    for value in options.choices("--clean-pod-policy"):
        spec, _ = parse(f"--clean-pod-policy {value}", JobSpec())
        assert spec.launch.run_policy == RunPolicy(clean_pod_policy=CleanPodPolicy(value))
    assert options.choices("--name") == options.choices("--unknown") == ()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--keep a --pool b", "--pool can't be given with a lab or pool, which has its own pods"),
        ("--keep a --on b", "--keep can't be given with --on: a cell either starts a lab or runs on one"),
        ("--keep a --name b", "--name can't be given with --keep, which names the job"),
        ("--keep 3!", "--keep: got '3!', but it must be a letter first"),
        ("--on a --nnodes 2 --retries 1", "--nnodes, --retries can't be given with --on a"),
        ("--on a -p fast", "--profile can't be given with --on a"),
        ("--rank 1", "--rank can't be given without --on NAME"),
        ("--push x", "--push can't be given without --on NAME"),
        ("--pull x", "--pull can't be given without --on NAME"),
        ("--on a --push 1x", "--push: got '1x', but it must be a Python name"),
        ("--idle 2h", "--idle can't be given without --keep NAME: it applies to labs"),
        ("--keep a --idle soon", "--idle: got 'soon', but it must be a duration above 0"),
    ],
)
def test_what_is_for_labs_is_refused_without_one(line, reason):
    with pytest.raises(SpecError) as refused:
        parse(line, JobSpec())

    assert str(refused.value).startswith(reason)


def test_a_lab_is_a_spec_with_a_name_and_its_line_says_so():
    spec, cell = parse("--keep lab --idle 90m --nproc-per-node 2", JobSpec())

    assert (spec.lab, spec.name, spec.idle_s, cell.keep) == (True, "lab", 5400, "lab")
    assert parse("--keep lab --idle 0", JobSpec())[0].idle_s == 0
    assert magic_line(spec) == "--keep lab --nproc-per-node 2 --idle 5400"
    assert parse("--on lab --all-ranks --rank 0,2", JobSpec())[1].rank == "0,2"


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        *((f"--swap a {other}", other.partition(" ")[0]) for other in (
            "--dry-run", "--rehearse", "--detach", "--keep b", "--on b", "--push x", "--name b", "--nnodes 2",
            "--each lr=1,2", "--out x", "--arg x=1", "--profile fast", "-- more",
        )),
        ("--nnodes 2 --swap a --dry-run", "--nnodes, --dry-run"),
    ],
)  # fmt: skip
def test_beside_swap_what_it_does_not_heed_is_refused(line, refused):
    with pytest.raises(SpecError) as refusal:
        parse(line, JobSpec())

    assert str(refusal.value).startswith(
        f"{refused} can't be given with --swap a: it changes the running job at once"
    )


def test_beside_swap_is_what_it_heeds():
    _, cell = parse("--swap a --or-back --within 5 --quiet", JobSpec())

    assert (cell.swap, cell.or_back, cell.within, cell.quiet) == ("a", True, "5", True)
