"""Specs saved as profiles: they load again, and the file keeps what else is in it."""

import pytest
from hypothesis import HealthCheck, given, settings

from nbtorchjob.errors import SpecError
from nbtorchjob.spec import profiles, saving, toml
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import CleanPodPolicy, Elastic, Master, PyTorch, RunPolicy, Worker
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.policies import Retry
from tests.spec.test_options import specs

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
    saving.save("mine", spec, cwd=folder)

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
    file = saving.save("mine", spec, cwd=folder)
    before = file.read_text()

    assert profiles.load("mine", cwd=folder) == spec
    assert saving.save("mine", spec, cwd=folder) == file
    assert file.read_text() == before


def test_comments_order_and_other_profiles_stay(file):
    saving.save("pair", JobSpec(Elastic("1:2", 4, max_restarts=3)), cwd=file.parent)

    changed = WRITTEN.replace("nnodes = 2  # or one", 'nnodes = "1:2"  # or one')
    changed = changed.replace('start-method = "fork"\n', "max-restarts = 3\n")
    assert file.read_text() == changed


def test_a_new_profile_is_put_beside_the_others(file):
    saving.save("new", JobSpec(env={"A": "1"}), cwd=file.parent)

    assert file.read_text().startswith(WRITTEN.rstrip())
    assert profiles.names(cwd=file.parent) == ("big", "new", "pair")
    assert profiles.default(cwd=file.parent) == JobSpec(Elastic(2, 4, "fork"))


def test_the_nearest_file_takes_it_and_a_new_one_where_there_is_none(file, tmp_path):
    below = file.parent / "deep" / "down"
    below.mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    assert saving.save("new", JobSpec(), cwd=below) == file
    assert saving.save("new", JobSpec(), cwd=elsewhere) == elsewhere / toml.FILE
    assert profiles.load("new", cwd=elsewhere) == JobSpec()


def test_a_link_stays_one(file, tmp_path):
    link = tmp_path / toml.FILE
    link.symlink_to(file)

    saving.save("new", JobSpec(Elastic(3)), cwd=tmp_path)

    assert link.is_symlink()
    assert profiles.load("new", cwd=file.parent) == JobSpec(Elastic(3))


@pytest.mark.parametrize(
    "spec",
    [
        JobSpec(Elastic(rdzv_configs={"timeout": 1})),
        JobSpec(PyTorch(Master(image="a"), Worker(1))),
    ],
)
def test_what_no_option_can_say_is_not_saved_silently(folder, spec):
    refused(folder, spec, "a profile holds nothing else")

    assert not list(folder.iterdir())


@pytest.mark.parametrize("name", ["", "-x"])
def test_a_name_that_could_not_be_given_is_refused(folder, name):
    with pytest.raises(SpecError, match="profile: got"):
        saving.save(name, JobSpec(), cwd=folder)


@pytest.mark.parametrize("text", ["[profiles", "profiles = 1", "[profiles]\nmine = 1"])
def test_a_file_that_holds_no_profiles_is_left_alone(folder, text):
    file = folder / toml.FILE
    file.write_text(text)

    refused(folder, JobSpec(Elastic(2)), str(file))

    assert file.read_text() == text


def refused(folder, spec, said):
    with pytest.raises(SpecError) as caught:
        saving.save("mine", spec, cwd=folder)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
