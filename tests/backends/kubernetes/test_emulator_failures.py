"""The emulator compared with recordings of pods that fail together, and of indexes that are lost for good."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.cluster.player import Player
from tests.backends.kubernetes.cluster.resources import SHARED

FOLDER = SHARED / "recordings-2"
SCENARIOS = [
    "job/job-elastic-best",
    "job/job-elastic-lost-index-perindex-1",
    "job/job-elastic-lost-index-spare-both-succeed",
    "job/job-elastic-lost-index-then-success",
    "job/job-elastic-spare-nothing-lost",
    "job/job-elastic-two-lost-maxfailed-1",
    "job/job-retries-both-pods-fail-1",
    "job/job-retries-perindex-201-then-200",
    "job/job-retries-perindex-both-pods-fail",
]

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no recordings at {FOLDER}")


@pytest.fixture(scope="module")
def played(crds):
    """Play all scenarios at once: they sleep most of the time."""
    with Emulator(cpus=2, backoff_s=6, settle_s=0.4) as cluster, ThreadPoolExecutor(len(SCENARIOS)) as pool:
        players = {name: Player(cluster, FOLDER / name) for name in SCENARIOS}
        yield {name: (player, pool.submit(player.play)) for name, player in players.items()}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_fails_together_or_for_good_ends_as_it_was_recorded(scenario, played):
    player, history = played[scenario]

    assert player.differences(history.result()) == []
