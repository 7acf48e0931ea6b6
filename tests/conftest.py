"""Setup of all tests: among others, a state folder and a warm pool of the tests' own."""

import builtins
import gc
import os
import shutil
import signal
import sys
import time
import urllib.request
from itertools import takewhile

import pytest
from hypothesis import settings
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import nbtorchjob
from nbtorchjob.machine import folders
from nbtorchjob.payload import program
from nbtorchjob.runtime.rank import carried
from tests import packed
from tests.backends.kubernetes import warm
from tests.pools import end_pool

pytest_plugins = [
    *("tests.flakes.hangs", "tests.flakes.twice", "tests.flakes.shuffle"),
    "tests.distribution",
]

# The same examples each time, and no deadline: an example's duration depends on the machine's load.
settings.load_profile("ci")

# As in the Makefile: otherwise each of hundreds of interpreters would compile its imports again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def proxies():
    """Return urllib's proxies, if the environment has any: urllib looks them up twice per request."""
    return _proxies() if any(name.lower().endswith(b"_proxy") for name in os.environb) else {}


# Before aiohttp imports the function.
_proxies = urllib.request.getproxies_environment
urllib.request.getproxies = urllib.request.getproxies_environment = proxies

# jsonschema imports it if it can, for a format that no schema here uses: forty parsers, 2 s in each worker.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# Processes of a shell without job control ignore these, and so would all processes of the tests.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


# A test with one of these fixtures runs pods.
_PODS = {"cluster", "emulator", "stage"}


def pytest_configure():
    """Share one warm Python between all workers."""
    if warm.SHARED not in os.environ:
        warm.share()


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect the tests without garbage collection, and exclude the objects that stay from later ones."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(20_000, 20, 50)  # with Python's own, collection took a twelfth of the time


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish():
    """Collect the tests' garbage once: pytest would do it five times, 0.3 s each."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items):
    """Mark the tests that run pods: `make check` has no time for them."""
    for item in items:
        if not _PODS.isdisjoint(item.fixturenames):
            item.add_marker("pods")


@pytest.fixture(scope="session", autouse=True)
def state_dir(tmp_path_factory):
    """Keep tests away from the user's jobs and pool; one pool serves the whole run, and ends with it."""
    folder = tmp_path_factory.mktemp("state")
    os.environ[folders.STATE] = str(folder)
    # Under ``nohup`` a plain process that a test compares with ranks would ignore SIGHUP: ranks don't.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # pytest turns warnings into errors, unlike a notebook: ranks would get that from this process.
    del carried.SETTINGS["warnings.filterwarnings"]
    yield folder
    end_pool()


@pytest.fixture(scope="session", autouse=True)
def packed_once():
    """Pack each program once for all state folders of tests: packing takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "cached", packed.cached)
        yield


@pytest.fixture(scope="session", autouse=True)
def empty_folder(tmp_path_factory):
    """Run fixtures of whole files in an empty folder: the checkout would be the notebook's modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("notebooks"))
        yield


@pytest.fixture(scope="module", autouse=True)
def process_as_it_was(request):
    """Fail if a test file leaves a setting of this process changed: the order of files would matter."""
    before = settings_of_process()
    yield
    after = settings_of_process()
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    assert not changed, f"{request.node.name} leaves {sorted(changed)} otherwise than it was"


def settings_of_process():
    # The import of ipykernel before 7 sets the second.
    others = {"PYTEST_CURRENT_TEST", "PYDEVD_USE_FRAME_EVAL"}
    env = {f"${name}": value for name, value in os.environ.items() if name not in others}
    handlers = {number.name: signal.getsignal(number) for number in signal.Signals}
    return {**env, **handlers, "cwd": os.getcwd(), "sys.path": [*sys.path]}


@pytest.fixture
def greenwich():
    """Set the time zone to UTC."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture(scope="module", autouse=True)
def no_older_jobs(state_dir):
    """Leave the next test file no jobs, and no cluster to query for jobs."""
    packed.lend(state_dir)
    yield
    for kept in ("jobs", "kubernetes"):
        shutil.rmtree(state_dir / kept, ignore_errors=True)


@pytest.fixture
def no_more_builtins():
    """Remove the builtins that a shell adds for good, such as ``display``."""
    before = {*vars(builtins)}
    yield
    for name in vars(builtins).keys() - before:
        delattr(builtins, name)


@pytest.fixture(autouse=True)
def clean_environment(no_more_builtins, monkeypatch, tmp_path):
    """Remove a developer's own settings, and run each test in a folder of its own."""
    for name in [*os.environ]:
        if name.startswith(("NBTORCHJOB_", "PET_")) and name != folders.STATE:
            monkeypatch.delenv(name)
    monkeypatch.setenv("NBTORCHJOB_RANKS_AT_ONCE", "0")  # the tests' jobs mustn't wait for each other
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "system"))
    home = tmp_path / "notebook"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command adds the folder of its script
    before, newest = dict(os.environ), next(reversed(sys.modules))
    yield
    # Undo variables that the code under test sets: with one for torch, each later job would start cold.
    if dict(os.environ) != before:
        os.environ.clear()
        os.environ.update(before)
    # Drop modules imported from that folder: another test may create one of the same name. Of thousands of
    # modules, check only those imported since.
    for name in [*takewhile(lambda name: name != newest, reversed(sys.modules))]:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(f"{tmp_path}{os.sep}"):
            del sys.modules[name]


@pytest.fixture
def folder(tmp_path):
    """Return an empty folder."""
    path = tmp_path / "folder"
    path.mkdir()
    return path


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Yield an IPython of the test's own, without history and colours."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # the shell puts its own there
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    shell = InteractiveShell.instance(config=config)
    yield shell
    nbtorchjob.unload_ipython_extension(shell)
    InteractiveShell.clear_instance()
