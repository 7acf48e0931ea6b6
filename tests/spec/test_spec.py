"""Whether plain data fits the type hints of a dataclass."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from nbtorchjob.spec import built, checked, fits


@dataclass
class Kind:
    name: str
    at: float = 0.0


@dataclass
class Group:
    kinds: tuple[Kind, ...] = ()
    sizes: tuple[tuple[int, ...], ...] = ()


@pytest.mark.parametrize(
    ("value", "hint", "good"),
    [
        (1, float, True),
        (1.0, int, False),
        (None, int | None, True),
        ("1", int | None, False),
        ((1, 2), tuple[int, ...], True),
        (("1",), tuple[int, ...], False),
        ((), tuple[int, ...], True),
        ((1, 2, 3), tuple[int, int], False),
        ({"a": 1}, Mapping[str, float], True),
        ({"a": "b"}, Mapping[str, float], False),
        ([1], Mapping[str, Any], False),
        ({"a": 1}, dict[str, int], True),
        ({"a": "b"}, dict[str, int], False),
        (object(), Any, True),
    ],
)
def test_a_value_fits_its_hint_or_does_not(value, hint, good):
    assert fits(hint)(value) is good


def test_what_a_later_version_adds_is_dropped():
    assert checked(Kind, {"name": "a", "colour": 5}) == {"name": "a"}


def test_a_wrong_field_is_named():
    with pytest.raises(TypeError, match="its at is of type str"):
        checked(Kind, {"name": "a", "at": "noon"})


def test_a_dataclass_is_built_from_its_json_with_all_its_parts():
    data = {"kinds": [{"name": "a", "at": 1.5}, {"name": "b"}], "sizes": [[2, 3], []]}

    assert built(Group, data) == Group((Kind("a", 1.5), Kind("b")), ((2, 3), ()))


@pytest.mark.parametrize(
    "data", [[], {"kinds": [1]}, {"kinds": {}}, {"kinds": [{"name": 1}]}, {"sizes": [["a"]]}]
)
def test_other_json_is_refused(data):
    with pytest.raises(TypeError):
        built(Group, data)
