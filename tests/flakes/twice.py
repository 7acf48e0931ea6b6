"""``--look-twice``: failed tests run again at the end, alone; a test that then passes is a flake.

pytest-rerunfailures repeats a failed test at once, in the same worker and beside the other workers, so a test
that failed because of the load or of the worker's state fails again; a hang ends the worker before it can
repeat anything. ``pytest --last-failed`` as a second command would run the tests alone, but by then the first
command has failed.
"""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter

from tests.flakes import hangs

MOST_FLAKES = 3  # more in one run aren't chance
MOST_FAILURES = 20  # with more, something is broken: running each of them again would show nothing new
ROWS = Path("out/flakes.jsonl")
_START_S = 120.0  # for a process to start, collect one file and end
_MARK = "TESTS_SECOND_LOOK"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("flakes")
    group.addoption(
        "--look-twice",
        action="store_true",
        help="run failed tests again at the end, alone; those that then pass are flakes and fail no run",
    )
    group.addoption(
        "--second-look", action="store_true", help="fail unless a test passes (--look-twice uses it)"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.second_look:
        config.pluginmanager.register(_SecondLook())
    elif config.option.look_twice and not hasattr(config, "workerinput"):
        # A test that hangs ends its process, which must not be this one.
        if config.getoption("dist", "no") == "no":
            raise pytest.UsageError("--look-twice needs workers to run the tests in: add -n 1 or more")
        config.pluginmanager.register(_LookTwice(config))


@dataclass
class Failure:
    """A test that failed, or all tests of a file that failed in setup in the same way, by one fixture."""

    reports: list[pytest.TestReport]
    load: float  # of the machine, when it failed
    passed: bool = False  # in the second look

    @property
    def tests(self) -> list[str]:
        return [*dict.fromkeys(report.nodeid for report in self.reports)]

    @property
    def name(self) -> str:
        more = len(self.tests) - 1
        return self.tests[0] + (f" and {more} more" if more else "")

    @property
    def text(self) -> str:
        parts = []
        for report in self.reports if len(self.tests) == 1 else self.reports[:1]:
            parts.append(report.longreprtext)
            parts += [f"--- {title} ---\n{content.rstrip()}" for title, content in report.sections]
        return "\n".join(parts)

    @property
    def second_look(self) -> list[str]:
        """The tests to run again: the whole file after a teardown, which may fail by an earlier test."""
        if any(report.when == "teardown" for report in self.reports):
            return [self.tests[0].partition("::")[0]]
        return self.tests


@dataclass
class _LookTwice:
    config: pytest.Config
    failures: list[Failure] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    collected: bool = True

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.collected &= not report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        crashed = report.when not in ("setup", "call", "teardown")  # xdist reports "???"
        if crashed or report.when == "teardown":
            self.ended.add(report.nodeid)
        if report.failed:
            if failure := self._known(report):
                failure.reports.append(report)
            else:
                self.failures.append(Failure([report], os.getloadavg()[0]))

    def _known(self, report: pytest.TestReport) -> Failure | None:
        for failure in self.failures:
            first = failure.reports[0]
            if report.nodeid in failure.tests:
                return failure
            if (
                (report.when, first.when) == ("setup", "setup")
                and report.fspath == first.fspath
                and report.longreprtext == first.longreprtext
            ):
                return failure
        return None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Iterator[None]:
        result = yield
        if not self.collected:
            return result
        if missing := session.testscollected - len(self.ended):
            # xdist gives up after too many crashes.
            error = f"{missing} tests of {session.testscollected} were not run"
            report = pytest.CollectReport("this run", "failed", error, [])
            self.config.hook.pytest_collectreport(report=report)
        if self.failures:
            self._look_again(session)
        return result

    def _look_again(self, session: pytest.Session) -> None:
        if len(self.failures) > MOST_FAILURES:
            self._terminal.write_line(f"\n{len(self.failures)} failures: too many to be flakes", red=True)
            return
        self._terminal.write_line("\nWhat failed runs again, alone:")
        for failure in self.failures:
            self._terminal.write(f"{failure.name} ")
            self._terminal.flush()
            failure.passed = self._passes(failure)
            self._terminal.write_line("PASSED" if failure.passed else "FAILED")
        flakes = self._flakes
        self._write(flakes)
        if len(flakes) <= MOST_FLAKES:
            for flake in flakes:
                self._forgive(flake, session)

    def _passes(self, failure: Failure) -> bool:
        """Run the tests in a process of their own, with nothing beside them; return whether they pass."""
        mark = uuid.uuid4().hex
        argv = [
            sys.executable,
            "-m",
            "pytest",
            "--second-look",
            "-p",
            "no:cacheprovider",
            *failure.second_look,
        ]
        if self.config.inipath:
            argv[3:3] = ["-c", str(self.config.inipath)]
        process = subprocess.Popen(
            argv,
            cwd=self.config.rootpath,
            env={**os.environ, _MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            limit = hangs.timeout(self.config) * len(failure.tests) + _START_S
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            output = f"It took longer than {limit:.0f} s."
        finally:
            hangs.end_processes(**{_MARK: mark})  # the process, if it still runs, and all that it started
            process.wait()
        if process.returncode:
            failure.reports[-1].sections.append(("its second run, alone", output))
        return process.returncode == 0

    @property
    def _flakes(self) -> list[Failure]:
        return [failure for failure in self.failures if failure.passed]

    @property
    def _terminal(self) -> TerminalReporter:
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        assert isinstance(reporter, TerminalReporter)
        return reporter

    def _write(self, flakes: list[Failure]) -> None:
        for flake in flakes:
            first = flake.reports[0]
            write_row(
                self.config.rootpath, flake.tests, f"{first.when}", first.duration, flake.load, flake.text
            )

    def _forgive(self, flake: Failure, session: pytest.Session) -> None:
        """Count a flake's tests as flaky instead of failed, in the closing line and for the exit status."""
        stats = self._terminal.stats
        for kind in ("failed", "error"):
            stats[kind] = [report for report in stats.get(kind, ()) if report not in flake.reports]
            if not stats[kind]:
                del stats[kind]  # the closing line is red while there is a list, even an empty one
        # Unlike changing the dict, this also updates the closing line's colour and its kinds.
        self._terminal._add_stats("flaky", [*{report.nodeid: report for report in flake.reports}.values()])
        session.testsfailed -= len(flake.reports)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # the outermost one prints last
    def pytest_terminal_summary(self) -> Iterator[None]:
        yield
        if not (flakes := self._flakes):
            return
        out = self._terminal
        count = f"{len(flakes)} flake{'s' * (len(flakes) > 1)}"
        out.write_sep("=", f"{count}: failed once, then passed alone", yellow=True)
        if len(flakes) > MOST_FLAKES:
            for flake in flakes:
                out.write_line(flake.name)
            out.write_line(f"A run with more than {MOST_FLAKES} is red; see the failures above.", red=True)
        else:
            for flake in flakes:
                out.write_sep("_", flake.name)
                out.write_line(flake.text)
        out.write_line(f"{count} written to {ROWS}")


def write_row(root: Path, tests: list[str], phase: str, seconds: float, load: float, text: str) -> None:
    """Append a failure to the file of flakes; ``load`` is the machine's, of the last minute."""
    row = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "tests": tests,
        "phase": phase,
        "seconds": round(seconds, 2),
        "load": round(load, 2),
        "text": text,
    }
    (root / ROWS).parent.mkdir(exist_ok=True)
    with (root / ROWS).open("a") as file:
        print(json.dumps(row), file=file)


class _SecondLook:
    """The plugin of a second look's process, which makes the process fail if a test is only skipped."""

    def __init__(self) -> None:
        self._passed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._passed |= report.when == "call" and report.passed

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and not self._passed:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
