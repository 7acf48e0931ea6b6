"""A test that fails once isn't broken: runs of small test projects, as make test runs this one."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

from tests.flakes.twice import ROWS

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
CONFTEST = """
from pathlib import Path

import pytest

pytest_plugins = ["tests.flakes.hangs", "tests.flakes.twice", "tests.flakes.shuffle"]


@pytest.fixture
def first_time(request):
    '''Whether this test has not run before, in whatever process.'''
    mark = Path(__file__).with_name(request.node.name)
    first = not mark.exists()
    mark.touch()
    return first
"""
FAILS_ONCE = """
def test_{0}_fails_once(first_time):
    print("what {0} printed")
    assert not first_time, "the first time"
"""


@dataclass
class Run:
    folder: Path
    returncode: int
    output: str

    @property
    def closing_line(self):
        return self.output.splitlines()[-1]

    @property
    def block(self):
        """The output below the heading of the flakes."""
        return self.output.rpartition("alone ===")[2]

    @property
    def rows(self):
        return [json.loads(line) for line in (self.folder / ROWS).read_text().splitlines()]


def run(folder, options=("-n", "2", "--dist", "worksteal"), **files):
    (folder / "pytest.ini").write_text("[pytest]\nhang_timeout = 5\n")
    (folder / "conftest.py").write_text(CONFTEST)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "--look-twice", *options],
        cwd=folder,
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return Run(folder, done.returncode, done.stdout)


@pytest.fixture(scope="module")
def green(tmp_path_factory):
    """Run three flakes: a test, a fixture of two tests, and a hang with a process that its test started."""
    return run(
        tmp_path_factory.mktemp("green"),
        ("-n", "1"),  # both tests of the fixture in one worker
        test_passes="def test_passes(): pass",
        test_fails=FAILS_ONCE.format("it"),
        test_fixture="""
import pytest

@pytest.fixture(scope="module")
def warmed_up(request):
    mark = request.path.with_name("warm")
    if not mark.exists():
        mark.touch()
        raise OSError("it was cold")

def test_one(warmed_up): pass

def test_two(warmed_up): pass
""",
        test_hangs="""
import subprocess
import threading

def waits_for_nobody():
    threading.Event().wait()

def test_hangs_once(first_time, request):
    if first_time:
        sleeper = subprocess.Popen(["sleep", "600"])
        request.path.with_name("pid").write_text(str(sleeper.pid))
        waits_for_nobody()
""",
    )


def test_a_run_whose_failures_all_pass_alone_is_green(green):
    assert green.returncode == 0, green.output
    assert "1 passed, 4 flaky" in green.closing_line
    assert "FAILURES" not in green.output
    assert "ERRORS" not in green.output


def test_a_flake_is_named_with_the_text_of_its_failure(green):
    assert "3 flakes: failed once, then passed alone" in green.output
    assert "test_fails.py::test_it_fails_once" in green.block
    assert "AssertionError: the first time" in green.block
    assert "what it printed" in green.block


def test_a_fixture_that_fails_once_is_one_flake_of_all_tests_that_it_kept(green):
    assert green.block.count("it was cold") <= 2  # the raising line, and its error
    assert "and 1 more" in green.block


def test_a_hang_fails_its_test_with_the_stacks_and_ends_what_it_started(green):
    assert "test_hangs.py::test_hangs_once" in green.block
    assert "in waits_for_nobody" in green.block
    pid = (green.folder / "pid").read_text()
    assert not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_text()


def test_flakes_are_rows_of_a_file(green):
    rows = {row["tests"][0].partition("::")[0]: row for row in green.rows}

    assert rows.keys() == {"test_fails.py", "test_fixture.py", "test_hangs.py"}
    assert rows["test_fails.py"]["phase"] == "call"
    assert "the first time" in rows["test_fails.py"]["text"]
    assert rows["test_fixture.py"]["phase"] == "setup"
    assert sorted(rows["test_fixture.py"]["tests"]) == [
        "test_fixture.py::test_one",
        "test_fixture.py::test_two",
    ]


def name_of(nodeid):
    return nodeid.rpartition("::")[2]


@pytest.fixture(scope="module")
def red(tmp_path_factory):
    return run(
        tmp_path_factory.mktemp("red"),
        ("-n", "1"),  # both tests of test_leaves in one worker
        test_fails="def test_fails(): assert 1 + 1 == 3",
        test_crashes="""
import os
import signal

def crash():
    os.kill(os.getpid(), signal.SIGSEGV)

def test_crashes_once(first_time):
    if first_time:
        crash()
""",
        # The error shows in the last test of the file, which passes if it runs alone.
        test_leaves="""
import pytest

left = []

@pytest.fixture(scope="module", autouse=True)
def nothing_is_left():
    yield
    assert not left

def test_leaves_something(): left.append(1)

def test_leaves_nothing(): pass
""",
        test_skips="""
import pytest

def test_skips_what_it_can_t_do_twice(first_time):
    if not first_time:
        pytest.skip("once is enough")
    raise OSError("it could not be done")
""",
    )


def test_what_fails_twice_is_red_with_both_failures(red):
    assert red.returncode == 1
    assert "test_fails.py::test_fails FAILED" in red.output
    failures = red.output.partition("FAILURES")[2]
    assert failures.count("assert (1 + 1) == 3") >= 2
    assert "its second run, alone" in failures


def test_a_crash_fails_its_test_with_the_stack_and_the_run_goes_on(red):
    assert "test_crashes.py::test_crashes_once PASSED" in red.output
    assert "1 flake: failed once, then passed alone" in red.output
    assert "in crash" in red.block
    assert "2 failed, 2 passed, 1 error, 1 flaky" in red.closing_line


def test_what_fails_as_a_file_is_left_runs_with_all_of_the_file(red):
    assert "test_leaves.py::test_leaves_nothing FAILED" in red.output


def test_what_is_skipped_the_second_time_has_not_passed(red):
    assert "test_skips.py::test_skips_what_it_can_t_do_twice FAILED" in red.output


def test_more_than_three_flakes_are_red(tmp_path):
    tests = "\n".join(FAILS_ONCE.format(name) for name in ("north", "east", "south", "west"))

    done = run(tmp_path, test_four=tests)

    assert done.returncode == 1
    assert "4 failed" in done.closing_line
    assert "flaky" not in done.closing_line
    assert "A run with more than 3 is red" in done.block
    assert len(done.rows) == 4


def test_more_failures_than_flakes_can_be_are_not_looked_at_again(tmp_path):
    many = "import pytest\n\n@pytest.mark.parametrize('n', range(21))\ndef test_fails(n): assert n < 0"

    done = run(tmp_path, test_many=many)

    assert done.returncode == 1
    assert "21 failures: too many to be flakes" in done.output
    assert "runs again" not in done.output
    assert "21 failed" in done.closing_line


def test_what_can_t_be_collected_is_red_at_once(tmp_path):
    done = run(tmp_path, test_broken="import nothing_of_that_name", test_fails=FAILS_ONCE.format("it"))

    assert done.returncode != 0
    assert "runs again" not in done.output
    assert "No module named 'nothing_of_that_name'" in done.output
    assert "error" in done.closing_line


def test_tests_that_never_ran_are_red(tmp_path):
    """After one crash too many xdist gives up, with tests left."""
    tests = (
        "import os\n\ndef test_crashes(first_time):\n    if first_time: os._exit(3)\n\ndef test_waits(): pass"
    )

    done = run(tmp_path, ("-n", "1", "--max-worker-restart", "0"), test_tests=tests)

    assert done.returncode == 1
    assert "1 tests of 2 were not run" in done.output


def test_it_says_that_it_needs_workers(tmp_path):
    done = run(tmp_path, (), test_passes="def test_passes(): pass")

    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--look-twice needs workers to run the tests in: add -n 1 or more" in done.output


def test_a_search_for_flakes_says_how_often_each_test_failed(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(FAILS_ONCE.format("it") + "\ndef test_passes(): pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "tests.flakes", "--rounds", "2", "test_some.py"],
        cwd=tmp_path,
        env={**ENV, "PYTEST_ADDOPTS": "-p xdist"},
        stdout=subprocess.PIPE,
        text=True,
    )

    assert done.returncode == 1
    assert "4 runs of 2 tests, 1 failures" in done.stdout
    assert "50.0%  1 of 2  test_some.py::test_it_fails_once" in done.stdout
    (row,) = Run(tmp_path, 1, "").rows
    assert row["tests"] == ["test_some.py::test_it_fails_once"]
    assert "the first time" in row["text"]


def test_a_seed_gives_an_order_of_files_and_of_their_tests(tmp_path):
    tests = "\n".join(f"def test_{n}(): pass" for n in range(9))

    def order(seed):
        done = run(tmp_path, ("-n", "1", "-v", "--shuffle", seed), test_a=tests, test_b=tests, test_c=tests)
        return [line.split()[-1] for line in done.output.splitlines() if "PASSED" in line]

    first = order("1")

    assert len(first) == 27
    assert len([file for file, _ in groupby(test.partition("::")[0] for test in first)]) == 3
    assert order("1") == first != sorted(first)
