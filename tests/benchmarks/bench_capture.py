"""How long a capture takes, beside plain pickle: big graphs of small objects, and cells.

Run it with ``python -m tests.benchmarks capture``.
"""

import pickle
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from nbtorchjob.capture import from_cell, pickling
from tests.benchmarks.measure import Row, show

TORCH_GOAL_S = 0.01  # of CPU time


class Point:
    """An ordinary object."""

    def __init__(self, x: int) -> None:
        self.x = x


GRAPHS: dict[str, Callable[[], Any]] = {
    "dict of 200,000 tuples": lambda: {f"key {n}": (n, n + 0.5, str(n)) for n in range(200_000)},
    "list of 200,000 objects": lambda: [Point(n) for n in range(200_000)],
    "list of 20,000 arrays": lambda: [np.arange(n % 7 + 1) for n in range(20_000)],
    "array of 400 MB": lambda: np.zeros(50_000_000),
}


def best(work: Callable[[], object], times: int = 3, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds that the fastest of some runs took."""
    took = []
    for _ in range(times):
        start = clock()
        work()
        took.append(clock() - start)
    return min(took)


def main() -> None:
    """Print the figures."""
    print(f"{'':<26}{'pickle':>10}{'dump':>10}{'capture':>10}{'times':>8}")
    for name, make in GRAPHS.items():
        value = make()
        space = {"__name__": "__main__", "value": value}
        plain = best(lambda: pickle.dumps(value, 5, buffer_callback=lambda _: None))  # noqa: B023
        dump = best(lambda: pickling.dump({"value": value}))  # noqa: B023
        whole = best(lambda: from_cell("value", space))  # noqa: B023
        print(f"{name:<26}{plain:>9.3f}s{dump:>9.3f}s{whole:>9.3f}s{whole / plain:>8.1f}")
    for lines in (1, 1_000, 10_000):
        text = "\n".join(f"if n{i}:\n    x{i} = n{i}\ny{i} = x{i}" for i in range(lines // 3 + 1))
        names = {name: 1 for i in range(lines // 3 + 1) for name in (f"n{i}", f"x{i}")}
        took = best(lambda: from_cell(text, {"__name__": "__main__", **names}))  # noqa: B023
        print(f"cell of {lines:>6,} lines{took:>33.3f}s")
    import torch  # late: the figures above are of a notebook without torch

    space = {"__name__": "__main__", "torch": torch}
    first, later = (best(lambda: from_cell("torch", space), times, time.process_time) for times in (1, 9))
    rows = [Row("the first", first), Row("a later one", later, 1, TORCH_GOAL_S)]
    show("Capture: CPU seconds of a cell that names torch, which is looked through for patches", "1", rows)


if __name__ == "__main__":
    main()
