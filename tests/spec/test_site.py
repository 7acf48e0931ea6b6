"""An administrator's settings for all jobs: defaults, locks and limits."""

import os

import pytest

from nbtorchjob import api, dry_run, submission, submit, torchjob
from nbtorchjob.commands import verbs
from nbtorchjob.commands.front import ParsedArgs
from nbtorchjob.errors import SpecError
from nbtorchjob.spec import options, profiles
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic, PyTorch, Worker
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.policies import CleanPodPolicy, Retry, RunPolicy
from nbtorchjob.spec.profiles import admitted


def write(folder, text):
    path = folder / "nbtorchjob.toml"
    path.write_text(text, "utf-8")
    return path


def refusal(call, *args, **kwargs):
    with pytest.raises(SpecError) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return a function that writes the administrator's file."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setenv("NBTORCHJOB_SITE_CONFIG", str(folder / "nbtorchjob.toml"))
    return lambda text: write(folder, text)


def cluster_spec(launch=None, retry=None, **settings):
    return JobSpec(launch or Elastic(), "kubernetes", cluster=Cluster(**settings), retry=retry)


def test_a_site_has_a_file_in_the_systems_config_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "system"))
    folder = tmp_path / "system" / "nbtorchjob"
    folder.mkdir(parents=True)
    write(folder, "[defaults]\nnnodes = 2\n[profiles.far]\nnproc-per-node = 3")

    assert profiles.default().launch == Elastic(2)
    assert profiles.load("far").launch == Elastic(2, 3)


def test_a_sites_file_may_lie_in_any_of_the_systems_config_directories(tmp_path, monkeypatch):
    folders = [tmp_path / name / "nbtorchjob" for name in ("desktop", "system", "last")]
    monkeypatch.setenv("XDG_CONFIG_DIRS", os.pathsep.join(str(folder.parent) for folder in folders))
    for nodes, folder in enumerate(folders[1:], 2):
        folder.mkdir(parents=True)
        write(folder, f"[defaults]\nnnodes = {nodes}")

    assert profiles.default().launch == Elastic(2)


def test_a_sites_file_that_is_named_must_be_there(tmp_path):
    path = tmp_path / "absent.toml"

    message = refusal(admitted, JobSpec(), {"NBTORCHJOB_SITE_CONFIG": str(path)})

    assert message.startswith(f"{path}: ")


def test_a_sites_profiles_are_found_last(folder, site):
    site('default = "far"\n[profiles.far]\nnnodes = 2\n[profiles.near]\nnnodes = 3')
    write(folder, "[profiles.near]\nnnodes = 4")

    assert profiles.default(cwd=folder).launch == Elastic(2)
    assert profiles.load("near", cwd=folder).launch == Elastic(4)
    assert profiles.names(cwd=folder) == ("far", "near")


def test_a_sites_defaults_lie_beneath_profiles_the_environment_and_the_line(folder, site, monkeypatch):
    site(
        "[defaults]\nnnodes = 2\nnproc-per-node = 2\nmax-restarts = 2\nretries = 2\nenv = {A = '2', B = '2'}"
    )
    write(folder, "[profiles.mine]\nnproc-per-node = 3\nenv = {B = '3'}")
    monkeypatch.setenv("NBTORCHJOB_MAX_RESTARTS", "4")

    spec = options.parse("--retries 5", profiles.load("mine", cwd=folder))[0]

    assert spec == JobSpec(Elastic(2, 3, max_restarts=4), env={"A": "2", "B": "3"}, retry=Retry(5))
    assert admitted(spec) == spec
    assert profiles.default(cwd=folder).launch == Elastic(2, 2, max_restarts=4)


def test_a_spec_in_python_is_filled_where_it_says_nothing(site):
    site(
        """
        [defaults]
        backend = "kubernetes"
        nnodes = 4
        active-deadline-seconds = 3600
        ttl-seconds-after-finished = 60
        preemptions = 3
        no-locals = true
        namespace = "ml"
        label = {team = "vision", tier = "low"}
        toleration = ["gpu"]
        """
    )
    launch = Elastic(2, run_policy=RunPolicy(active_deadline_seconds=600))
    user_spec = cluster_spec(launch, label={"tier": "high"}, toleration=("spot",))

    spec = admitted(user_spec)

    policy = RunPolicy(ttl_seconds_after_finished=60, active_deadline_seconds=600)
    cluster = Cluster(namespace="ml", label={"team": "vision", "tier": "high"}, toleration=("spot", "gpu"))
    assert spec == JobSpec(
        Elastic(2, run_policy=policy),
        "kubernetes",
        cluster=cluster,
        retry=Retry(preemptions=3),
        no_locals=True,
    )
    assert admitted(JobSpec(no_locals=False)).no_locals is False
    assert admitted(spec) == spec


def test_what_a_site_says_of_pods_is_not_of_jobs_on_this_machine(site):
    site(
        """
        [defaults]
        namespace = "ml"
        clean-pod-policy = "All"
        active-deadline-seconds = 60
        """
    )

    bare = admitted(profiles.default())
    kubernetes_spec = admitted(options.parse("--backend kubernetes", profiles.default())[0])

    assert bare == JobSpec(Elastic(run_policy=RunPolicy(active_deadline_seconds=60)))
    assert kubernetes_spec.cluster == Cluster(namespace="ml")
    assert kubernetes_spec.launch.run_policy == RunPolicy(CleanPodPolicy.ALL, active_deadline_seconds=60)


def test_what_the_environment_says_of_pods_is_not_of_jobs_on_this_machine(site, monkeypatch):
    site("[defaults]\nimage = 'torch:1'\nnamespace = 'ml'")
    settings = {"NAMESPACE": "team", "LABEL": "a=b", "CLEAN_POD_POLICY": "All", "NPROC_PER_NODE": "2"}
    for name, value in settings.items():
        monkeypatch.setenv(f"NBTORCHJOB_{name}", value)
    base = profiles.default()

    local_spec = options.parse("--backend local", base)[0]
    assert submission.cautions(local_spec) == ()
    assert admitted(local_spec).cluster == Cluster()
    assert local_spec.launch.nproc_per_node == 2
    assert admitted(options.parse("--backend kubernetes", base)[0]).cluster.namespace == "team"
    for option in ("--namespace other", "--image torch:2", "--label c=d"):
        with pytest.raises(SpecError, match="can't be given on the local backend"):
            submission.cautions(options.parse(f"--backend local {option}", base)[0])


@pytest.mark.parametrize(
    ("text", "spec", "words"),
    [
        (
            "locked = ['active-deadline-seconds']\n[defaults]\nactive-deadline-seconds = 60",
            JobSpec(Elastic(run_policy=RunPolicy(active_deadline_seconds=61))),
            "active-deadline-seconds: got 61, but it must be 60: {path} locks it",
        ),
        (
            "locked = ['clean_pod_policy']\n[defaults]\nclean-pod-policy = 'All'",
            cluster_spec(Elastic(run_policy=RunPolicy(CleanPodPolicy.NONE))),
            "clean-pod-policy: got 'None', but it must be 'All': {path} locks it",
        ),
        (
            "locked = ['pod-patch']",
            cluster_spec(pod_patch="{spec: {hostNetwork: true}}"),
            "but it must be None: {path} locks it",
        ),
        (
            "locked = ['node-selector']\n[defaults]\nnode-selector = {pool = 'shared'}",
            cluster_spec(node_selector={"gpu": "big"}),
            "it must be {{'pool': 'shared'}}: {path} locks it",
        ),
        (
            "locked = ['backend']\n[defaults]\nbackend = 'kubernetes'",
            JobSpec(),
            "backend: got 'local', but it must be 'kubernetes': {path} locks it",
        ),
        (
            "locked = ['nnodes']",
            JobSpec(PyTorch(worker=Worker(3))),
            "nnodes: got None, but it must be 1: {path} locks it",
        ),
        (
            "locked = ['retries']",
            JobSpec(retry=Retry(1)),
            "retries: got 1, but it must be 0: {path} locks it",
        ),
        (
            "[defaults]\nactive-deadline-seconds = 60\n[limits]\nactive-deadline-seconds = 90",
            JobSpec(Elastic(run_policy=RunPolicy(active_deadline_seconds=91))),
            "active-deadline-seconds: got 91, but it must be 90 or less: {path} limits it",
        ),
        (
            "[limits]\nretries = 2",
            JobSpec(retry=Retry(3)),
            "retries: got 3, but it must be 2 or less: {path} limits it",
        ),
    ],
)
def test_what_a_site_has_locked_or_limited_is_refused_in_one_line(site, text, spec, words):
    path = site(text)

    assert words.format(path=path) in refusal(admitted, spec)


@pytest.mark.parametrize(
    ("limit", "within", "beyond", "asked"),
    [
        ("nnodes = 4", JobSpec(launch=Elastic(4)), JobSpec(launch=Elastic("2:8")), "got 8"),
        ("nnodes = 4", JobSpec(), JobSpec(launch=PyTorch(worker=Worker(replicas=4))), "got 5"),
        ("preemptions = 5", JobSpec(), JobSpec(retry=Retry(1)), "got 'unlimited'"),
        ("retry-backoff = 5", JobSpec(), JobSpec(retry=Retry(1, backoff=9)), "got 9"),
        ("idle = 3600", JobSpec(), JobSpec(lab=True, name="a"), "got 7200"),
        ("idle = 3600", JobSpec(lab=True, name="a", idle="1h"), JobSpec(lab=True, name="a", idle=0),
         "got 'unlimited'"),
        ("start-within = 600\n[defaults]\nstart-within = '5m'", JobSpec(),
         JobSpec(launch=Elastic(run_policy=RunPolicy(start_within="1h"))), "got 3600"),
    ],
)  # fmt: skip
def test_a_number_or_a_time_may_be_limited_whatever_its_spelling(site, limit, within, beyond, asked):
    path = site(f"[limits]\n{limit}")

    assert admitted(within)
    most = limit.split()[2]
    key = limit.split()[0]
    assert refusal(admitted, beyond) == f"{key}: {asked}, but it must be {most} or less: {path} limits it"


def test_what_is_locked_may_be_said_as_it_is(site):
    site(
        """
        locked = ["active-deadline-seconds", "preemptions", "namespace"]
        [defaults]
        active-deadline-seconds = 60
        namespace = "ml"
        [limits]
        active-deadline-seconds = 60
        retries = 3
        """
    )

    same = cluster_spec(Elastic(run_policy=RunPolicy(active_deadline_seconds=60)), Retry(3), namespace="ml")

    assert admitted(same) == same
    assert admitted(cluster_spec(retry=Retry(3))) == same
    assert admitted(JobSpec()).cluster == Cluster()


@pytest.mark.parametrize(
    ("mine", "sent"),
    [
        (JobSpec(env={"HF_TOKEN": "mine", "PLAIN": "mine"}), {"HF_TOKEN": "mine", "PLAIN": "mine"}),
        (JobSpec(secret_env=["HF_TOKEN", "PLAIN"]), {"HF_TOKEN": "of this process", "PLAIN": "plain too"}),
        (JobSpec(), {"HF_TOKEN": "the site's", "PLAIN": "the site's"}),
    ],
)
def test_a_specs_own_variables_outdo_the_sites_even_secret_ones(site, monkeypatch, mine, sent):
    site("""[defaults]\nenv = {HF_TOKEN = "the site's", PLAIN = "the site's"}""")
    monkeypatch.setenv("HF_TOKEN", "of this process")
    monkeypatch.setenv("PLAIN", "plain too")

    spec = admitted(mine)

    assert {**spec.env, **spec.secrets()} == sent
    assert admitted(spec) == spec
    assert admitted(spec).secrets() == spec.secrets()


@pytest.mark.parametrize(
    "spec",
    [
        JobSpec(Elastic(1, 1), debug_wait=600, no_locals=False, retry=Retry(), env={"A": "1"}),
        JobSpec(Elastic(1, 1), debug_wait=0, no_locals=True, retry=Retry(2), env={"A": "1"}),
        JobSpec(PyTorch(worker=Worker(1)), no_locals=False, retry=Retry(), env={"A": "1"}),
    ],
)
def test_a_profile_is_saved_with_what_the_site_would_change(site, folder, spec):
    site(
        "[defaults]\nnnodes = 2\nnproc-per-node = 4\ndebug-wait = 0\nno-locals = true\nretries = 2\n"
        "env = {A = '1'}"
    )
    spec = admitted(spec)

    file = profiles.save("mine", spec, cwd=folder)

    assert profiles.load("mine", cwd=folder) == spec
    assert "{}" not in file.read_text()


@pytest.mark.parametrize("defaults", ["", """[defaults]\nenv = {HF_TOKEN = "the site's"}"""])
@pytest.mark.parametrize("name", ["PLAIN", "HF_TOKEN"])
def test_locked_variables_are_locked_even_if_they_are_secret(site, defaults, name):
    path = site(f"locked = ['env']\n{defaults}")

    message = refusal(admitted, JobSpec(env={name: "mine"}))

    assert message.startswith("env: ")
    assert message.endswith(f"{path} locks it")
    assert "the site's" not in message
    assert name == "PLAIN" or "mine" not in message
    assert admitted(JobSpec()).hidden == ({"HF_TOKEN": "the site's"} if defaults else {})


@pytest.mark.parametrize("own", [True, False])
def test_a_job_with_a_backoff_limit_is_admitted_where_anything_is_locked(site, own):
    limit = "" if own else "backoff-limit = 3"
    path = site(f"locked = ['namespace', 'retries']\n[defaults]\nnamespace = 'ml'\n{limit}")
    launch = Elastic(run_policy=RunPolicy(backoff_limit=3)) if own else None

    spec = admitted(cluster_spec(launch))

    assert spec == cluster_spec(Elastic(run_policy=RunPolicy(backoff_limit=3)), namespace="ml")
    assert admitted(JobSpec()) == JobSpec()
    assert f"0: {path} locks it" in refusal(admitted, JobSpec(retry=Retry(3)))


def test_every_way_of_submitting_asks_the_site(site):
    path = site("locked = ['name']")
    spec = JobSpec(name="mine")

    ways = [
        lambda: submit(len, "", spec=spec),
        lambda: dry_run(len, "", spec=spec),
        lambda: torchjob(spec)(len)(""),
        lambda: api.doctor(spec),
        lambda: submission.cautions(spec),
        lambda: list(verbs.doctor(ParsedArgs(["--name", "mine"], {}), api.attach)),
    ]

    assert {refusal(way) for way in ways} == {f"name: got 'mine', but it must be None: {path} locks it"}


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        (
            "[defaults]\nnnode = 2",
            " [defaults]",
            "unknown option nnode; did you mean nnodes?",
        ),
        ("[defaults]\nnnodes = 0", " [defaults] nnodes", "got 0"),
        ("locked = 'nnodes'", " locked", "a list of options"),
        ("locked = [1]", " locked", "unknown option 1; %torchjob lists them"),
        ("locked = ['detach']", " locked", "unknown option detach; %torchjob lists them"),
        ("[limits]\ncpu = 4", " [limits]", "got 'cpu', but it must be one of nnodes, nproc-per-node, "),
        ("[limits]\nnnodes = '4'", " [limits] nnodes", "got '4', but it must be a number"),
        ("[limits]\nstart-within = 60", " [limits] start-within", "combined with a value in [defaults]"),
        ("[limits]\ngpu = '4'", " [limits] gpu", "a number"),
        ("[limits]\ngpu = 4", " [limits] gpu", "combined with a value in [defaults]"),
        ("nnodes = 1", "", "unknown option nnodes; expected default or [profiles.NAME]"),
    ],
)
def test_a_wrong_file_of_the_site_is_refused_by_file_and_key(site, text, where, what):
    path = site(text)

    message = refusal(admitted, JobSpec())

    assert message.startswith(f"{path}{where}: ")
    assert what in message


@pytest.mark.parametrize("text", ["locked = []", "[defaults]", "[limits]"])
def test_only_a_sites_file_says_what_holds_for_all(folder, text):
    write(folder, text)

    assert "it belongs in the site's file" in refusal(profiles.default, cwd=folder)
