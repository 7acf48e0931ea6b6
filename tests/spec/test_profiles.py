"""Specs saved as profiles: they load again, and the file keeps its other contents."""

import os
import resource
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from nbtorchjob.commands import verbs
from nbtorchjob.errors import SpecError
from nbtorchjob.spec import profiles, toml
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic, Master, PyTorch, Unsaid, Worker
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.policies import CleanPodPolicy, Retry, RunPolicy
from tests.spec.test_options import specs


@pytest.fixture
def user(tmp_path, monkeypatch):
    """Return the user's config directory."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "config" / "nbtorchjob"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def here(tmp_path, user):
    """Return a working directory below the root of a project."""
    folder = tmp_path / "project" / "notebooks"
    folder.mkdir(parents=True)
    return folder


def write(folder, text):
    path = folder / "nbtorchjob.toml"
    path.write_text(text, "utf-8")
    return path


def load(name, here, **environ):
    return profiles.load(name, cwd=here, environ=environ)


def default(here, **environ):
    return profiles.default(cwd=here, environ=environ)


def refusal(call, *args, **environ):
    with pytest.raises(SpecError) as caught:
        call(*args, **environ)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_keys_are_the_options_names(here):
    write(
        here,
        """
        [profiles.big]
        nnodes = "1:2"
        nproc-per-node = 2
        max_restarts = 3
        monitor-interval = 0.5
        clean-pod-policy = "all"
        name = "mine"
        env = {A = "1"}
        all-ranks = true
        """,
    )

    launch = Elastic("1:2", 2, "spawn", 0.5, 3, run_policy=RunPolicy(CleanPodPolicy.ALL))
    assert load("big", here) == JobSpec(launch, "local", "mine", {"A": "1"}, all_ranks=True)


def test_a_profile_can_have_workers(here):
    write(here, "[profiles.old]\nworker-replicas = 2")

    assert load("old", here).launch == PyTorch(worker=Worker(2))


def test_the_nearer_file_wins_profile_by_profile(here, user):
    write(user, "[profiles.a]\nnnodes = 4\n[profiles.c]\nnnodes = 5")
    write(here.parent, "[profiles.a]\nnnodes = 2\nmax-restarts = 1\n[profiles.b]\nnnodes = 3")
    write(here, "[profiles.a]\nnproc-per-node = 2")

    assert load("a", here).launch == Elastic(1, 2)
    assert load("b", here).launch == Elastic(3)
    assert load("c", here).launch == Elastic(5)
    assert profiles.names(cwd=here) == ("a", "b", "c")


def test_the_environment_is_laid_over_the_profile(here):
    write(here, "[profiles.a]\nnnodes = 2\nmax-restarts = 1\nenv = {A = '1', B = '1'}")

    spec = load(
        "a",
        here,
        NBTORCHJOB_NNODES="3:4",
        NBTORCHJOB_TTL_SECONDS_AFTER_FINISHED="60",
        NBTORCHJOB_ENV="B=2 'C=3 4'",
        NBTORCHJOB_ALL_RANKS="yes",
        NBTORCHJOB_BACKEND="",
        NBTORCHJOB_NODE="0",
    )

    launch = Elastic("3:4", max_restarts=1, run_policy=RunPolicy(ttl_seconds_after_finished=60))
    assert spec == JobSpec(launch, env={"A": "1", "B": "2", "C": "3 4"}, all_ranks=True)


def test_the_process_environment_is_the_default(here, monkeypatch):
    monkeypatch.chdir(here)
    monkeypatch.setenv("NBTORCHJOB_NNODES", "2")
    write(here, "[profiles.a]\nmax-restarts = 1")

    assert profiles.load("a").launch == Elastic(2, max_restarts=1)
    assert profiles.default().launch == Elastic(2)
    assert profiles.names() == ("a",)


def test_without_a_file_the_default_is_the_plain_spec(here):
    assert default(here) == JobSpec()
    assert default(here, NBTORCHJOB_NNODES="2") == JobSpec(Elastic(2))


def test_the_nearest_default_is_the_default(here):
    write(here.parent, 'default = "a"\n[profiles.a]\nnnodes = 2\n[profiles.b]\nnnodes = 3')
    assert default(here).launch == Elastic(2)

    write(here, "default = 'b'")
    assert default(here).launch == Elastic(3)
    assert default(here, NBTORCHJOB_PROFILE="a").launch == Elastic(2)


def test_an_unknown_profile_names_the_near_ones_and_the_files(here):
    path = write(here, "[profiles.gpu-big]\n[profiles.other]")

    message = refusal(load, "gpu-bog", here)

    assert message.startswith("unknown profile gpu-bog; did you mean gpu-big?")
    assert str(path) in message


def test_an_unknown_profile_without_files_says_where_they_could_be(here):
    assert "no nbtorchjob.toml here" in refusal(load, "a", here)
    assert "unknown profile a; available: none" in refusal(default, here, NBTORCHJOB_PROFILE="a")


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("nnodes = 1", "", "unknown option nnodes; expected default or [profiles.NAME]"),
        ("default = 3", " default", "got 3"),
        ("profiles = 3", " profiles", "got 3"),
        ("profiles.a = 3", " profiles.a", "got 3"),
        (
            "[profiles.a]\nnnode = 2",
            " [profiles.a]",
            "unknown option nnode; did you mean nnodes?",
        ),
        ("[profiles.a]\ndetach = true", " [profiles.a]", "unknown option detach; %torchjob lists them"),
        ("[profiles.a]\nnnodes = 0", " [profiles.a] nnodes", "got 0"),
        ("[profiles.a]\nnnodes = true", " [profiles.a] nnodes", "got True"),
        ("[profiles.a]\nall-ranks = 1", " [profiles.a] all-ranks", "got 1"),
        ("[profiles.a]\nenv = 'A=1'", " [profiles.a] env", "got 'A=1'"),
        ("[profiles.a]\nenv = {A = 1}", " [profiles.a] env", "(numbers in quotes)"),
        (
            "[profiles.a]\nnproc_per_node = 1\nnproc-per-node = 2",
            " [profiles.a] nproc-per-node",
            "given once",
        ),
        (
            "[profiles.a]\nworker-replicas = 1\nnnodes = 2",
            " [profiles.a] worker-replicas",
            "can't be given with",
        ),
        ("[profiles.a", "", "a readable TOML file"),
    ],
)
def test_a_wrong_file_is_refused_by_file_and_key(here, text, where, what):
    path = write(here, text)

    message = refusal(load, "a", here)

    assert message.startswith((f"{path}{where}: ", f"{path}{where} can't be "))


def test_a_file_that_isnt_text_is_refused(here):
    path = here / "nbtorchjob.toml"
    path.write_bytes(b"\xff\xfe")

    assert refusal(default, here).startswith(f"{path}: ")


def test_a_profile_describes_a_cluster(here):
    write(
        here,
        """
        [profiles.gpus]
        backend = "kubernetes"
        cpu = 8
        gpu = 1
        limit = {ephemeral-storage = "100Gi"}
        toleration = ["gpu:NoSchedule"]
        pod-patch = {spec = {hostNetwork = true}}
        """,
    )

    spec = load("gpus", here, NBTORCHJOB_TOLERATION="spot 'team=a:NoExecute'", NBTORCHJOB_LABEL="a=b")

    assert spec.backend == "kubernetes"
    assert spec.cluster == Cluster(
        cpu="8",
        gpu=1,
        limit={"ephemeral-storage": "100Gi"},
        toleration=("gpu:NoSchedule", "spot", "team=a:NoExecute"),
        label={"a": "b"},
        pod_patch='{"spec": {"hostNetwork": true}}',
    )


def test_a_profile_has_budgets_to_which_others_add(here):
    write(here, "[profiles.a]\nretries = 2\nretry-on = ['OSError']\n[profiles.b]")

    more = {"NBTORCHJOB_RETRY_ON": "ValueError", "NBTORCHJOB_PREEMPTIONS": "3"}

    assert load("a", here, **more).retry == Retry(2, 3, retry_on=("OSError", "ValueError"))
    assert load("b", here, **more).retry == Retry(0, 3, retry_on=("ValueError",))
    assert load("b", here).retry is None


def test_a_list_in_a_profile_is_a_list(here):
    write(here, '[profiles.a]\ntoleration = "gpu"\n')

    assert "toleration: got 'gpu', but it must be a list of texts" in refusal(load, "a", here)


@pytest.mark.parametrize("line", ["mount = {src = 'a'}", "retry-on = {}", "env = ['A=1']", "label = 'a'"])
def test_a_table_is_no_list_and_a_list_no_table(here, line):
    write(here, f"[profiles.a]\n{line}\n")

    assert " must be a " in refusal(load, "a", here)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("NBTORCHJOB_NNODES", "many"),
        ("NBTORCHJOB_ALL_RANKS", "maybe"),
        ("NBTORCHJOB_ENV", "A"),
        ("NBTORCHJOB_ENV", "'A=1"),
        ("NBTORCHJOB_BACKEND", "moon"),
    ],
)
def test_a_wrong_variable_is_refused_by_its_name(here, variable, value):
    assert refusal(default, here, **{variable: value}).startswith(f"{variable}: got ")


BAD = "default = 'bad'\n[profiles.bad]\nenv = {LD_PRELOAD = '/tmp/evil.so'}"


@pytest.mark.parametrize("open_", ["the file", "its folder", "what a link leads to", "the user's config"])
def test_a_file_that_others_may_write_is_not_obeyed_but_named(here, user, tmp_path, open_):
    folder = user if open_ == "the user's config" else here.parent
    path = write(folder, BAD)
    if open_ == "what a link leads to":
        (tmp_path / "shared").mkdir()
        path.rename(tmp_path / "shared" / "real.toml")
        path.symlink_to(tmp_path / "shared" / "real.toml")
        (tmp_path / "shared").chmod(0o777)
    else:
        (path if open_ == "the file" else folder).chmod(0o777)

    assert default(here) == JobSpec()
    [note] = profiles.notes(cwd=here)
    assert note.startswith(f"{path} is ignored: it")
    assert "can be written to by others (mode 777); remove write access for others" in note
    assert note in refusal(load, "bad", here)


def test_what_is_not_obeyed_is_said_where_options_are_read(here, monkeypatch):
    path = write(here, BAD)
    path.chmod(0o666)
    monkeypatch.chdir(here)
    notes: list[str] = []

    assert verbs.parse("", notes.append)[0] == JobSpec()
    assert [line.partition(" is ignored")[0] for line in notes] == [f"Note: {path}"]


def test_a_group_of_this_user_alone_may_write(here, monkeypatch):
    path = write(here, "default = 'a'\n[profiles.a]\nnnodes = 2")
    path.chmod(0o664)
    here.chmod(0o775)
    # Whoever runs the tests may share a group with others.
    monkeypatch.setattr("nbtorchjob.machine.folders.is_private", lambda group: group == here.stat().st_gid)

    assert default(here).launch == Elastic(2)
    assert profiles.notes(cwd=here) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("what", ["the file", "its folder"])
def test_a_file_of_somebody_else_is_not_obeyed(here, what):
    path = write(here, BAD)
    os.chown(path if what == "the file" else here, 12345, -1)

    assert default(here) == JobSpec()
    assert "belongs to user 12345" in profiles.notes(cwd=here)[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_the_search_ends_where_the_owner_changes(here):
    write(here.parent.parent, BAD)
    os.chown(here.parent, 12345, -1)

    assert default(here) == JobSpec()
    assert profiles.notes(cwd=here) == []


def test_the_search_ends_with_the_home_folder(here, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(here.parent))
    write(tmp_path, BAD)
    assert default(here) == JobSpec()
    assert profiles.save("a", JobSpec(Elastic(2)), cwd=here) == here / "nbtorchjob.toml"

    write(here.parent, "default = 'b'\n[profiles.b]\nnnodes = 3")
    assert default(here).launch == Elastic(3)


def test_a_sites_file_that_others_may_write_is_refused(tmp_path):
    path = write(tmp_path, "locked = ['namespace']")
    path.chmod(0o666)

    with pytest.raises(SpecError, match="a file that only root and you can write"):
        toml.sites({toml.SITE: str(path)})


WRITTEN = """\
# Ours, since June.
default = "pair"  # see the wiki

[profiles.pair]
# two nodes are enough
nnodes = 2  # or one
nproc_per_node = 4   # as many as there are GPUs
start-method = "fork"

[profiles.big]  # by hand
nnodes = 8
"""


@pytest.fixture
def file(folder):
    file = folder / toml.FILE
    file.write_text(WRITTEN)
    return file


@given(specs)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_spec_that_options_can_say_is_loaded_as_it_was_saved(folder, spec):
    profiles.save("mine", spec, cwd=folder)

    assert profiles.load("mine", cwd=folder) == spec


@pytest.mark.parametrize(
    "spec",
    [
        JobSpec(Elastic("1:4", 2), retry=Retry(2, 3, 1.5, ["OSError"], True)),
        JobSpec(Elastic(), retry=Retry()),
        JobSpec(PyTorch(worker=Worker(0), run_policy=RunPolicy(CleanPodPolicy.NONE))),
        JobSpec(Elastic(), "kubernetes", env={"A": "b 'c' \"d\""}, cluster=Cluster(toleration=["gpu"])),
    ],
)
def test_what_was_saved_is_loaded_and_saved_again_changes_nothing(folder, spec):
    file = profiles.save("mine", spec, cwd=folder)
    before = file.read_text()

    assert profiles.load("mine", cwd=folder) == spec
    assert profiles.save("mine", spec, cwd=folder) == file
    assert file.read_text() == before


def test_comments_order_and_other_profiles_stay(file):
    profiles.save("pair", JobSpec(Elastic("1:2", 4, max_restarts=3)), cwd=file.parent)

    changed = WRITTEN.replace("nnodes = 2  # or one", 'nnodes = "1:2"  # or one')
    changed = changed.replace('start-method = "fork"\n', "max-restarts = 3\n")
    assert file.read_text() == changed


OWN = """\
[profiles.mine]
nnodes = 1
nproc_per_node = 1  # whatever the site says
idle = "30m"  # GPUs are scarce
backend = "kubernetes"
name = "My Job"
cpu = 8
env = {HF_TOKEN = "abc", MODE = "fast"}
secret-env = ["HOME"]
"""


def test_an_entry_that_means_the_same_stays_as_it_is_written(folder):
    file = write(folder, OWN)
    spec = profiles.load("mine", cwd=folder)

    profiles.save("mine", spec, cwd=folder)
    assert file.read_text() == OWN
    profiles.save("mine", replace(spec, grace=9), cwd=folder)
    assert file.read_text() == f"{OWN}grace = 9\n"


def test_a_secret_that_a_nearer_layer_names_is_this_processs(folder, monkeypatch):
    write(folder, '[profiles.mine]\nenv = {HF_TOKEN = "of the file"}\n')
    monkeypatch.setenv("HF_TOKEN", "mine")

    environ = {"NBTORCHJOB_SECRET_ENV": "HF_TOKEN"}
    assert profiles.load("mine", cwd=folder, environ={}).secrets() == {"HF_TOKEN": "of the file"}
    assert profiles.load("mine", cwd=folder, environ=environ).secrets() == {"HF_TOKEN": "mine"}


def test_the_value_of_a_secret_stays_in_the_file_beside_what_changes(folder):
    file = write(folder, OWN)
    spec = profiles.load("mine", cwd=folder)

    profiles.save("mine", replace(spec, env={"MODE": "slow"}, idle="1h"), cwd=folder)

    saved = profiles.load("mine", cwd=folder)
    assert (saved.env, saved.hidden, saved.idle) == ({"MODE": "slow"}, {"HF_TOKEN": "abc"}, 3600)
    assert 'secret-env = ["HOME"]\n' in file.read_text()


def test_the_value_of_a_secret_that_the_profile_has_not_is_not_written(folder):
    file = write(folder, OWN)

    for name, value in (("mine", "new"), ("other", "abc")):
        with pytest.raises(SpecError, match=r"HF_TOKEN.*the value of a secret isn't saved") as caught:
            profiles.save(name, JobSpec(env={"HF_TOKEN": value}), cwd=folder)
        assert value not in str(caught.value)
    assert file.read_text() == OWN
    profiles.save("other", JobSpec(secret_env=["HF_TOKEN"]), cwd=folder)
    assert profiles.load("other", cwd=folder) == JobSpec(secret_env=["HF_TOKEN"])


def test_one_node_is_saved_where_it_was_chosen(folder):
    for launch, written in ((Elastic(1), True), (Elastic(), False)):
        file = profiles.save("mine", JobSpec(launch, pool="warm"), cwd=folder)

        assert ("nnodes = 1\n" in file.read_text()) == written
        loaded = profiles.load("mine", cwd=folder).launch
        assert isinstance(loaded, Elastic)
        assert isinstance(loaded.nnodes, Unsaid) != written


def test_a_file_that_would_get_other_profiles_is_left_alone(folder):
    text = 'profiles.a.nnodes = 2\nprofiles.a.env.X = "1"\n'  # tomlkit puts the new table between the two
    file = write(folder, text)

    refused(folder, JobSpec(Elastic(3)), "each profile is a table of its own")

    assert file.read_text() == text


def test_a_new_profile_is_put_beside_the_others(file):
    profiles.save("new", JobSpec(env={"A": "1"}), cwd=file.parent)

    assert file.read_text().startswith(WRITTEN.rstrip())
    assert profiles.names(cwd=file.parent) == ("big", "new", "pair")
    assert profiles.default(cwd=file.parent) == JobSpec(Elastic(2, 4, "fork"))


def test_the_nearest_file_takes_it_and_a_new_one_where_there_is_none(file, tmp_path):
    below = file.parent / "deep" / "down"
    below.mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    assert profiles.save("new", JobSpec(), cwd=below) == file
    assert profiles.save("new", JobSpec(), cwd=elsewhere) == elsewhere / toml.FILE
    assert profiles.load("new", cwd=elsewhere) == JobSpec()


def test_a_link_stays_one(file, tmp_path):
    link = tmp_path / toml.FILE
    link.symlink_to(file)

    profiles.save("new", JobSpec(Elastic(3)), cwd=tmp_path)

    assert link.is_symlink()
    assert profiles.load("new", cwd=file.parent) == JobSpec(Elastic(3))


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_file_keeps_its_mode_and_a_new_one_gets_the_umasks(file, tmp_path, mode):
    file.chmod(mode)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    plain = elsewhere / "plain"
    plain.touch()

    new = profiles.save("new", JobSpec(), cwd=elsewhere)
    profiles.save("new", JobSpec(), cwd=file.parent)

    assert file.stat().st_mode & 0o777 == mode
    assert new.stat().st_mode == plain.stat().st_mode


def test_a_full_disk_leaves_the_file_as_it_was_and_no_other(file):
    before = file.read_text()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))

    try:
        refused(file.parent, JobSpec(Elastic(3)), "a file that can be written")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert file.read_text() == before
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize(
    "spec",
    [
        JobSpec(Elastic(rdzv_configs={"timeout": 1})),
        JobSpec(PyTorch(Master(image="a"), Worker(1))),
    ],
)
def test_what_no_option_can_say_is_not_saved_silently(folder, spec):
    refused(folder, spec, "that options can express")

    assert not list(folder.iterdir())


@pytest.mark.parametrize("name", ["", "-x"])
def test_a_name_that_could_not_be_given_is_refused(folder, name):
    with pytest.raises(SpecError, match="profile: got"):
        profiles.save(name, JobSpec(), cwd=folder)


@pytest.mark.parametrize("text", ["[profiles", "profiles = 1", "[profiles]\nmine = 1"])
def test_a_file_that_holds_no_profiles_is_left_alone(folder, text):
    file = folder / toml.FILE
    file.write_text(text)

    refused(folder, JobSpec(Elastic(2)), str(file))

    assert file.read_text() == text


def refused(folder, spec, reason):
    with pytest.raises(SpecError) as caught:
        profiles.save("mine", spec, cwd=folder)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
