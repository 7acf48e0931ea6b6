"""ipyparallel on two engines of its own, in a process beside the benchmark: a peer for cells and maps."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

IPYPARALLEL = "ipyparallel==9.2.0"

# Calls ``act`` as many times as each line of its input states, and prints how long each call took.
SERVES = """
import json, sys, time
import ipyparallel

if __name__ == "__main__":
    with ipyparallel.Cluster(n=2, log_level=40) as client:
        exec(sys.argv[1])
        for line in sys.stdin:
            took = []
            for _ in range(int(line)):
                began = time.perf_counter()
                act()
                took.append(time.perf_counter() - began)
            print(json.dumps(took), flush=True)
"""


@contextmanager
def engines(folder: Path, code: str) -> Iterator[Callable[[int], list[float]] | None]:
    """Yield a function that times calls of ``act``, which ``code`` defines for two engines' ``client``.

    Yield None if ipyparallel can't be installed.
    """
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder / "ipyparallel")]
    for arguments in (["--no-deps", IPYPARALLEL], ["decorator"]):  # the other dependencies are installed
        if subprocess.run([*install, *arguments], capture_output=True).returncode != 0:
            yield None
            return
    script = folder / "engines.py"
    script.write_text(SERVES)
    env = {
        "PYTHONPATH": str(folder / "ipyparallel"),
        "IPYTHONDIR": str(folder / "ipython"),
        "HOME": str(folder),
    }
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, str(script), code],
        env=env,
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.DEVNULL,
        text=True,
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
