"""How long collectives may wait while ranks stop in the debugger."""

import time
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from nbtorchjob.runtime.debug.patience import Patience
from nbtorchjob.runtime.facts.samples import Collective
from nbtorchjob.runtime.look import recorder


@pytest.fixture
def pending(monkeypatch):
    """Make one call pending, with a timeout of half an hour; return the object that watches its timeout."""
    call = Collective(4, "all_reduce", time.time(), done=False, timeout=1800.0)
    monkeypatch.setattr(recorder, "counts", lambda: {"0": (4, 3)})
    monkeypatch.setattr(recorder, "open_calls", lambda: [call])
    return Patience("127.0.0.1:1", 1, lambda error: None)


@pytest.mark.parametrize("by", [-3600.0, 86400.0], ids=["back", "ahead"])
def test_a_call_times_out_after_its_time_though_the_clock_is_set(by, pending, monkeypatch):
    wall, monotonic = time.time, time.monotonic
    assert pending._late() is None
    monkeypatch.setattr(time, "time", lambda: wall() + by)
    assert pending._late() is None

    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 1801)
    late = pending._late()
    assert late is not None
    assert late[0] == "all_reduce #4"


def test_who_waits_for_the_one_call_that_pends_waits_for_it_by_name(pending, monkeypatch):
    began = time.monotonic()
    with pending._within("operation", timedelta(seconds=1800)):
        monkeypatch.setattr(time, "monotonic", lambda: began + 1)
        assert pending._late() is None  # first seen a second after it began
        monkeypatch.setattr(time, "monotonic", lambda: began + 1800.5)
        late = pending._late()
    assert late is not None
    assert late[0] == "all_reduce #4"


def test_only_ranks_of_the_same_round_put_a_time_out_off():
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # a pool's, for all its jobs
    patience, peer, other = (
        Patience(f"127.0.0.1:{store.port}", round_, lambda error: None) for round_ in (8, 8, 7)
    )
    peer.installed = other.installed = True
    late = ("all_reduce #4", time.monotonic(), 1.0)

    with other.stopped(0):  # its rank may be killed meanwhile
        assert not patience._put_off(late)
        with peer.stopped(1):
            assert patience._put_off(late)
