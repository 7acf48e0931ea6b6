"""Run all benchmarks, or those named, and print one table of the rows that have a goal.

    python -m tests.benchmarks [--against CHECKOUT] [NAME...]

``--against`` runs each benchmark on another checkout's code as well, in turn with ours, so that a change
shows above the noise: ``now/then`` below 1 is faster.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median

from tests.benchmarks.measure import ROWS, Row, printed

HERE = Path(__file__).parent
TURNS = 3  # of each checkout, if there are two


def main() -> int:
    names = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(names)}; default: all")
    parser.add_argument("--against", type=Path, help="a checkout to compare with")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - {*names}:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    if arguments.against and not (arguments.against / "nbtorchjob" / "__init__.py").is_file():
        parser.error(f"{arguments.against} is no checkout of this project")
    checkouts = [HERE.parents[1], *([arguments.against.resolve()] if arguments.against else [])]
    failed = []
    tables: dict[Path, dict[str, list[Row]]] = {checkout: defaultdict(list) for checkout in checkouts}
    for name in arguments.names or names:
        for checkout in checkouts * (TURNS if arguments.against else 1):
            rows = run(name, checkout)
            failed += [] if rows is not None else [f"{name} on {checkout}"]
            for key, row in rows or ():
                tables[checkout][key].append(row)
    summarize(*tables.values())
    for benchmark in dict.fromkeys(failed):
        print(f"FAILED: {benchmark}")
    return 1 if failed else 0


def run(name: str, checkout: Path) -> list[tuple[str, Row]] | None:
    """Run our benchmark of that name on the code of a checkout; return its rows, or None if it fails."""
    print(f"\n--- {name} ({checkout})", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        # The package is the checkout's, the benchmarks are ours.
        (Path(folder) / "tests").symlink_to(HERE.parent)
        path = Path(folder) / "rows"
        env = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{checkout}", ROWS: str(path)}
        argv = [sys.executable, "-m", f"tests.benchmarks.bench_{name}"]
        code = subprocess.run(argv, env=env, cwd=folder).returncode  # -m searches the current folder first
        lines = path.read_text().splitlines() if path.exists() else []
    return [(key, Row(**row)) for key, row in map(json.loads, lines)] if code == 0 else None


def summarize(now: dict[str, list[Row]], then: dict[str, list[Row]] | None = None) -> None:
    """Print the rows that have a goal: the ratio, the best peer's in that table, the other checkout's."""
    lines = [["", "ratio", "goal", "", "best peer", *(["then", "now/then"] if then is not None else [])]]
    for key, rows in now.items():
        goal = rows[0].goal
        if goal is None:
            continue
        ratio = median(row.ratio for row in rows)
        table = key.rpartition(": ")[0]
        peers = [row for other, of in now.items() for row in of if row.peer and other.startswith(table)]
        best = f"{min(peer.ratio for peer in peers):.3f}" if peers else ""
        line = [key, f"{ratio:.3f}", f"<= {goal:g}", "ok" if ratio <= goal else "OVER", best]
        if then is not None:
            before = [row.ratio for row in then.get(key, ())]
            line += [f"{median(before):.3f}", f"{ratio / median(before):.2f}"] if before else ["", ""]
        lines.append(line)
    print(f"\n{'All goals':=<60}")
    printed(lines)


if __name__ == "__main__":
    sys.exit(main())
