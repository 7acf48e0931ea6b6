"""How long a cell takes on two ranks that stand: `1 + 1`, from sending it until rank 0's value is home.

Beside it are ipyparallel's ``%%px`` on two engines of its own, which is what one would take on one machine,
and the same cell as a job of its own, warm.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

import nbtorchjob
from nbtorchjob import Elastic
from tests.benchmarks.measure import Row, own_state, show

ROUNDS = 5
CELLS = 60  # a round
JOBS = 4
TWO = Elastic(nproc_per_node=2)
IPYPARALLEL = "ipyparallel==9.2.0"

# Runs as many cells as each line of its input says, and prints how long each took.
PX = """
import json, sys, time
import ipyparallel
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

if __name__ == "__main__":
    with ipyparallel.Cluster(n=2, log_level=40) as client:
        shell = InteractiveShell.instance()
        client[:].activate()
        for line in sys.stdin:
            took = []
            for _ in range(int(line)):
                began = time.perf_counter()
                with capture_output() as shown:
                    shell.run_cell_magic("px", "--block", "1 + 1")
                took.append(time.perf_counter() - began)
                assert len(shown.outputs) == 2, shown
            print(json.dumps(took), flush=True)
"""


def timed(run: Callable[[], object], times: int) -> list[float]:
    """Return how long each of so many runs took."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        assert run() == 2
        took.append(time.perf_counter() - began)
    return took


@contextmanager
def engines(folder: Path) -> Iterator[Callable[[int], list[float]] | None]:
    """Give what times ipyparallel's cells; None where it can't be installed."""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder / "ipyparallel")]
    for wanted in (["--no-deps", IPYPARALLEL], ["decorator"]):  # the rest is there
        if subprocess.run([*install, *wanted], capture_output=True).returncode != 0:
            yield None
            return
    script = folder / "px.py"
    script.write_text(PX)
    env = {
        "PYTHONPATH": str(folder / "ipyparallel"),
        "IPYTHONDIR": str(folder / "ipython"),
        "HOME": str(folder),
    }
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, str(script)], env=env, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        stdin, stdout = process.stdin, process.stdout
        assert stdout is not None

        def run(times: int) -> list[float]:
            print(times, file=stdin, flush=True)
            return list(json.loads(stdout.readline()))

        try:
            yield run
        finally:
            stdin.close()


def main() -> None:
    with own_state() as folder, engines(folder) as px, nbtorchjob.keep(TWO, name="lab") as lab:
        subjects: dict[str, Callable[[], list[float]]] = {
            "a cell on standing ranks": lambda: timed(lambda: lab.run_cell("1 + 1").result(), CELLS),
            "a job of its own, warm": lambda: timed(lambda: nbtorchjob.submit(two, spec=TWO).result(), JOBS),
        }
        if px is not None:
            subjects["ipyparallel's %%px"] = lambda: px(CELLS)
        taken: dict[str, list[float]] = {name: [] for name in subjects}
        for subject in subjects.values():
            subject()  # warm
        for _ in range(ROUNDS):
            for name, subject in subjects.items():
                taken[name] += subject()
    report(taken)


def two() -> int:
    return 1 + 1


def report(taken: dict[str, list[float]]) -> None:
    at = {name: (median(took), quantiles(took, n=100)[98]) for name, took in taken.items()}
    (cell, worst), (job, _) = at["a cell on standing ranks"], at["a job of its own, warm"]
    rows = [Row("a cell on standing ranks", cell, job, goal=1 / 3)]
    if "ipyparallel's %%px" in at:
        px, px_worst = at["ipyparallel's %%px"]
        rows += [
            Row("ipyparallel's %%px", px, job, peer=True),
            Row("a cell, of ipyparallel's", cell, px, goal=1.0),
            Row("the 99th of 100 cells, of ipyparallel's", worst, px_worst, goal=1.0),
        ]
    show("1 + 1 on two ranks that stand", "a warm job of its own", rows)


if __name__ == "__main__":
    main()
