"""The termination message: the first failure of the last round, whole JSON, never above 4 KiB."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.runtime.facts.death import MOST, LastWords, cut
from nbtorchjob.runtime.facts.errors import Error, Frame

STARTED = {"event": "WorkersStarted", "round": 1}


def failed(rank, time, kind="ValueError", message="no"):
    return {"event": "RankFailed", "rank": rank, "time": time, "error": Error(kind, message).to_json()}


def told(path, *records):
    words = LastWords(str(path))
    for record in records:
        words.note(record)
    return path.read_bytes() if path.exists() else b""


def test_the_first_failure_by_time_is_kept_however_late_it_is_told(folder):
    words = told(folder / "log", STARTED, failed(1, 7.0), failed(0, 5.0), failed(2, 6.0))
    assert json.loads(words)["rank"] == 0


def test_a_collective_that_complains_first_gives_way_to_the_rank_that_broke_it(folder):
    words = told(folder / "log", failed(1, 5.0, "torch.distributed.DistBackendError"), failed(0, 6.0))
    assert json.loads(words)["rank"] == 0


def test_workers_that_start_again_make_it_empty(folder):
    assert told(folder / "log", failed(1, 5.0), STARTED) == b""


def test_a_success_leaves_the_file_alone(folder):
    assert told(folder / "log", STARTED, {"event": "ValueReady"}) == b""


def test_without_a_file_nothing_happens(folder):
    LastWords(None).note(failed(0, 1.0))
    LastWords(str(folder / "no" / "folder")).note(failed(0, 1.0))


texts = st.text(max_size=60).flatmap(lambda text: st.integers(0, 300).map(lambda n: text * n))
errors = st.recursive(
    st.none(),
    lambda inner: st.builds(
        Error,
        type=st.text(max_size=30),
        message=texts,
        frames=st.lists(
            st.builds(
                Frame,
                st.text(max_size=99),
                st.integers(1, 9),
                st.text(),
                variables=st.just(()) | texts.map(lambda text: (("x", text),)),
            )
        ).map(tuple),
        notes=st.lists(texts, max_size=3).map(tuple),
        cause=inner,
    ),
    max_leaves=5,
)


@given(errors)
def test_any_failure_fits_and_stays_json(error):
    record = {"event": "RankFailed", "rank": 3, "time": 1.5, "error": error.to_json() if error else None}
    raw = cut(record)
    assert len(raw) <= MOST
    assert json.loads(raw)["rank"] == 3


@pytest.mark.parametrize("length", [10, 5000])
def test_as_much_as_fits_is_kept(length):
    frames = tuple(Frame("cell", number, "f", "x = 1") for number in range(40))
    error = Error("ValueError", "m" * length, frames, cause=Error("KeyError", "k"))
    kept = json.loads(cut({"event": "RankFailed", "error": error.to_json()}))["error"]
    assert kept["frames"][-1]["lineno"] == 39
    assert kept["message"].startswith("m" * min(length, 1000))
