"""macOS as a client: nothing that it lacks may be imported or called."""

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "programs" / "on_macos.py"


def test_a_client_without_linuxs_own_calls_imports_and_dry_runs():
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, check=False)

    assert done.stdout.splitlines() == [
        "imported",
        "True",
        "backend: got 'local', but it must be 'kubernetes' here: jobs on this machine need Linux",
        "No jobs.",
    ], done.stderr
