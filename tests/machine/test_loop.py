"""The one background loop, whoever comes to it first."""

import subprocess

from tests.patience import LIMIT
from tests.programs import program


def test_threads_that_come_first_together_share_one_loop():
    done = subprocess.run(program("together"), capture_output=True, text=True, timeout=LIMIT, check=True)

    assert done.stdout.split() == ["16", "1"]
