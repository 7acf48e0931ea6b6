"""How long 10,000 files of 1 kB take from the notebook's folder to a node's.

*tar* packs and unpacks them with Python's tarfile, compressed like a payload. Both mostly create files:
TMPDIR=/dev/shm leaves out the disk, and the other processes that write to it.
"""

import io
import os
import random
import shutil
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

from nbtorchjob import Elastic, JobSpec, capture, submit
from nbtorchjob.capture import shipped
from nbtorchjob.payload import archive
from nbtorchjob.runtime.install import shipped as there
from nbtorchjob.runtime.store.payload import Payload
from tests.benchmarks.measure import Row, in_turn, medians, own_state, show, spread

ROUNDS = 5
FILES, BYTES = 10_000, 1000
FAR = JobSpec(Elastic(nproc_per_node=2), "kubernetes", ship=["many"])
HERE = JobSpec(Elastic(nproc_per_node=2), ship=["many"])


def fill(folder: Path) -> None:
    words = [str(number) for number in range(1000)]
    draw = random.Random(0)
    for number in range(FILES):
        path = folder / f"{number % 100}" / f"{number}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(" ".join(draw.choices(words, k=BYTES // 4)))


def taken(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.call = capture.from_function(print)
        os.chdir(folder)
        fill(folder / "many")

    def tar(self) -> float:
        def both() -> None:
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as file:
                file.add("many")
            packed.seek(0)
            with tarfile.open(fileobj=packed) as file:
                file.extractall(self.empty(), filter="data")

        return taken(both)

    def collect(self) -> float:
        def find() -> None:
            self.found = self.call.with_files(shipped.collect(["many"], self.folder, limit=1 << 30))

        return taken(find)

    def pack(self) -> float:
        def write() -> None:
            with open("job.pyz", "wb") as file:
                archive.write(file, self.found, FAR, b"k" * 32)

        return taken(write)

    def lay(self) -> float:
        node = self.empty()

        def extract() -> None:
            there.lay(Payload(str(self.folder / "job.pyz")), str(node))

        os.chdir(node)
        try:
            return taken(extract)
        finally:
            os.chdir(self.folder)

    def job(self, spec: JobSpec) -> float:
        started = time.perf_counter()
        job = submit(os.getpid, spec=spec)
        job.result(120)
        took = time.perf_counter() - started
        job.delete()
        return took

    def empty(self) -> Path:
        shutil.rmtree(self.folder / "empty", ignore_errors=True)
        (self.folder / "empty").mkdir()
        return self.folder / "empty"


def main() -> None:
    with own_state() as folder:
        bench = Bench(folder)
        subjects = {
            "tar": bench.tar,
            "find and read": bench.collect,
            "pack": bench.pack,
            "lay": bench.lay,
            "a job here with them": lambda: bench.job(HERE),
            "a job here without": lambda: bench.job(JobSpec(Elastic(nproc_per_node=2))),
        }
        times = in_turn(subjects, ROUNDS)
        took = medians(times)
        took["all three"] = took["find and read"] + took["pack"] + took["lay"]
        goals = {"all three": 1.0}
        rows = [
            Row(name, value, took["tar"], goals.get(name), peer=name == "tar") for name, value in took.items()
        ]
        size = (folder / "job.pyz").stat().st_size
        show(f"Ship: {FILES:,} files of 1 kB", "tar", rows, f"payload {size / 1e6:.1f} MB", spread(times))


if __name__ == "__main__":
    main()
