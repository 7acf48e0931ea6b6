import numpy as np
import pytest
import yaml
from jsonschema import validate

from nbtorchjob import capture


def needs(call):
    return {need.module: need.surely for need in call.needs}


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("import yaml", {"yaml": True}),
        ("from numpy.linalg import norm\nimport json", {"numpy": True}),
        ("try:\n    import yaml\nexcept ImportError:\n    yaml = None", {"yaml": False}),
        ("if 1 > 2:\n    import yaml\nimport numpy", {"numpy": True, "yaml": False}),
        ("def f():\n    import yaml\nf()", {"yaml": False}),
        ("def f():\n    import yaml\n    return 1", {"yaml": True}),
        ("def f(n=1):\n    if n:\n        return 1\n    import yaml", {"yaml": False}),
        ("def g():\n    import yaml\ndef f():\n    import numpy", {"numpy": True, "yaml": False}),
        ("import sys\nif sys.argv:\n    sys.exit()\nimport yaml", {"yaml": False}),
        ("class A:\n    import yaml", {"yaml": True}),
        ("from importlib import import_module\nimport_module('yaml')", {"yaml": False}),
        ("import cloudpickle, nbtorchjob, not_there", {}),
        ("1 + 1", {}),
    ],
)
def test_what_a_cell_imports_and_whether_it_surely_does(cell, expected):
    assert needs(capture.from_cell(cell, {})) == expected


def test_what_unpickling_imports_is_surely_needed():
    def uses(maybe=False):
        if maybe:
            import sklearn

            return sklearn
        return yaml, validate

    def surely():
        import sklearn

        return sklearn

    namespace = {"__name__": "__main__", "np": np, "loader": yaml.SafeLoader}
    assert needs(capture.from_cell("np.zeros(3), loader", namespace)) == {"numpy": True, "yaml": True}
    expected = {"jsonschema": True, "sklearn": False, "yaml": True}
    assert expected.items() <= needs(capture.from_function(uses)).items()
    assert needs(capture.from_function(surely))["sklearn"]
    assert not needs(capture.from_function(lambda: __import__("sklearn")))["sklearn"]
    assert needs(capture.from_function(max, ([np.float64(1.0)],)))["numpy"]


def test_a_need_names_its_distribution_and_what_brings_it():
    (need,) = capture.from_cell("import yaml", {}).needs

    assert (need.distribution, need.version) == ("pyyaml", yaml.__version__)
    assert need.mend == f"--package pyyaml=={yaml.__version__}"


def test_local_modules_are_no_needs_but_what_they_import_is(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    files = {
        "of_mine/__init__.py": "from . import tools\n",
        "of_mine/tools.py": "import yaml\nif yaml:\n    import numpy\n",
        "of_mine/other.py": "from .deeper.most import x\n",
        "of_mine/deeper/most.py": "import cloudpickle, tqdm\nx = 1\n",
        "of_mine/tests.py": "import pytest\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    assert needs(capture.from_cell("import of_mine", {})) == {"yaml": True, "numpy": False}
    cell = "import of_mine.other"
    assert needs(capture.from_cell(cell, {})) == {"yaml": True, "numpy": False, "tqdm": True}
