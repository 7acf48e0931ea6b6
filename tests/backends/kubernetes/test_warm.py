"""Programs that are forked from a warm Python behave as if they had been started."""

import hashlib
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.backends.kubernetes.stage import until
from tests.backends.kubernetes.warm import SHARED, Program

ENV = {"PATH": os.defpath, "LANG": "C.UTF-8"}


@pytest.fixture
def start(tmp_path):
    """Yield a function that starts a program with its output in a file; all programs end with the test."""
    started = []

    def one(*argv, **env):
        with open(tmp_path / "output", "wb") as output:
            started.append(Program(sys.executable, argv, ENV | env, tmp_path, output.fileno()))
        return started[-1]

    yield one
    for program in started:
        program.kill()
        program.close()


def output(tmp_path):
    return (tmp_path / "output").read_text()


SHOW = (
    "import os, sys; print(sys.argv, os.environ['A'], os.getcwd(), 'torch' in sys.modules, file=sys.stderr)"
)


@pytest.mark.parametrize(
    ("env", "warm"), [({}, True), ({"PYTHONUNBUFFERED": "1"}, True), ({"TORCH_LOGS": ""}, False)], ids=str
)
def test_it_has_its_arguments_environment_and_folder_and_is_cold_where_libraries_read_a_variable(
    start, tmp_path, env, warm
):
    assert start(sys.executable, "-c", SHOW, "one", A="b", **env).wait() == 0
    assert output(tmp_path) == f"['-c', 'one'] b {tmp_path} {warm}\n"


def test_a_file_finds_what_lies_beside_it(start, tmp_path):
    (tmp_path / "beside.py").write_text("WORD = 'found'")
    (tmp_path / "main.py").write_text("import beside, sys; print(beside.WORD, __name__); sys.exit('why')")
    assert start(sys.executable, tmp_path / "main.py").wait() == 1
    assert output(tmp_path) == "why\nfound __main__\n"  # stdout is flushed last


# Like a payload's modules: from a source without a file of its own.
SOURCE = b"def outer():\n    return (lambda: sys._getframe().f_code.co_filename)()"
LOAD = f"""
import sys
from importlib.machinery import SourceFileLoader
class Loader(SourceFileLoader):
    def get_data(self, path):
        return {SOURCE!r}
exec(Loader("module", sys.argv[1]).get_code("module"))
print(outer())
"""


def test_a_source_without_a_file_is_compiled_once_and_has_each_programs_own_path(start, tmp_path):
    compiled = []
    for path in ("/one/module.py", "/another/module.py"):
        assert start(sys.executable, "-c", LOAD, path).wait() == 0
        assert output(tmp_path) == f"{path}\n"
        (code,) = Path(os.environ[SHARED]).glob(f"*/{hashlib.sha256(SOURCE).hexdigest()}.code")
        compiled.append(code.stat().st_ino)

    assert compiled[0] == compiled[1]


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        ((sys.executable, "-c", "raise SystemExit(3)"), 3),
        ((sys.executable, "-c", "1 / 0"), 1),
        ((sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"), -signal.SIGKILL),
        (("sh", "-c", "exit 7"), 7),
    ],
    ids=["sys.exit", "an exception", "a signal", "another program"],
)
def test_its_end_is_told(start, argv, code):
    program = start(*argv)
    assert program.wait() == code
    assert program.poll() == code


def test_what_can_not_be_started_is_an_error_of_the_system(start):
    with pytest.raises(FileNotFoundError):
        start("no-such-program")


# It leaves a process in a session of its own, with its parent gone.
LEAVE = """
import os, time
if not os.fork():
    os.setsid()
    if not os.fork():
        time.sleep(1000)
    os._exit(0)
os.wait()
"""


def test_what_it_leaves_is_known_and_is_killed_when_nobody_asks_for_it_any_more(start):
    program = start(sys.executable, "-c", LEAVE)
    assert program.wait() == 0
    (left,) = [pid for pid in program.left() if "Z" not in Path(f"/proc/{pid}/stat").read_text()]
    program.close()
    until(lambda: not Path(f"/proc/{left}").exists())
