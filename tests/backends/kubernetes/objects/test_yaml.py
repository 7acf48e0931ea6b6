"""YAML as kubectl reads it, whichever of PyYAML's two dumpers wrote it."""

import pytest
import yaml

from nbtorchjob.backends.kubernetes.objects import from_yaml, to_yaml

COMMAND = "--option value " * 20 + "end"
SAME = {"names": ["a"]}
MANIFEST = {"kind": "Job", "args": (COMMAND, "ü", "off", "1e3"), "first": SAME, "again": SAME, "api": "v1"}


@pytest.fixture(params=["with libyaml", "without"])
def library(request, monkeypatch):
    """Have PyYAML with and without its C library."""
    if request.param == "without":
        monkeypatch.delattr(yaml, "CSafeLoader")
        monkeypatch.delattr(yaml, "CSafeDumper")


@pytest.mark.usefixtures("library")
def test_it_comes_back_in_its_order_with_nothing_folded_or_by_reference():
    text = to_yaml(MANIFEST)
    content = from_yaml(text)
    assert content == MANIFEST | {"args": [*MANIFEST["args"]]}
    assert [*content] == [*MANIFEST]
    assert COMMAND in text
    assert "ü" in text
    assert "&" not in text
    assert text.endswith("\n")


@pytest.mark.usefixtures("library")
def test_what_is_no_yaml_is_refused_with_its_line():
    with pytest.raises(yaml.YAMLError) as error:
        from_yaml("a: 1\nb: [\n")
    assert error.value.problem_mark.line == 2
