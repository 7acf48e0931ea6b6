"""The cases of ``make cluster``, held to the emulator wherever it can play them."""

import pytest

from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.objects.paths import NAMESPACES
from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.cluster.resources import CRDS
from tests.cluster.__main__ import row, tried
from tests.cluster.cases import CASES, NOT_TRIED
from tests.cluster.site import site

pytestmark = pytest.mark.torch

# What needs more of a host than the emulator's has: limits of memory.
UNPLAYED = {"memory that runs out"}


@pytest.fixture(scope="module")
def cluster():
    with Emulator(kinds=KINDS if CRDS.is_dir() else ("indexedjob",)) as emulator:
        yield emulator


@pytest.fixture(scope="module")
def here(cluster):
    with site(str(cluster.kubeconfig), "localhost/torch:1", 120) as here:
        yield here


@pytest.mark.parametrize("title", [title for title in CASES if title not in UNPLAYED])
def test_a_case_is_right_on_the_emulator(title, here):
    assert tried(CASES[title], here) == ""


def test_no_namespace_is_left_and_what_went_wrong_is_in_the_table(cluster):
    def wrong(here):
        raise ValueError(f"not as it\nshould be in {here.namespace}")

    def names():
        found = cluster.request("GET", f"/api/v1/{NAMESPACES.plural}")["items"]
        return {each["metadata"]["name"] for each in found if "deletionTimestamp" not in each["metadata"]}

    before = names()
    with site(str(cluster.kubeconfig), "localhost/torch:1", 5) as here:
        assert names() - before == {here.namespace}
        said = tried(wrong, here)

    assert names() == before
    why = f"ValueError: not as it should be in {here.namespace}"
    assert row("a case", 1.2, said) == f"| a case | 1 s | {why} |"
    assert not CASES.keys() & NOT_TRIED.keys()
