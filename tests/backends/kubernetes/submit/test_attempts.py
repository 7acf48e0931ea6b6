"""The Secret that keeps a job's swaps for later attempts: its content, and its limit."""

import pytest

from nbtorchjob import SwapError, api
from nbtorchjob.backends import backend
from nbtorchjob.backends.kubernetes.payload import package
from nbtorchjob.errors import ForbiddenError
from tests.backends.kubernetes.stage import running, until

WAIT = "begin(); wait('go'); value(42)"


@pytest.fixture
def job(stage):
    """Return a job that runs, without a store for checkpoints."""
    return running(stage.submit(WAIT))


def keeper(job):
    """Return the keeper of the job's next swap, as a client has it before it sends the swap."""
    return backend("kubernetes").swap_keeper(job.info.address)


def held(stage):
    """Return the Secret's content, by key."""
    secrets = [obj for obj in stage.objects("api/v1/{}/secrets") if "-swaps-" in obj["metadata"]["name"]]
    return {key: package.value(secret, key) for secret in secrets for key in secret["data"]}


def test_swaps_are_added_and_go_with_the_job(stage, job):
    first, second = keeper(job), keeper(job)
    first.keep(1, b"one", [])
    third = keeper(job)
    third.keep(3, b"three", [1])  # the client of the second swap is slower
    second.keep(2, b"two", [])
    assert held(stage) == {"1.payload": b"one", "2.payload": b"two", "3.payload": b"three"}

    # An attempt has begun without the last two swaps, and then got a swap.
    keeper(job).keep(2, b"another", [1])
    assert held(stage) == {"1.payload": b"one", "2.payload": b"another"}
    assert api.leftovers() == []
    job.delete()
    until(lambda: not held(stage))


def test_what_has_no_room_is_refused_and_so_is_what_comes_behind_it(stage, job, monkeypatch):
    monkeypatch.setattr(package, "SECRET_BYTES", 10)
    keeper(job).keep(1, b"one", [])
    with pytest.raises(SwapError, match=r"all swaps together take 13 B, and a Secret holds 10 B; a job with"):
        keeper(job).keep(2, bytes(10), [1])
    with pytest.raises(SwapError, match="swap 2 isn't kept, and swaps must be applied in order"):
        keeper(job).keep(3, b"x", [1, 2])
    assert held(stage) == {"1.payload": b"one"}


def test_who_may_not_write_secrets_is_told(stage, job):
    stage.become(("patch", "secrets"))
    with pytest.raises(ForbiddenError, match="may not patch secrets"):
        keeper(job).keep(1, b"one", [])


def test_nodes_keep_them_beside_checkpoints_and_a_lab_keeps_none(stage, tmp_path):
    saves = running(stage.submit(WAIT, checkpoints=f"file://{tmp_path}/checkpoints"))
    assert keeper(saves) is None
