"""How Jupyter Server finds the extension."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from jupyter_server.extension.manager import ExtensionPackage

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[3]


def test_what_is_installed_with_the_package_switches_the_extension_on():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shared = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    [source] = [
        here for here, there in shared.items() if there.startswith("etc/jupyter/jupyter_server_config.d/")
    ]

    [name] = json.loads((ROOT / source).read_text())["ServerApp"]["jpserver_extensions"]
    package = ExtensionPackage(name=name, enabled=True)

    assert list(package.extension_points) == ["nbtorchjob"]
    assert importlib.import_module(name)._jupyter_server_extension_points() == package.metadata


def test_it_can_be_switched_on_by_its_own_name():
    package = ExtensionPackage(name="nbtorchjob.frontends.server", enabled=True)

    assert list(package.extension_points) == ["nbtorchjob"]


class TestSettings:
    """A server whose administrator has set something."""

    @pytest.fixture
    def jp_server_config(self, jp_server_config):
        """Set how long requests wait, as a config file would."""
        jp_server_config["TorchJobApp"] |= {"patience_s": 3, "at_once": 2}
        return jp_server_config

    async def test_they_are_taken(self, jp_serverapp):
        [found] = jp_serverapp.extension_manager.extension_apps["nbtorchjob"]

        assert (found.patience_s, found.at_once) == (3, 2)
