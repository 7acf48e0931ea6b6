"""YAML as kubectl reads it, whichever of PyYAML's two dumpers wrote it."""

import pytest
import yaml

from nbtorchjob.text import yamltext

COMMAND = "--option value " * 20 + "end"
SAME = {"names": ["a"]}
MANIFEST = {"kind": "Job", "args": (COMMAND, "ü", "off", "1e3"), "first": SAME, "again": SAME, "api": "v1"}


@pytest.mark.parametrize("dumper", ["CSafeDumper", "SafeDumper"])
def test_it_comes_back_in_its_order_with_nothing_folded_or_by_reference(dumper, monkeypatch):
    monkeypatch.setattr(yamltext, "_DUMPER", getattr(yaml, dumper))
    text = yamltext.dump(MANIFEST)
    content = yamltext.load(text)
    assert content == MANIFEST | {"args": [*MANIFEST["args"]]}
    assert [*content] == [*MANIFEST]
    assert COMMAND in text
    assert "ü" in text
    assert "&" not in text
    assert text.endswith("\n")


@pytest.mark.parametrize("loader", ["CSafeLoader", "SafeLoader"])
def test_what_is_no_yaml_is_refused_with_its_line(loader, monkeypatch):
    monkeypatch.setattr(yamltext, "_LOADER", getattr(yaml, loader))
    with pytest.raises(yaml.YAMLError) as error:
        yamltext.load("a: 1\nb: [\n")
    assert error.value.problem_mark.line == 2
