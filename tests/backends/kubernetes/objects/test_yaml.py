"""Objects as YAML, with PyYAML's C library and without, as kubectl reads them."""

import json
import shutil
import subprocess

import pytest
import yaml

from nbtorchjob.backends.kubernetes import objects
from nbtorchjob.backends.kubernetes.objects import from_yaml, to_yaml
from tests.backends.kubernetes import kubectl

COMMAND = "--option value " * 20 + "end"
SAME = {"names": ["a"]}
MANIFEST = {"kind": "Job", "args": (COMMAND, "ü", "off", "1e3"), "first": SAME, "again": SAME, "api": "v1"}


@pytest.fixture(params=["with libyaml", "without"])
def library(request, monkeypatch):
    """Run the test with PyYAML's C library and without it."""
    objects._dumper.cache_clear()
    if request.param == "without":
        monkeypatch.delattr(yaml, "CSafeLoader")
        monkeypatch.delattr(yaml, "CSafeDumper")
    yield
    objects._dumper.cache_clear()


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


NUMBERS = ("1e-3", "1E5", "-2e+10", "09", "1.", ".5e3", "0o17", "0b11", "0x1F", "1_000", "1_0e3", "12")
WORDS = ("y", "off", "null", "~", "2026-11-28", "12:30:59", "1e3abc", "500m", "-", ".", "")


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl isn't here to read it")
@pytest.mark.usefixtures("library")
def test_text_is_text_for_kubectl_also_where_it_looks_like_a_number(tmp_path):
    data = {f"key-{number}": value for number, value in enumerate((*NUMBERS, *WORDS))}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    (tmp_path / "kustomization.yaml").write_text(json.dumps({"resources": ["config.yaml"]}))

    done = subprocess.run(["kubectl", "kustomize", tmp_path], capture_output=True, text=True, check=True)

    assert yaml.load(done.stdout, kubectl.Loader)["data"] == data


@pytest.mark.usefixtures("library")
def test_numbers_stay_numbers():
    numbers = {"port": 80, "share": 0.5, "small": 1e-05, "big": 1e300}
    assert yaml.load(to_yaml(numbers), kubectl.Loader) == numbers


@pytest.mark.usefixtures("library")
def test_what_is_no_yaml_is_refused_with_its_line():
    with pytest.raises(yaml.YAMLError) as error:
        from_yaml("a: 1\nb: [\n")
    assert error.value.problem_mark.line == 2
