"""How long the cell `1 + 1` takes on two standing ranks, from sending it until rank 0's value arrives.

It is compared with ipyparallel's ``%%px`` on two engines of its own, the usual choice on one machine, with
the same cell as a warm job of its own, and with the same cell once the ranks have run a thousand.
"""

import time
from collections.abc import Callable
from statistics import median, quantiles

import nbtorchjob
from nbtorchjob import Elastic
from nbtorchjob.backends.local.launch import pool
from tests.benchmarks.engines import engines
from tests.benchmarks.measure import Row, own_state, show

ROUNDS = 5
CELLS = 60  # a round
JOBS = 4
MANY = 1000
TWO = Elastic(nproc_per_node=2)

# Defines ``act``, which runs a cell on both engines.
PX = """
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

shell = InteractiveShell.instance()
client[:].activate()

def act():
    with capture_output() as shown:
        shell.run_cell_magic("px", "--block", "1 + 1")
    assert len(shown.outputs) == 2, shown
"""


def timed(run: Callable[[], object], times: int) -> list[float]:
    """Return how long each of so many runs took."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        assert run() == 2
        took.append(time.perf_counter() - began)
    return took


def main() -> None:
    with own_state() as folder, engines(folder, PX) as px, nbtorchjob.keep(TWO, name="lab") as lab:
        subjects: dict[str, Callable[[], list[float]]] = {
            "a cell on standing ranks": lambda: timed(lambda: lab.run_cell("1 + 1").result(), CELLS),
            "a job of its own, warm": lambda: timed(lambda: nbtorchjob.submit(two, spec=TWO).result(), JOBS),
        }
        if px is not None:
            subjects["ipyparallel's %%px"] = lambda: px(CELLS)
        samples: dict[str, list[float]] = {name: [] for name in subjects}
        pool.import_all()  # as it does in its first idle seconds, which would fall into some of the cells
        for subject in subjects.values():
            subject()  # warm
        for _ in range(ROUNDS):
            for name, subject in subjects.items():
                samples[name] += subject()
        timed(lambda: lab.run_cell("1 + 1").result(), MANY - ROUNDS * CELLS)
        samples["a cell after 1,000"] = timed(lambda: lab.run_cell("1 + 1").result(), 2 * CELLS)
    report(samples)


def two() -> int:
    return 1 + 1


def report(taken: dict[str, list[float]]) -> None:
    at = {name: (median(took), quantiles(took, n=100)[98]) for name, took in taken.items()}
    (cell, worst), (job, _) = at["a cell on standing ranks"], at["a job of its own, warm"]
    later, _ = at["a cell after 1,000"]
    rows = [
        Row("a cell on standing ranks", cell, job, goal=1 / 3),
        Row("a cell after 1,000, of the first ones", later, cell, goal=1.25),
    ]
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
