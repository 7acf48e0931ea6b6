"""A test that hangs fails alone: its worker writes its threads' stacks and exits, and xdist replaces it.

pytest's ``faulthandler_timeout`` ends the process too, but writes to the terminal: the failure itself would
not show where the test hung. pytest-timeout either does the same or raises in the main thread, where the code
under test may catch it.
"""

import contextlib
import faulthandler
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

TIMEOUT = "hang_timeout"
_STACKS = pytest.StashKey[IO[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(TIMEOUT, "seconds after which a test hangs, its setup and teardown included", default="420")


def timeout(config: pytest.Config) -> float:
    return float(config.getini(TIMEOUT))


@pytest.hookimpl(trylast=True)  # after pytest's own, which would send a crash's stacks to the terminal
def pytest_configure(config: pytest.Config) -> None:
    workerinput = getattr(config, "workerinput", None)
    if workerinput is None:
        config.pluginmanager.register(_Runner(config))
        # A copy of stderr: pytest puts a file in its place while a test runs.
        stacks = os.fdopen(os.dup(2), "w")
    else:
        stacks = open(workerinput[TIMEOUT], "w")  # noqa: SIM115
        faulthandler.enable(stacks)
    config.stash[_STACKS] = stacks
    config.add_cleanup(stacks.close)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    faulthandler.dump_traceback_later(timeout(item.config), exit=True, file=item.config.stash[_STACKS])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


class _Runner:
    """The side of xdist's controller, which knows where a worker that crashed wrote its stacks."""

    def __init__(self, config: pytest.Config) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="stacks-"))
        config.add_cleanup(lambda: shutil.rmtree(self._folder, ignore_errors=True))

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node) -> None:
        node.workerinput[TIMEOUT] = str(self._folder / node.gateway.id)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, report) -> None:
        worker = report.node.workerinput
        with contextlib.suppress(FileNotFoundError):
            report.longrepr = f"{report.longrepr}\n{Path(worker[TIMEOUT]).read_text()}"
        # xdist gives each worker these two variables, and the worker's processes inherit them.
        end_processes(PYTEST_XDIST_TESTRUNUID=worker["testrunuid"], PYTEST_XDIST_WORKER=worker["workerid"])


def end_processes(**variables: str) -> None:
    """Kill all processes with these variables: nothing of a crashed test may run beside later tests."""
    marks = {f"{name}={value}".encode() for name, value in variables.items()}
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # another user's process, or one that has ended
            if marks <= {*environ.read_bytes().split(b"\0")}:
                os.kill(int(environ.parent.name), signal.SIGKILL)
