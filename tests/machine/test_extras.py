from importlib import metadata

import pytest

from nbtorchjob.errors import NotInstalledError
from nbtorchjob.machine import extras


@pytest.fixture
def installed(monkeypatch):
    """Have these versions be installed of what the extra asks for."""
    versions: dict[str, str] = {}

    def version(name):
        try:
            return versions[name]
        except KeyError:
            raise metadata.PackageNotFoundError(name) from None

    monkeypatch.setattr(metadata, "version", version)
    return versions


def refusal(extra, by="a cluster"):
    with pytest.raises(NotInstalledError) as refused, extras.needed(extra, by):
        import not_there  # type: ignore[import-not-found]  # noqa: F401
    return str(refused.value)


def test_what_an_extra_lacks_is_one_line_that_names_it(installed):
    said = (
        "a cluster needs fsspec>=2024.6 and h2>=4.1 and kubernetes>=37: pip install 'nbtorchjob[kubernetes]'"
    )
    assert refusal("kubernetes") == said


def test_a_version_that_is_too_old_is_named_with_the_one_that_is_needed(installed):
    installed.update(kubernetes="31.0.0", fsspec="2026.9.0", h2="4.4.1")
    said = "a cluster needs kubernetes>=37 (here: 31.0.0): pip install 'nbtorchjob[kubernetes]'"
    assert refusal("kubernetes") == said


def test_where_all_of_it_is_installed_the_module_is_named(installed):
    installed.update(kubernetes="37.0.2", fsspec="2026.9.0", h2="4.4.1")
    assert refusal("kubernetes") == "a cluster needs not_there: pip install 'nbtorchjob[kubernetes]'"
