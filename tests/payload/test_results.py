"""A rank's file becomes a value, or a sentence that explains why it can't."""

import os
import pickle
import sys
import threading
import types

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtorchjob import ResultError
from nbtorchjob.payload import results
from nbtorchjob.runtime.objects import wire
from nbtorchjob.runtime.rank import worker

KEY = b"k" * 32

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.booleans(), inner)
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("values") / "rank-0.value"


def written(path, value, dump=worker.dump):
    wire.write_value(str(path), value, dump, KEY)
    return results.FetchedValue(path, KEY)


def refusal(fetched):
    with pytest.raises(ResultError) as caught:
        results.load(fetched, "swift-otter")
    message = str(caught.value)
    assert "\n" not in message
    return message


@settings(deadline=None)
@given(value=plain)
def test_plain_data_comes_home_as_it_was(path, value):
    copy = results.load(written(path, value), "swift-otter")

    assert copy == value
    assert type(copy) is type(value)


def test_a_big_tensor_is_mapped_and_may_be_changed(path):
    value = results.load(written(path, torch.arange(100_000.0)), "swift-otter")
    value[0] = 5
    again = results.load(results.FetchedValue(path, KEY), "swift-otter")

    assert (value[0], again[0]) == (5, 0)


def test_a_value_signed_by_another_key_is_never_unpickled(path):
    class Evil:
        def __reduce__(self):
            return pytest.fail, ("it was unpickled",)

    fetched = written(path, Evil(), lambda value, _: pickle.dumps(value))

    message = refusal(results.FetchedValue(fetched.path, b"x" * 32))

    assert "can't be trusted" in message
    assert "signature" in message


@pytest.mark.parametrize(
    "other",
    [(b"x" * 32, "1.5", 2, 0), (KEY, "1.6", 2, 0), (KEY, "1.5", 1, 0), (KEY, "1.5", 2, 1)],
    ids=["another key", "another job, with the same key", "another round", "another rank"],
)
def test_a_value_is_of_one_job_one_round_and_one_rank(path, other):
    wire.write_value(str(path), 1, worker.dump, wire.value_key(KEY, "1.5", 2, 0))

    assert results.load(results.FetchedValue(path, wire.value_key(KEY, "1.5", 2, 0)), "swift-otter") == 1
    assert "signature" in refusal(results.FetchedValue(path, wire.value_key(*other)))


def test_nothing_is_signed_or_read_with_no_key(path):
    with pytest.raises(wire.WireError, match="key is gone"):
        wire.write_value(str(path), 1, worker.dump, b"")
    written(path, 1)

    assert "key is gone" in refusal(results.FetchedValue(path, b""))


def test_of_another_persons_job_only_data_is_taken_unless_it_is_trusted(path):
    result = results.FetchedValue(written(path, {"loss": 0.5, "w": torch.ones(2)}).path, KEY, ours=False)
    assert results.load(result, "swift-otter")["loss"] == 0.5

    written(path, {"model": torch.nn.Linear(1, 1)})

    assert "%torchjob result swift-otter --trust" in refusal(result)
    assert isinstance(results.load(result, "swift-otter", trust=True)["model"], torch.nn.Linear)


@pytest.mark.parametrize("how", ["pipe", "link", "device"])
def test_what_is_no_plain_file_is_not_opened(folder, how):
    path = folder / "rank-0.value"
    if how == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if how == "device" else written(folder / "other", 1).path)

    assert "can't be read" in refusal(results.FetchedValue(path, KEY))


@pytest.mark.parametrize("left", [0, 20, 100, -1])
def test_a_damaged_file_is_told(path, left):
    fetched = written(path, torch.arange(100_000.0))
    whole = path.read_bytes()
    path.write_bytes(whole[:left])

    assert "can't be trusted" in refusal(fetched)


def test_a_file_that_is_gone_is_told(tmp_path):
    assert "can't be read" in refusal(results.FetchedValue(tmp_path / "none", KEY))


def test_a_module_that_is_missing_here_is_named(path, monkeypatch):
    module = types.ModuleType("only_on_the_rank")
    thing = type("Thing", (), {"__module__": module.__name__})
    module.Thing = thing  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    fetched = written(path, thing(), lambda value, _: pickle.dumps(value))
    monkeypatch.delitem(sys.modules, module.__name__)

    assert "needs only_on_the_rank here" in refusal(fetched)


def test_a_class_that_is_missing_here_is_named(path, monkeypatch):
    thing = type("Thing", (), {"__module__": __name__, "__qualname__": "Thing"})
    monkeypatch.setitem(globals(), "Thing", thing)
    fetched = written(path, thing(), lambda value, _: pickle.dumps(value))
    monkeypatch.delitem(globals(), "Thing")

    message = refusal(fetched)

    assert "can't be rebuilt here (AttributeError" in message
    assert "Thing" in message


def test_a_value_that_could_not_be_pickled_says_what_it_was(path):
    message = refusal(written(path, threading.Thread()))

    assert "threading.Thread" in message
    assert "return plain data" in message


def test_a_coroutine_as_value_is_told_as_a_missing_await(path):
    async def answer():
        return 1

    coroutine = answer()
    message = refusal(written(path, coroutine))
    coroutine.close()

    assert message == "the value of swift-otter is a coroutine: put await before the call that makes it"


def test_a_part_that_could_not_be_pickled_is_named_and_the_rest_comes_home(path):
    fetched = written(path, {"loss": 0.5, "gen": (i for i in "ab")})

    with pytest.warns(UserWarning, match=r"arrived without result\['gen'\], a generator, which can't be"):
        value = results.load(fetched, "swift-otter")
    assert value["loss"] == 0.5


def test_a_wrapper_of_ranks_comes_home_as_what_is_inside(path, tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        fetched = written(path, {"net": torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))})
    finally:
        torch.distributed.destroy_process_group()

    with pytest.warns(UserWarning, match="Linear arrived without its DistributedDataParallel"):
        assert type(results.load(fetched, "swift-otter")["net"]) is torch.nn.Linear
