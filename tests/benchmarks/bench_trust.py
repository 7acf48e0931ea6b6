"""Hostile and damaged inputs by area: how many are tried and survived, and what the worst costs.

The inputs are those of the tests; an area with failing tests survives fewer than it tries. Memory is the
peak of its process beyond what the imports take. At the end come the ports that a job on this machine opens.
"""

import os
import re
import sys
import time
from pathlib import Path

from nbtorchjob import Elastic, PyTorch, Worker, submit
from nbtorchjob.backends.local import directory
from nbtorchjob.backends.local.directory import JobDirectory
from nbtorchjob.spec.config import Launch
from tests.benchmarks.measure import own_state
from tests.runtime.test_ports import listens, meet, until_met

ROOT = Path(__file__).resolve().parents[2]
FORGED = ("", ""), ("frontends/cli/", "_facts"), ("frontends/server/", "_facts")
TENDING, QUEUE = "backends/kubernetes/control/test_tending.py", "backends/local/launch/test_queue.py"
AREAS = {
    "forged facts": tuple(f"{where}test_forged{more}.py" for where, more in FORGED),
    "frames": ("runtime/store/test_frames.py", "backends/kubernetes/test_cache.py"),
    "values": (
        *(f"runtime/objects/test_{name}.py" for name in ("codec", "wire")),
        "backends/kubernetes/test_trust.py",
    ),
    "records, files": (
        "backends/local/test_directory.py",
        "backends/kubernetes/test_damaged_records.py",
    ),
    "requests": tuple(f"frontends/server/test_{name}.py" for name in ("security", "handlers", "requests")),
    "API answers": ("backends/kubernetes/api/test_wrong_answers.py", "frontends/server/test_clusters.py"),
    "terminal strings": ("frontends/cli/test_terminal.py", "text"),
    "node answers": ("backends/test_forged_answers.py",),
    "the nodes' store": ("runtime/rendezvous/test_signed.py", "runtime/lab/test_lab.py"),
    "replayed messages": ("runtime/rendezvous/test_signed.py", "runtime/ask/test_answering.py"),
    "stores": (
        *("runtime/store/test_store.py", "runtime/api/test_checkpoints.py", "runtime/start/test_boot.py"),
        *(f"runtime/install/test_{name}.py" for name in ("packages", "shipped")),
        "backends/kubernetes/payload",
    ),
    "clocks": (
        "backends/local/test_clocks.py",
        f"{QUEUE}::test_a_job_waits_for_its_turn_and_says_so",
        f"{TENDING}::test_a_clock_that_is_wrong_ends_and_removes_no_job_and_holds_none_up",
        "runtime/debug/test_patience.py",
        "runtime/facts/test_injected.py",
    ),
    "runs of a group": ("backends/kubernetes/test_runs.py",),
    "trainer's status": ("runtime/api/test_trainerstatus.py",),
    "objects' labels": ("backends/kubernetes/control/test_belonging.py",),
    "objects' names": ("backends/kubernetes/test_names.py",),
    "admission policy": ("backends/kubernetes/test_deployment.py",),
    "a tender's Role": ("backends/kubernetes/control/test_role.py",),
    "secrets": ("spec/test_secret_env.py", "backends/kubernetes/test_secret_env.py"),
    "repositories": ("environment/test_git.py",),
    "compilers' caches": ("runtime/start/test_compilers.py", "backends/local/launch/test_compilers.py"),
}
LAUNCHES: dict[str, Launch] = {
    "one node of two ranks": Elastic(nproc_per_node=2),
    "two nodes": PyTorch(worker=Worker(replicas=1)),
}
HEADS = ("area", "inputs", "survived", "worst, s", "memory, MiB")


def tests(files: tuple[str, ...], *options: str) -> tuple[str, float]:
    """Run an area's tests; return the output of pytest, and the peak memory of its process, in MiB."""
    words = [sys.executable, "-m", "pytest", "-q", *options, *(f"tests/{file}" for file in files)]
    read, write = os.pipe()
    pid = os.posix_spawn(
        words[0],
        words,
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, write, 1), (os.POSIX_SPAWN_DUP2, write, 2)],
    )
    os.close(write)
    with open(read, errors="replace") as file:
        text = file.read()
    _, status, used = os.wait4(pid, 0)
    if os.waitstatus_to_exitcode(status) > 1:  # no test ran, as when a file has moved
        raise SystemExit(text)
    return text, used.ru_maxrss / 1024


def area(files: tuple[str, ...]) -> tuple[str, ...]:
    """Return the cells of an area's row, without its name."""
    _, before = tests(files, "--collect-only")
    text, peak = tests(files, "--hypothesis-show-statistics", "--durations=50")
    examples = sum(map(int, re.findall(r"(\d+) passing, ", text)))
    broken = sum(map(int, re.findall(r"(\d+) failing, ", text)))
    properties = len(re.findall(r"^\S+::\S+:$", text, re.MULTILINE))
    passed, failed = (
        sum(map(int, re.findall(rf"(\d+) {word}", text.splitlines()[-1]))) for word in ("passed", "failed")
    )
    worst = max(map(float, re.findall(r"^([\d.]+)s call", text, re.MULTILINE)), default=0.0)
    good = examples + passed - properties
    return str(good + broken + failed), str(good), f"{worst:.2f}", f"{max(0.0, peak - before):.0f}"


def ports(folder: Path, launch: Launch) -> list[str]:
    """Return the address of each port that a job has open once its ranks have met."""
    folder.mkdir()
    job = submit(meet, str(folder), spec=launch)
    until_met(folder)
    retry_owner = None
    while retry_owner is None:
        retry_owner = JobDirectory(directory.jobs_dir() / job.name).supervisor()
        time.sleep(0.01)
    addresses: list[str] = listens(retry_owner.pid)
    (folder / "seen").touch()
    job.result()
    return addresses


def main() -> None:
    os.chdir(ROOT)
    rows = [HEADS, *((name, *area(files)) for name, files in AREAS.items())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
    for first, *rest in rows:
        print(
            "  ".join([first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(rest, widths[1:], strict=True))])
        )
    with own_state() as folder:
        for name, launch in LAUNCHES.items():
            addresses = ports(folder / name.replace(" ", "-"), launch)
            summary = ", ".join(f"{addresses.count(count)} at {count}" for count in sorted(set(addresses)))
            print(f"ports of a job of {name}: {summary}")


if __name__ == "__main__":
    main()
