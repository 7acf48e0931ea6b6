"""The cases of ``make cluster``, run on the emulator."""

import pytest

from nbtorchjob.backends.kubernetes.objects.reading import NAMESPACES
from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.cluster.emulator import KINDS
from tests.backends.kubernetes.cluster.resources import CRDS
from tests.cluster.__main__ import RIGHT, row, tried
from tests.cluster.cases import CASES, Case
from tests.cluster.site import left, site

pytestmark = pytest.mark.torch

# Each case with one kind of job, in turn: ``python -m tests.cluster --emulator`` runs it with all of them.
# Kueue's queues take no Volcano jobs.
PAIRS = [
    (title, ("indexedjob", "pytorchjob", "trainjob", "volcano")[n % (3 if "Kueue" in title else 4)])
    for n, title in enumerate(CASES)
]
NOT_HERE = {"a tender that is a Deployment"}


@pytest.fixture(scope="module")
def cluster():
    if not CRDS.is_dir():
        pytest.skip("shared/crds lies beside the checkout only where the operators were recorded")
    with Emulator(kinds=(*KINDS, "kueue")) as emulator:
        yield emulator


@pytest.fixture(scope="module")
def here(cluster):
    with site(str(cluster.kubeconfig), "localhost/torch:1", 120, emulator=cluster) as case_site:
        yield case_site
    assert left(str(cluster.kubeconfig), 60) == []


@pytest.mark.parametrize(("title", "kind"), PAIRS)
def test_a_case_is_right_on_the_emulator(title, kind, here):
    outcome = tried(CASES[title], here, kind)

    assert outcome.partition(":")[0] == ("not here" if title in NOT_HERE else RIGHT), outcome


def test_no_namespace_is_left_and_what_went_wrong_is_in_the_table(cluster):
    def wrong(case_site, kind):
        raise ValueError(f"not as it\nshould be in {case_site.namespace}")

    def names():
        items = cluster.request("GET", f"/api/v1/{NAMESPACES.plural}")["items"]
        return {item["metadata"]["name"] for item in items if "deletionTimestamp" not in item["metadata"]}

    before = names()
    with site(str(cluster.kubeconfig), "localhost/torch:1", 5) as case_site:
        assert names() - before == {case_site.namespace}
        outcome = tried(Case("a case", wrong, once=True), case_site, "indexedjob")

    assert names() == before
    why = f"**ValueError: not as it should be in {case_site.namespace}**"
    assert row("a case", 1.2, outcome) == f"| a case | 1 s | {why} |"


def test_what_is_everybodys_isnt_touched_where_others_use_the_cluster(cluster):
    with site(str(cluster.kubeconfig), "localhost/torch:1", 60) as case_site:
        outcome = tried(CASES["a preemption by Kueue"], case_site, "indexedjob")

    assert outcome.startswith("not here: a ClusterQueue is in no namespace: set NBTORCHJOB_TEST_ALONE=1")
