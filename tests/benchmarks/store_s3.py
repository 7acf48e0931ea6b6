"""Use S3 as the store from end to end: moto's server here, s3fs in the kernel and on pods of the emulator.

    pip install 'moto[server]' s3fs     # into an environment of its own: botocore wants an older dateutil
    python -m tests.benchmarks.store_s3

All that a job of two nodes sends and leaves goes through it: a payload and shipped files that are too big for
the API, uv and what it installs, a value, artifacts, checkpoints, retries; then ``gc`` finds what no job
uses. Each step prints what the bucket holds; an unexpected outcome raises.
"""

import importlib
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec

from nbtorchjob import Job, Retry, api, capture, submission
from nbtorchjob.backends.kubernetes.payload import shared
from nbtorchjob.environment.wheels import installer
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state.facts.events import Installed
from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.cluster.images import TORCH, built
from tests.benchmarks.measure import own_state
from tests.environment.built import wheel

STORE, CHECKPOINTS = "s3://bucket/jobs", "s3://bucket/checkpoints"
MB = 1_000_000
WITHIN_S = 120
CELL = """
import nbtj_fresh
from pathlib import Path
from nbtorchjob import RecoverableError, artifacts_dir, attempt, checkpoint_dir

saved = checkpoint_dir() / "step"
before = saved.read_text() if saved.exists() else ""
if attempt() == 1 and fails:
    saved.write_text("7")
    raise RecoverableError("once")
(artifacts_dir() / "big.bin").write_bytes(bytes(6 * MB))
(artifacts_dir() / "sub").mkdir(exist_ok=True)
(artifacts_dir() / "sub" / "note.txt").write_text("left")
shipped = Path("big.txt").stat().st_size, Path("small.txt").read_text()
len(data), *shipped, nbtj_fresh.version, before, bytes(6 * MB)
"""


@contextmanager
def s3() -> Iterator[dict[str, str]]:
    """Serve an empty bucket; yield the environment variables that lead there."""
    server_of: Any = importlib.import_module("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = server_of.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    variables = {
        "AWS_ENDPOINT_URL": f"http://localhost:{port}",  # by name: the emulator maps ports of 127.* addresses
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    os.environ.update(variables)
    fresh().mkdir("bucket")
    try:
        yield variables
    finally:
        server.stop()


def fresh() -> Any:
    """Return a new file system, which has cached nothing yet."""
    return fsspec.filesystem("s3", skip_instance_cache=True)


def held() -> dict[str, int]:
    """Return the size of each file that the bucket holds."""
    files: Mapping[str, Any] = fresh().find("bucket", detail=True)
    return {name.removeprefix("bucket/"): file["size"] for name, file in files.items()}


def show(title: str, began: float) -> None:
    print(f"{title} [{time.monotonic() - began:.1f} s]")
    for name, size in held().items():
        print(f"    {size:>11,}  {name}")
    sys.stdout.flush()


class Rig:
    """A sender of jobs that use S3 as their store."""

    def __init__(self, folder: Path, reached: Mapping[str, str]) -> None:
        self.index = folder / "index"
        wheel(self.index, "nbtj_fresh", "1.0", "nbtj_below")
        wheel(self.index, "nbtj_below")
        work = folder / "work"
        work.mkdir()
        (work / "big.txt").write_bytes(b"x" * MB)
        (work / "small.txt").write_text("small")
        os.chdir(work)
        self.spec = JobSpec(
            Elastic(nnodes=2),
            "kubernetes",
            env={**reached, "UV_OFFLINE": "1", "UV_FIND_LINKS": str(self.index)},
            package=["nbtj-fresh"],
            ship=["big.txt", "small.txt"],
            cluster=Cluster(
                namespace="default",
                image=TORCH,
                kind="indexedjob",
                memory="1500Mi",
                cpu="400m",
                storage=STORE,
                checkpoints=CHECKPOINTS,
            ),
        )

    def send(self, spec: JobSpec, *, fails: bool = False) -> Job[Any]:
        """Submit the cell."""
        space = {"data": os.urandom(20 * MB), "fails": fails, "MB": MB}
        return submission.submit(capture.from_cell(CELL, space), spec)


def ended(job: Job[Any], before: str = "", by: str = "") -> None:
    """Assert that a job returned, installed and left what it should."""
    *values, big = job.result(WITHIN_S)
    assert values == [20 * MB, MB, "small", "1.0", before], values
    assert len(big) == 6 * MB
    installs = [install for install in job.state.installs.values() if isinstance(install, Installed)]
    assert {install.by for install in installs} == {by}, installs
    folder = Path(f"left by {job.name}")
    job.artifacts(folder)
    assert (folder / "big.bin").stat().st_size == 6 * MB
    assert (folder / "sub" / "note.txt").read_text() == "left"


def leftovers() -> list[str]:
    """Return what ``gc`` finds in the store."""
    return [f"{left.name}: {left}" for _, left in api.leftovers() if "://" in left.name]


def main() -> None:
    with own_state() as folder, s3() as reached, Emulator(kinds=("indexedjob",)) as cluster:
        os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
        for path in Path(built(TORCH)).parent.glob("lib/*/site-packages/uv*"):
            path.unlink()  # this environment's uv: the image is to have none
        rig = Rig(folder, reached)
        began = time.monotonic()
        first = rig.send(rig.spec)
        show("sent", began)
        ended(first, by="uv" if installer() else "pip")
        show("ended, all home", began)

        for entry in rig.index.iterdir():
            entry.unlink()
        began = time.monotonic()
        again = first.retry()
        ended(again)
        show("again, of the same payload, without an index", began)
        began = time.monotonic()
        spec = replace(rig.spec, retry=Retry(retries=1))
        retried = rig.send(spec, fails=True)
        ended(retried, before="7")
        show("a second attempt, from a checkpoint", began)

        shared._UNUSED_S = shared._YOUNG_S = -1.0  # a month, and an hour: S3 sets the times of files itself
        print("gc, beside jobs that have ended:", leftovers())
        assert not any("_shipped" in leftover for leftover in leftovers())  # as jobs use it
        first.delete()
        assert not [name for name in held() if name.startswith(f"jobs/{first.name}/")], held()
        again.delete()
        retried.delete()
        show("deleted", time.monotonic())
        print("gc:", leftovers())
        for backend, left in api.leftovers():
            backend.clear(left)
        show("after gc", time.monotonic())
        assert held() == {}

        wheel(rig.index, "nbtj_fresh", "1.0", "nbtj_below")
        wheel(rig.index, "nbtj_below")
        began = time.monotonic()
        last = rig.send(rig.spec)
        ended(last, by="uv" if installer() else "pip")
        show("sent once more by the same kernel", began)
        last.delete()


if __name__ == "__main__":
    main()
