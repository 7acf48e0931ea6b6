import sys

import pytest

from nbtorchjob.environment import interpreter
from nbtorchjob.environment.interpreter import Distribution
from tests.environment.installed import install


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return an importable folder for distributions."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


def test_a_distribution_is_known_by_what_it_installed(site):
    install(site, "left-pad", "1.0", "left/__init__.py", "left/pad.py")
    install(site, "Other.Name", "2.0+cpu", "alone.py")

    assert interpreter.distribution("left.pad") == ("left", Distribution("left-pad", "1.0"))
    assert interpreter.distribution("alone") == ("alone", Distribution("other-name", "2.0+cpu"))
    assert (
        interpreter.environment().distributions.items()
        >= {"left-pad": "1.0", "other-name": "2.0+cpu"}.items()
    )


def test_in_a_namespace_each_module_has_a_distribution_of_its_own(site):
    install(site, "space-a", "1.0", "space/inner/a/__init__.py")
    install(site, "space-b", "2.0", "space/inner/b.py")

    assert interpreter.distribution("space.inner.a.more") == ("space.inner.a", Distribution("space-a", "1.0"))
    assert interpreter.distribution("space.inner.b") == ("space.inner.b", Distribution("space-b", "2.0"))
    assert interpreter.distribution("space.inner") is None
    assert not [name for name in sys.modules if name.startswith("space")]


def test_a_package_that_shares_its_name_as_of_old_is_a_namespace_too(site, tmp_path, monkeypatch):
    other = tmp_path / "other"
    monkeypatch.syspath_prepend(other)
    install(site, "old-a", "1.0", "old/a.py")
    install(other, "old-b", "1.0", "old/b.py")
    for folder in (site, other):
        (folder / "old/__init__.py").write_text("__import__('pkg_resources').declare_namespace(__name__)\n")

    assert interpreter.distribution("old.a") == ("old.a", Distribution("old-a", "1.0"))
    assert interpreter.distribution("old.b") == ("old.b", Distribution("old-b", "1.0"))


def test_an_editable_installation_is_known_by_its_project(site, tmp_path, monkeypatch):
    project = tmp_path / "project"
    (project / "src/mine").mkdir(parents=True)
    (project / "src/mine/__init__.py").touch()
    monkeypatch.syspath_prepend(project / "src")
    install(site, "mine-too", "0.1", url=f"file://{project}", dir_info={"editable": True})

    assert interpreter.distribution("mine") == ("mine", Distribution("mine-too", "0.1", str(project)))


@pytest.mark.parametrize(("installer", "apart"), [("conda\n", False), ("pip\n", True), (None, True)])
def test_what_conda_installed_is_not_from_where_it_was_built(site, installer, apart):
    info = install(site, "built", "1.2", "built.py", url="file:///home/conda/work", dir_info={})
    if installer is not None:
        (info / "INSTALLER").write_text(installer)

    assert interpreter.distribution("built") == ("built", Distribution("built", "1.2", unindexed=apart))
    assert ("built" in interpreter.origins()) is apart


def test_metadata_without_a_list_of_files_and_of_a_project_itself(site, tmp_path, monkeypatch):
    (site / "debians").mkdir()
    (site / "debians/__init__.py").touch()
    (site / "debians-3.1.egg-info").write_text("Name: debians\n")
    project = tmp_path / "project"
    (project / "developed.egg-info").mkdir(parents=True)
    (project / "developed.egg-info/PKG-INFO").write_text("Name: developed\nVersion: 0.3\n")
    (project / "developed.py").touch()
    monkeypatch.syspath_prepend(project)

    assert interpreter.distribution("debians") == ("debians", Distribution("debians", "3.1"))
    assert interpreter.distribution("developed") == (
        "developed",
        Distribution("developed", "0.3", str(project)),
    )


def test_what_is_of_no_distribution(site):
    (site / "plain.py").touch()

    assert interpreter.distribution("plain") is None
    assert interpreter.distribution("json.decoder") is None
    assert interpreter.distribution("builtins") is None
    assert interpreter.distribution("not_to_be_found") is None


def test_what_is_installed_meanwhile_is_seen(site):
    before = interpreter.environment()
    install(site, "new", "1.0", "new.py")

    assert interpreter.environment() is interpreter.environment()
    assert "new" in interpreter.environment().distributions
    assert "new" not in before.distributions
