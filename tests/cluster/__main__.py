"""Run the suite and the cases of this folder on the cluster of ``KUBECONFIG``; print a table.

``python -m tests.cluster [--emulator] [WORD...]``: only cases with all words in their title, without the
suite. It creates namespaces, touches no others, and removes them. NBTORCHJOB_TEST_IMAGE has this Python's
minor version and torch. With NBTORCHJOB_TEST_ALONE=1 it may also cordon hosts and create queues for a while.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from tests.cluster.cases import CASES, Case
from tests.cluster.site import ALONE, NotHere, Site, left, site

SUITE = "tests/backends/kubernetes/test_cluster.py"
RIGHT = "right"


def tried(case: Case, here: Site, kind: str) -> str:
    """Run a case; return ``RIGHT``, the reason why this cluster can't run it, or the error in bold type."""
    try:
        case.run(here, kind)
    except NotHere as exc:
        return f"not here: {exc}"
    except Exception as exc:
        return f"**{' '.join(f'{type(exc).__name__}: {exc}'.split())}**"
    finally:
        here.clear()
    return RIGHT


def row(title: str, seconds: float, outcome: str) -> str:
    """Return a row of the table."""
    return f"| {title} | {seconds:.0f} s | {outcome} |"


def main(arguments: list[str]) -> int:
    """Run everything, print the table; return the number of failures."""
    words = [word for word in arguments if word != "--emulator"]
    image = os.environ.get("NBTORCHJOB_TEST_IMAGE", "localhost/torch:1")
    patience = float(os.environ.get("NBTORCHJOB_TEST_PATIENCE_S", "300"))
    rows = []

    def add(title: str, began: float, outcome: str) -> None:
        rows.append(row(title, time.monotonic() - began, outcome))
        print(rows[-1], flush=True)

    with ExitStack() as used:
        emulator = None
        kubeconfig = os.environ.get("KUBECONFIG", str(Path.home() / ".kube" / "config"))
        env = {**os.environ, "NBTORCHJOB_TEST_KUBECONFIG": kubeconfig}
        if "--emulator" in arguments:
            from tests.backends.kubernetes.cluster import Emulator
            from tests.backends.kubernetes.cluster.emulator import KINDS

            emulator = used.enter_context(Emulator(kinds=(*KINDS, "kueue")))
            kubeconfig = str(emulator.kubeconfig)
            del env["NBTORCHJOB_TEST_KUBECONFIG"]  # the suite has an emulator of its own
        if not words:
            began = time.monotonic()
            ran = subprocess.run([sys.executable, "-m", "pytest", "-q", SUITE], env=env, check=False)
            add(SUITE, began, f"**exit code {ran.returncode}**" if ran.returncode else RIGHT)
        alone = os.environ.get(ALONE, "") not in ("", "0")
        with site(kubeconfig, image, patience, alone=alone, emulator=emulator) as case_site:
            for case in CASES.values():
                for kind in case.kinds(case_site):
                    title = case.title if case.once else f"{case.title} ({kind})"
                    if all(word in title for word in words):
                        began = time.monotonic()
                        add(title, began, tried(case, case_site, kind))
        began, names = time.monotonic(), left(kubeconfig, patience)
        add("nothing is left behind", began, f"**{', '.join(names)}**" if names else RIGHT)
    print("\n| case | took | |\n|---|---|---|", *rows, sep="\n")
    return sum("**" in row for row in rows)


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
