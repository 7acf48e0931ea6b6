"""Run cloudpickle's own tests with the pickler of captures in its place, and print which of them pass.

``python tests/benchmarks/cloudpickle_tests.py`` fetches the last source distribution with tests (2.2.1) with
pip, runs them without and with that replacement, and prints a row for each that differs. They need psutil.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

_SOURCE = "cloudpickle==2.2.1"
# Python runs this at each start, also in the processes that the tests start.
_SHIM = """
import pickle, sys, types
import cloudpickle.cloudpickle as theirs
import cloudpickle

sys.modules["cloudpickle.compat"] = compat = types.ModuleType("cloudpickle.compat")
compat.pickle = cloudpickle.compat = pickle
compat.pickle = pickle

def cell_set(cell, value):
    cell.cell_contents = value

for name, value in {"cell_set": cell_set}.items():
    if not hasattr(theirs, name):
        setattr(theirs, name, value)

def rebuilt(data, buffers):
    return pickle.loads(data, buffers=buffers)["value"]

class Whole:
    def __init__(self, pickled):
        self.args = pickled.data, [bytes(view) for view in pickled.buffers]
    def __reduce__(self):
        return rebuilt, self.args

rebuilt.__module__ = "sitecustomize"

def dumps(value, protocol=None, buffer_callback=None):
    from nbtorchjob.capture import pickling
    return pickle.dumps(Whole(pickling.dump({"value": value}, vars(sys.modules["__main__"]))), protocol)

if OURS:
    cloudpickle.dumps = theirs.dumps = dumps
    cloudpickle.dump = theirs.dump = lambda value, file, protocol=None, buffer_callback=None: file.write(
        dumps(value, protocol)
    )
"""
_OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED) \S*?::(\S+)(?: - (.*))?$", re.MULTILINE)


def outcomes(folder: Path, *, ours: bool) -> dict[str, tuple[str, str]]:
    """Run the tests; return the outcome of each, and its reason."""
    (folder / "sitecustomize.py").write_text(f"OURS = {ours}\n{_SHIM}")
    package = folder / "tests" / "cloudpickle_testpkg"
    path = os.pathsep.join([str(folder), str(package), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rpfE", "--tb=no", "-p", "no:cacheprovider", *_CHOSEN],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "400"},
        capture_output=True,
        text=True,
        check=False,
    )
    verdicts = {name: (outcome, why) for outcome, name, why in _OUTCOME.findall(done.stdout)}
    if not verdicts:
        raise SystemExit(done.stdout + done.stderr)
    return verdicts


_CHOSEN = ("tests/cloudpickle_test.py", "-k", "not Protocol2")


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*pip, "-d", name, _SOURCE], check=True)
        with tarfile.open(next(folder.glob("*.tar.gz"))) as source:
            source.extractall(folder, filter="data")
        inner = next(folder.glob("cloudpickle-*/"))
        shutil.rmtree(inner / "cloudpickle")  # the tests are to import the installed one
        baseline, candidate = outcomes(inner, ours=False), outcomes(inner, ours=True)
    good = [test for test, (outcome, _) in baseline.items() if outcome == "PASSED"]
    same = [test for test in good if candidate.get(test, ("", ""))[0] == "PASSED"]
    print(f"{len(good)} of {len(baseline)} pass with cloudpickle, {len(same)} of them with a capture's")
    for test in sorted(set(good) - set(same)):
        print(f"{test:<70} {' '.join(candidate.get(test, ('', 'not run')))[:200]}")


if __name__ == "__main__":
    main()
