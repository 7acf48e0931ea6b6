"""A fact is to whoever holds it what ``dataclass(frozen=True)`` makes."""

import copy
import pickle
import threading
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace

import pytest

from nbtorchjob.state.events import Event
from nbtorchjob.state.fact import Fact


class Told(Fact):
    """As facts are declared."""

    time: float
    node: int
    text: str = ""
    used: Mapping[str, str] = field(default_factory=dict)

    @property
    def late(self) -> bool:
        """Whether it came late."""
        return self.time > 10


@dataclass(frozen=True)
class Made:
    """The same as the library makes it."""

    time: float
    node: int
    text: str = ""
    used: Mapping[str, str] = field(default_factory=dict)


GIVEN = [((1.0, 2), {}), ((1.0, 2, "a"), {"used": {"b": "c"}}), ((), {"node": 2, "time": 1.0})]


@pytest.mark.parametrize(("args", "given"), GIVEN)
def test_it_holds_and_shows_what_a_frozen_dataclass_does(args, given):
    told, made = Told(*args, **given), Made(*args, **given)

    assert asdict(told) == asdict(made)
    assert repr(told) == repr(made).replace("Made", "Told")
    assert [each.name for each in fields(Told)] == [each.name for each in fields(Made)]
    assert asdict(replace(told, node=7)) == asdict(replace(made, node=7))
    assert Told.__match_args__ == Made.__match_args__
    assert not told.late


def test_the_first_ones_of_a_kind_are_made_by_several_threads_at_once():
    class Heard(Fact):
        time: float
        used: Mapping[str, str] = field(default_factory=dict)

    together, made = threading.Barrier(8), []

    def make():
        together.wait()
        made.append(Heard(1.0))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [Heard(1.0, {})] * 8


def test_each_has_a_mapping_of_its_own():
    assert Told(1.0, 2).used is not Told(1.0, 2).used


def test_two_are_equal_that_are_of_one_kind_and_say_the_same():
    told = Told(time=1.0, text="a", node=2)

    assert told == Told(1.0, 2, "a")
    assert told != Told(1.0, 2, "b")
    assert told != Made(1.0, 2, "a")  # type: ignore[comparison-overlap]
    one, other = Event.__args__[:2]
    assert hash(one(1.0, 2, "a")) == hash(one(host="a", node=2, time=1.0))
    assert len({one(1.0, 2, "a"), one(1.0, 2, "a"), other(1.0, 2)}) == 2


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda told: pickle.loads(pickle.dumps(told))])
def test_it_can_be_copied(way):
    assert way(Told(1.0, 2, used={"a": "b"})) == Told(1.0, 2, used={"a": "b"})


def test_it_can_not_be_changed():
    told = Told(1.0, 2)

    with pytest.raises(FrozenInstanceError):
        told.node = 3  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del told.node
    with pytest.raises(FrozenInstanceError):
        told.more = 3  # type: ignore[attr-defined]
    assert told == Told(1.0, 2)


@pytest.mark.parametrize(
    ("args", "given", "wrong"),
    [((1.0,), {}, "node"), ((1.0, 2), {"more": 3}, "more"), ((1.0, 2, "a", {}, 5), {}, "5")],
)
def test_what_is_lacking_or_unknown_is_refused(args, given, wrong):
    with pytest.raises(TypeError, match=wrong):
        Told(*args, **given)
