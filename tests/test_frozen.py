"""A frozen class behaves as one that ``dataclass(frozen=True)`` makes."""

import copy
import inspect
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, is_dataclass, replace

import pytest

from nbtorchjob.frozen import FrozenDataclass, NumberedMapping, make_all
from nbtorchjob.state.facts.events import Event


class Told(FrozenDataclass):
    """A frozen class, declared as in the package."""

    time: float
    node: int
    text: str = ""
    used: Mapping[str, str] = field(default_factory=dict)

    @property
    def late(self) -> bool:
        """Whether the fact came late."""
        return self.time > 10


@dataclass(frozen=True)
class Made:
    """The same class, made by the standard library."""

    time: float
    node: int
    text: str = ""
    used: Mapping[str, str] = field(default_factory=dict)


GIVEN = [((1.0, 2), {}), ((1.0, 2, "a"), {"used": {"b": "c"}}), ((), {"node": 2, "time": 1.0})]


@pytest.mark.parametrize(("args", "keywords"), GIVEN)
def test_it_holds_and_shows_what_a_frozen_dataclass_does(args, keywords):
    fact, twin = Told(*args, **keywords), Made(*args, **keywords)

    assert asdict(fact) == asdict(twin)
    assert repr(fact) == repr(twin).replace("Made", "Told")
    assert [field.name for field in fields(Told)] == [field.name for field in fields(Made)]
    assert asdict(replace(fact, node=7)) == asdict(replace(twin, node=7))
    assert Told.__match_args__ == Made.__match_args__
    assert not fact.late


def test_the_first_ones_of_a_kind_are_made_by_several_threads_at_once():
    class Heard(FrozenDataclass):
        time: float
        used: Mapping[str, str] = field(default_factory=dict)

    together, facts = threading.Barrier(8), []

    def make():
        together.wait()
        facts.append(Heard(1.0))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert facts == [Heard(1.0, {})] * 8


def test_some_fields_are_neither_shown_nor_compared():
    class Some(FrozenDataclass):
        time: float
        node: int = field(default=0, repr=False)
        text: str = field(default="", compare=False)

    assert repr(Some(1.0, 2, "a")) == f"{Some.__qualname__}(time=1.0, text='a')"
    assert Some(1.0, 2, "a") == Some(1.0, 2, "b") != Some(1.0, 3, "a")
    assert hash(Some(1.0, 2, "a")) == hash(Some(1.0, 2, "b"))


def test_what_a_class_defines_itself_stays():
    class Own(FrozenDataclass):
        time: float

        def __repr__(self) -> str:
            return "its own"

    class Nothing(FrozenDataclass):
        """A class without fields."""

    assert (repr(Own(1.0)), Own(1.0)) == ("its own", Own(1.0))
    assert (repr(Nothing()), Nothing()) == (f"{Nothing.__qualname__}()", Nothing())
    assert hash(Nothing()) == hash(Nothing())


def test_what_is_the_same_is_equal():
    class Lone(FrozenDataclass):
        time: float

    nan = float("nan")
    assert Lone(nan) == Lone(nan)
    assert Lone(nan) != Lone(float("nan"))
    assert hash(Lone(1.0)) == hash(Lone(1))


def test_fields_may_have_any_name():
    class Named(FrozenDataclass):
        own: int
        MISSING: int = 2
        values: Mapping[str, str] = field(default_factory=dict)
        item: int = 4

    assert asdict(Named(1)) == {"own": 1, "MISSING": 2, "values": {}, "item": 4}


def test_one_that_holds_itself_can_be_shown():
    mapping: dict[str, str] = {}
    fact = Told(1.0, 2, used=mapping)
    mapping["told"] = fact  # type: ignore[assignment]
    assert repr(fact) == "Told(time=1.0, node=2, text='', used={'told': ...})"


def test_its_parameters_are_those_of_the_library_s():
    assert Told(1.0, 2)  # the first instance
    parameters, twins = (inspect.signature(kind).parameters.values() for kind in (Told, Made))
    assert [(field.name, field.kind) for field in parameters] == [(field.name, field.kind) for field in twins]
    with pytest.raises(TypeError, match=r"^Told.__init__\(\) missing 1 required positional argument: 'node'"):
        Told(1.0)  # type: ignore[call-arg]


def test_what_asks_the_class_finds_a_dataclass_before_there_is_one_of_it():
    class Asked(FrozenDataclass):
        time: float

    @dataclass(frozen=True)
    class More(Asked):
        text: str = ""

    class Same(Asked):
        pass

    assert [field.name for field in fields(Asked)] == ["time"]
    assert More(1.0, "a") == More(1.0, text="a")
    assert [asdict(Same(1.0)), asdict(Asked(1.0))] == [{"time": 1.0}] * 2
    assert Same(1.0) != Asked(1.0)
    assert [is_dataclass(cls) for cls in (Asked, FrozenDataclass)] == [True, False]


def test_all_are_made_in_a_process_that_others_are_forked_from():
    class Early(FrozenDataclass):
        time: float

    class Later(Early):
        pass

    assert not {"__init__", "__eq__"} & vars(Early).keys()
    make_all()
    assert {"__init__", "__eq__"} <= vars(Early).keys() & vars(Later).keys()


def test_one_can_be_read_where_none_was_made():
    pickles = pickle.dumps(Told(1.0, 2))
    read = f"import pickle; a, b = (pickle.loads({pickles!r}) for _ in 'ab'); assert a == b; print(a)"
    process = subprocess.run([sys.executable, "-c", read], check=True, capture_output=True, text=True)
    assert process.stdout == "Told(time=1.0, node=2, text='', used={})\n"


def test_each_has_a_mapping_of_its_own():
    assert Told(1.0, 2).used is not Told(1.0, 2).used


def test_two_are_equal_that_are_of_one_kind_and_say_the_same():
    fact = Told(time=1.0, text="a", node=2)

    assert fact == Told(1.0, 2, "a")
    assert fact != Told(1.0, 2, "b")
    assert fact != Made(1.0, 2, "a")  # type: ignore[comparison-overlap]
    first, second = Event.__args__[:2]
    assert hash(first(1.0, 2, "a")) == hash(first(host="a", node=2, time=1.0))
    assert len({first(1.0, 2, "a"), first(1.0, 2, "a"), second(1.0, 2)}) == 2


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda fact: pickle.loads(pickle.dumps(fact))])
def test_it_can_be_copied(way):
    assert way(Told(1.0, 2, used={"a": "b"})) == Told(1.0, 2, used={"a": "b"})


def test_it_can_not_be_changed():
    fact = Told(1.0, 2)

    with pytest.raises(FrozenInstanceError):
        fact.node = 3  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del fact.node
    with pytest.raises(FrozenInstanceError):
        fact.more = 3  # type: ignore[attr-defined]
    assert fact == Told(1.0, 2)


@pytest.mark.parametrize(
    ("args", "keywords", "wrong"),
    [((1.0,), {}, "node"), ((1.0, 2), {"more": 3}, "more"), ((1.0, 2, "a", {}, 5), {}, "5")],
)
def test_what_is_lacking_or_unknown_is_refused(args, keywords, wrong):
    with pytest.raises(TypeError, match=wrong):
        Told(*args, **keywords)


def test_a_numbered_mapping_is_one_in_order_whatever_came_first():
    mapping: NumberedMapping[str] = NumberedMapping()
    for number in (900, 3, 128, 127, 3):
        mapping = mapping.with_item(number, str(number), most=9)

    assert dict(mapping) == mapping == {3: "3", 127: "127", 128: "128", 900: "900"}
    assert [*mapping] == [*mapping.keys()] == sorted(mapping)
    assert [*mapping.values()] == ["3", "127", "128", "900"]
    assert (len(mapping), 128 in mapping, 129 in mapping, None in mapping) == (4, True, False, False)
    assert mapping.get(4) is None
    assert mapping == NumberedMapping((n, str(n)) for n in (128, 900, 127, 3))
    assert pickle.loads(pickle.dumps(mapping)) == mapping


def test_a_numbered_mapping_keeps_the_lowest_and_changes_only_in_a_copy():
    full = NumberedMapping((n, n) for n in (1, 2, 500))
    assert full.with_item(3, 3, most=3) == {1: 1, 2: 2, 3: 3}
    assert full.with_item(501, 1, most=3) == full
    assert full.with_item(500, 0, most=3) == {1: 1, 2: 2, 500: 0}
    assert full == {1: 1, 2: 2, 500: 500}
