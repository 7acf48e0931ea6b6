"""Run the suite and the cases of this folder on the cluster that ``KUBECONFIG`` leads to; print a table.

``python -m tests.cluster [WORD]``: only cases whose title has the word, without the suite. It makes
namespaces of its own, touches no other one, and removes them. NBTORCHJOB_TEST_IMAGE has this Python's minor
version and torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.cluster.cases import CASES, NOT_TRIED, Case
from tests.cluster.site import Site, site

SUITE = "tests/backends/kubernetes/test_cluster.py"


def tried(run: Case, here: Site) -> str:
    """Run a case; return why it isn't as it should be, "" if it is."""
    try:
        run(here)
    except Exception as exc:
        return " ".join(f"{type(exc).__name__}: {exc}".split())
    return ""


def row(title: str, seconds: float, said: str) -> str:
    """Return a row of the table."""
    return f"| {title} | {seconds:.0f} s | {said} |"


def main(words: list[str]) -> int:
    """Try all, print the table; return how many weren't as they should be."""
    kubeconfig = os.environ.get("KUBECONFIG", str(Path.home() / ".kube" / "config"))
    image = os.environ.get("NBTORCHJOB_TEST_IMAGE", "localhost/torch:1")
    patience = float(os.environ.get("NBTORCHJOB_TEST_PATIENCE_S", "300"))
    rows, wrong = [], 0
    if not words:
        began = time.monotonic()
        env = {**os.environ, "NBTORCHJOB_TEST_KUBECONFIG": kubeconfig}
        ran = subprocess.run([sys.executable, "-m", "pytest", "-q", SUITE], env=env, check=False)
        wrong += ran.returncode != 0
        said = f"**exit code {ran.returncode}**" if ran.returncode else "right"
        rows.append(row(SUITE, time.monotonic() - began, said))
    with site(kubeconfig, image, patience) as here:
        for title, run in CASES.items():
            if all(word in title for word in words):
                began, why = time.monotonic(), tried(run, here)
                wrong += bool(why)
                rows.append(row(title, time.monotonic() - began, f"**{why}**" if why else "right"))
                print(rows[-1], flush=True)
    kept = [] if words else [f"| {title} | | not tried: {why} |" for title, why in NOT_TRIED.items()]
    print("\n| case | took | |\n|---|---|---|", *rows, *kept, sep="\n")
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
