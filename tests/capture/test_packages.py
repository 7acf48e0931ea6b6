"""The packages that a call's nodes install: by options, by a script block, or like this kernel's."""

import io
import json
import site
import stat
import zipfile

import numpy as np
import pytest
import yaml
from jsonschema import validate

from nbtorchjob import JobSpec, capture
from nbtorchjob.capture import identity, packages
from nbtorchjob.errors import SpecError
from tests.environment.built import project, wheel
from tests.environment.installed import install

CLUSTER = "kubernetes"


def provided(text, *package, backend=CLUSTER, **asked):
    spec = JobSpec(backend=backend, package=package, **asked)
    return packages.provided(capture.from_cell(text, {}), spec)


def test_options_files_and_a_block_add_up(folder):
    listed = folder / "requirements.txt"
    listed.write_text("nbtj-b\nnbtj-a==1\n")
    block = "# /// script\n# dependencies = ['nbtj-c<2']\n# ///\n1"

    installs = provided(block, "nbtj-a==1", requirements=[str(listed)]).packages

    assert installs.requirements == ("nbtj-a==1", "nbtj-b", "nbtj-c<2")
    assert installs.names == {"nbtj-a", "nbtj-b", "nbtj-c"}
    assert not provided("1").packages


def test_a_notebooks_first_cell_speaks_for_those_that_say_nothing(folder, monkeypatch):
    cells: list[dict[str, object]] = [
        {"cell_type": "markdown", "source": "# /// script"},
        {"cell_type": "code", "source": ["# /// script\n", "# dependencies = ['nbtj-c']\n", "# ///\n"]},
    ]
    notebook = folder / "some.ipynb"
    notebook.write_text(json.dumps({"cells": cells}))
    monkeypatch.setenv("JPY_SESSION_NAME", str(notebook))

    assert provided("1").packages.requirements == ("nbtj-c",)
    assert provided("# /// script\n# dependencies = ['own']\n# ///\n1").packages.requirements == ("own",)
    cells[1]["source"] = "# /// script\n# dependencies = 3\n# ///\n"
    notebook.write_text(json.dumps({"cells": cells}))
    with pytest.raises(SpecError, match=r"^the script block of some\.ipynb, dependencies"):
        provided("1")


@pytest.fixture
def kernel(folder, monkeypatch):
    """Return this kernel's site-packages with some distributions, one of them installed in place."""
    site_packages = folder / "site-packages"
    install(site_packages, "nbtj-a", "1.0+cpu", "nbtj_a.py")
    install(site_packages, "nbtj-b", "2.0", "nbtj_b.py")
    install(site_packages, "nbtj-c", "3.0", "nbtj_c.py")
    a = site_packages / "nbtj_a-1.0+cpu.dist-info" / "METADATA"
    a.write_text(
        a.read_text() + "Requires-Dist: nbtj-b\nRequires-Dist: torch\nRequires-Dist: no>1; extra == 'x'\n"
    )
    project_path = folder / "mine"
    (project_path / "src" / "nbtj_mine").mkdir(parents=True)
    (project_path / "src" / "nbtj_mine" / "__init__.py").write_text("import nbtj_c\n")
    (project_path / "src" / "nbtj_mine" / "data.txt").write_text("data")
    url = {"url": project_path.as_uri(), "dir_info": {"editable": True}}
    info = install(site_packages, "nbtj-mine", "0.1", **url)
    (info / "METADATA").write_text("Name: nbtj-mine\nVersion: 0.1\nRequires-Dist: nbtj-c\n")
    (site_packages / "mine.pth").write_text(str(project_path / "src"))
    for path in (project_path / "src", site_packages):
        monkeypatch.syspath_prepend(path)
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(site_packages)])
    return site_packages


def test_what_is_installed_in_place_and_only_needed_by_another_is_built(kernel, folder):
    fork = project(folder / "fork", "nbtj_fork")
    info = install(kernel, "nbtj-fork", "1.0", url=fork.as_uri(), dir_info={"editable": True})
    (info / "METADATA").write_text("Name: nbtj-fork\nVersion: 1.0\n")
    a = kernel / "nbtj_a-1.0+cpu.dist-info" / "METADATA"
    a.write_text("Name: nbtj-a\nVersion: 1.0+cpu\nRequires-Dist: nbtj-fork\n")

    (copy,) = provided("import nbtj_a", "like-here").packages.wheels

    assert copy.distribution == "nbtj-fork"
    assert "nbtj_fork.py" in zipfile.ZipFile(io.BytesIO(copy.data)).namelist()


def test_like_here_pins_what_is_needed_and_bounds_what_that_needs(kernel):
    call = provided("import nbtj_a", "like-here")

    assert call.packages.requirements == ("nbtj-a==1.0",)
    assert call.packages.constraints == ("nbtj-b==2.0",)
    assert call.files == ()


def test_what_is_of_no_index_is_not_looked_for_on_one(kernel):
    url, vcs = "https://me:secret@host/nbtj", {"vcs": "git", "commit_id": "3f2a"}
    install(kernel, "nbtj-git", "0.1", "nbtj_git.py", url=url, vcs_info=vcs)
    install(kernel, "nbtj-file", "4.0", "nbtj_file/__init__.py", "nbtj_file/more.pyc", url="file:///gone")
    (kernel / "nbtj_a-1.0+cpu.dist-info" / "METADATA").write_text("Name: nbtj-a\nRequires-Dist: nbtj-file\n")

    call = capture.from_cell("import nbtj_a, nbtj_git, nbtj_file", {})
    installs = packages.provided(call, JobSpec(backend=CLUSTER, package=["like-here"])).packages

    assert installs.requirements == ("nbtj-a==1.0", "nbtj-git @ git+https://host/nbtj@3f2a")
    assert installs.constraints == ()
    (copy,) = installs.wheels
    assert copy.name == "nbtj_file-4.0-py3-none-any.whl"
    members = zipfile.ZipFile(io.BytesIO(copy.data)).namelist()
    assert [name for name in members if "info" not in name] == ["nbtj_file/__init__.py"]
    mends = {need.distribution: need.mend for need in call.needs}
    assert mends["nbtj-git"] == mends["nbtj-file"] == "--package like-here"


def test_what_conda_installed_is_asked_of_an_index(kernel):
    url = "file:///home/conda/feedstock_root/build_artifacts/nbtj-conda_1700/work"
    info = install(kernel, "nbtj-conda", "1.2", "nbtj_conda.py", url=url, dir_info={})
    (info / "INSTALLER").write_text("conda\n")

    call = provided("import nbtj_conda", "like-here")

    assert [need.mend for need in call.needs] == ["--package nbtj-conda==1.2"]
    assert call.packages.requirements == ("nbtj-conda==1.2",)
    assert call.packages.wheels == ()


def test_a_program_in_a_distribution_that_is_copied_can_still_be_run(kernel):
    install(kernel, "nbtj-tool", "1.0", "nbtj_tool/__init__.py", "nbtj_tool/run", url="file:///gone")

    def copied():
        (wheel,) = provided("import nbtj_tool", "like-here").packages.wheels
        with zipfile.ZipFile(io.BytesIO(wheel.data)) as archive:
            files = [archive.getinfo(f"nbtj_tool/{name}") for name in ("__init__.py", "run")]
            return wheel.digest, [stat.filemode(file.external_attr >> 16) for file in files]

    before, modes = copied()
    assert modes == ["-rw-r--r--", "-rw-r--r--"]
    (kernel / "nbtj_tool" / "run").chmod(0o700)
    after, modes = copied()
    assert modes == ["-rw-r--r--", "-rwxr-xr-x"]  # pip needs the type of a regular file, too
    assert after != before


def test_a_kernel_whose_packages_are_at_odds_is_copied_as_it_is(kernel):
    metadata = kernel / "nbtj_a-1.0+cpu.dist-info" / "METADATA"
    metadata.write_text("Name: nbtj-a\nRequires-Dist: nbtj-b<2\n")

    installs = provided("import nbtj_a, nbtj_c", "like-here").packages

    assert installs.exactly == ("nbtj-a==1.0", "nbtj-c==3.0", "nbtj-b==2.0")
    assert (installs.requirements, installs.constraints) == ((), ())


def test_what_is_asked_for_by_name_is_not_pinned_to_what_is_here(kernel):
    installs = provided("import nbtj_a, nbtj_c", "like-here", "nbtj-b>=3", "NBTJ_c==9").packages

    assert installs.requirements == ("nbtj-b>=3", "NBTJ_c==9", "nbtj-a==1.0")
    assert installs.constraints == ()


def test_what_is_installed_in_place_travels_as_it_is_with_what_it_needs(kernel):
    call = provided("import nbtj_mine", "like-here")

    assert [file.path for file in call.files] == ["nbtj_mine/__init__.py", "nbtj_mine/data.txt"]
    assert call.packages.requirements == ("nbtj-c==3.0",)
    assert [need.distribution for need in call.needs] == ["nbtj-c"]


def test_what_is_linked_into_a_project_that_is_installed_in_place_travels_too(kernel, folder):
    (folder / "shared").mkdir()
    (folder / "shared" / "dense.py").touch()
    (folder / "mine" / "src" / "nbtj_mine" / "layers").symlink_to(folder / "shared")

    call = provided("import nbtj_mine", "like-here")

    assert "nbtj_mine/layers/dense.py" in [file.path for file in call.files]


def test_on_this_machine_all_is_like_here_already(kernel):
    call = provided("import nbtj_a, nbtj_mine", "like-here", backend="local")

    assert (call.packages.requirements, call.files) == ((), ())


def test_what_is_going_to_be_there_is_known_without_building_it(kernel, folder):
    wheel_path = wheel(folder, "My_Wheel")
    project_path = project(folder / "a", "my.project", first="raise SystemExit")
    spec = JobSpec(package=[str(wheel_path), str(project_path), "nbtj-x", "like-here"])

    names = packages.pinned(capture.from_cell("import nbtj_a", {}).needs, spec)

    assert names == {"my-wheel", "my-project", "nbtj-x", "nbtj-a"}


def test_a_project_that_is_installed_in_place_has_its_name_here(kernel, folder):
    (folder / "mine" / "setup.py").touch()
    spec = JobSpec(package=[str(folder / "mine")])

    assert "nbtj-mine" not in packages.pinned(capture.from_cell("import nbtj_a", {}).needs, spec)
    assert "nbtj-mine" in packages.pinned(capture.from_cell("import nbtj_mine", {}).needs, spec)


def test_a_call_that_installs_something_else_is_another_call(folder):
    calls = [provided("1", *requirements) for requirements in ((), ("nbtj-a",), ("nbtj-a", "nbtj-b"))]

    assert len({identity.of(call) for call in calls}) == 3


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
