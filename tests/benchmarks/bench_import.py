"""The cost of ``%load_ext nbtorchjob`` in a fresh IPython and of a command, and what they import."""

import compileall
import json
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import nbtorchjob
from nbtorchjob.backends.local.launch import pool
from tests.benchmarks.measure import Row, in_turn, medians, own_state, show, spread

ROUNDS = 9
HEAVY = ("torch", "kubernetes", "ipywidgets", "IPython", "cloudpickle", "numpy")

CLOCK = "import time\nstarted = time.perf_counter()\n"
TOOK = "print(time.perf_counter() - started)"
SHELL = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
"""
# A kernel has asyncio and more in memory already; its shell is imported with it, but not started.
KERNEL = "import ipykernel.ipkernel\n" + SHELL
LOAD = 'shell.run_line_magic("load_ext", "nbtorchjob")\nassert shell.find_cell_magic("torchjob")\n'
USE = 'shell.run_line_magic("torchjob", "config")\n'
IMPORT = "import nbtorchjob\n"
BROUGHT = f"import json, sys; print(json.dumps([name for name in {HEAVY} if name in sys.modules]))"


COMMANDS = {"nbtorchjob list": ["list"], "nbtorchjob's completion": ["__complete", "status", ""]}


def run(code: str) -> str:
    """Return what ``code`` prints in an interpreter of its own, away from any checkout."""
    argv = [sys.executable, "-c", code]
    return subprocess.run(argv, cwd="/", capture_output=True, text=True, check=True).stdout


def seconds(code: str) -> float:
    duration = float(run(code).split()[-1])  # a magic may print before
    pool.stop()  # the extension warms a pool up: each round starts without one
    return duration


def command(*words: str) -> float:
    """Return the seconds of a command, its interpreter's start included."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "nbtorchjob", *words], cwd="/", check=True, capture_output=True)
    return time.perf_counter() - started


def install(site: Path) -> None:
    """Lay the package out as pip does: with its bytecode, which a checkout may lack."""
    shutil.copytree(Path(nbtorchjob.__file__).parent, site / "nbtorchjob")
    if not compileall.compile_dir(site, quiet=1):
        raise SystemExit("the package doesn't compile")
    os.environ["PYTHONPATH"] = str(site)


def main() -> None:
    subjects = {
        "IPython's own start": CLOCK + SHELL + TOOK,
        "%load_ext nbtorchjob": SHELL + CLOCK + LOAD + TOOK,
        "%load_ext nbtorchjob, in a kernel": KERNEL + CLOCK + LOAD + TOOK,
        "first %torchjob, in a kernel, at once": KERNEL + LOAD + CLOCK + USE + TOOK,
        "import nbtorchjob": CLOCK + IMPORT + TOOK,
    }
    with own_state() as folder:
        os.environ["IPYTHONDIR"] = str(folder / "ipython")
        install(folder / "site")
        for code in subjects.values():  # to read the files once and make the profile
            seconds(code)
        imports = {name: partial(seconds, code) for name, code in subjects.items()}
        samples = in_turn(
            {**imports, **{name: partial(command, *words) for name, words in COMMANDS.items()}}, ROUNDS
        )
        plain = json.loads(run(IMPORT + BROUGHT))
        loaded = json.loads(run(SHELL + LOAD + BROUGHT))
    report(samples, plain, loaded)


def report(taken: dict[str, list[float]], plain: list[str], loaded: list[str]) -> None:
    times = medians(taken)
    base = times["IPython's own start"]
    # The goals are in seconds, not ratios: a user waits for seconds.
    goals = {name: 0.050 for name in times if name.startswith("%load_ext")} | dict.fromkeys(COMMANDS, 0.150)
    rows = [
        Row(name, value, base, goals[name] / base if name in goals else None) for name, value in times.items()
    ]
    show(
        "Import: in a fresh interpreter (goals: 50 ms, a command 150 ms)",
        "IPython",
        rows,
        spread(taken),
        brought("import nbtorchjob", plain, {"torch", "IPython", "ipywidgets", "kubernetes"}),
        brought("%load_ext nbtorchjob", loaded, {"torch", "ipywidgets", "kubernetes"}),
    )


def brought(what: str, modules: list[str], unwanted: set[str]) -> str:
    verdict = "OVER" if unwanted & set(modules) else "ok"
    return f"after {what}, of {', '.join(HEAVY)}: {', '.join(modules) or 'none'}  {verdict}"


if __name__ == "__main__":
    main()
