"""Kill kernels, askers, ranks, nodes and pods of a pool at random moments, and check the pool's jobs.

Each rank of a job writes down that it runs, in a file that no cleanup reaches. The files show a job that was
lost, or that ran twice in one attempt; its value shows a job that ran another one's code. A job that the kill
has ended isn't lost if it reports its failure; with ``--retries`` it runs again.

With ``--beside`` two jobs of one node each run side by side, and a part of the first one is killed. If that
is its kernel or its rank, the other job has to succeed.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from nbtorchjob import api
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.objects.reading import PODS
from nbtorchjob.backends.kubernetes.session import Session
from nbtorchjob.errors import JobFailedError
from nbtorchjob.job import Job
from nbtorchjob.labs import Lab
from nbtorchjob.machine import folders
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.policies import Retry
from nbtorchjob.state import turns
from tests.benchmarks.kubernetes_cluster import NAMESPACE, SMALL, Apart, on_loop
from tests.benchmarks.measure import own_state

JOBS = 50
LATEST_S = 4.0  # at most, from sending the job to the kill
OVER_S = 120.0  # within which a job has to be over, whatever was killed
NODES = 2
VICTIMS = ("kernel", "asker", "rank", "node", "pod")
ASKER = b"pass_on("  # in the command of a process that brings questions into a pod

# A kernel that sends one job and waits for it, with a state folder of its own.
KERNEL = """
import sys
import nbtorchjob
from nbtorchjob import capture, submission
print("sends", flush=True)
call = capture.from_cell(sys.argv[1], {})
place = nbtorchjob.Cluster(namespace=sys.argv[2])
retry = nbtorchjob.Retry(retries=int(sys.argv[3]), backoff=0) if int(sys.argv[3]) else None
launch = nbtorchjob.Elastic(nnodes=int(sys.argv[4]))
job = submission.submit(call, nbtorchjob.JobSpec(launch, pool="warm", cluster=place, retry=retry))
print(job.name, flush=True)
job.wait()
"""

CELL = """
import os, time, uuid
import torch, torch.distributed as dist
from nbtorchjob import attempt
number = {number}
dist.init_process_group("gloo")
who = f"{{number}}-{{dist.get_rank()}}-{{os.getpid()}}-{{attempt()}}-{{uuid.uuid4().hex}}"
open(f"{folder}/{{who}}", "x").close()
total = torch.tensor(number * (dist.get_rank() + 1))
dist.all_reduce(total)
time.sleep(1.5)
int(total)
"""


class Trial:
    """One job of so many nodes, and the kill of a part of it."""

    def __init__(
        self, number: int, folder: Path, pool: Lab, cluster: Apart, retries: int, nodes: int = NODES
    ) -> None:
        self.number = number
        self._folder = folder
        self._pool = pool
        self._cluster = cluster
        self._retries = retries
        self._nodes = nodes
        self.killed = False  # whether there was something to kill
        self._cell = CELL.format(number=number, folder=folder)

    def run(self, victim: str, moment: float) -> str:
        """Send the job, and kill the victim, if any, at that moment; return what became of the job."""
        env = {**os.environ, folders.STATE: str(self._folder / f"state-{self.number}")}
        command = [sys.executable, "-c", KERNEL, self._cell, NAMESPACE, str(self._retries)]
        command.append(str(self._nodes))
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=env, **pipes) as kernel:
            assert kernel.stdout is not None
            assert kernel.stdout.readline() == "sends\n"
            until = time.monotonic() + moment
            kill = getattr(self, f"_kill_{victim}") if victim else lambda kernel, due: False
            while not kill(kernel, time.monotonic() >= until):
                if kernel.poll() is not None:
                    break
                time.sleep(0.005)
            else:
                self.killed = True
            try:
                name, problem = kernel.communicate(timeout=OVER_S)
            except subprocess.TimeoutExpired:
                kernel.kill()
                return f"LOST: {self._cell_is()} after {OVER_S:.0f} s"
        return self._outcome(name.strip(), problem)

    def _outcome(self, name: str, problem: str) -> str:
        job = self._job(name)
        began = [path.name.split("-") for path in self._folder.glob(f"{self.number}-?-*")]
        ran = Counter((rank, attempt) for _, rank, _, attempt, _ in began)
        if any(times > 1 for times in ran.values()):
            return f"RAN TWICE: {dict(ran)}"
        if job is None:
            if name or ran:
                return f"LOST: {name or 'it'} ran {dict(ran)}, and no record is left"
            why = problem.strip().splitlines()[-1][:100] if problem.strip() else "killed before"
            return f"never accepted: {why}"
        if not job.wait(OVER_S):
            return f"LOST: it {job.state.phase.word} after {OVER_S:.0f} s"
        error = job.exception()
        if error is None:
            value, expected = job.result(), self.number * sum(range(1, self._nodes + 1))
            if value != expected:
                return f"ANOTHER'S CODE: {value} instead of {expected}"
            ranks = {rank for rank, attempt in ran if attempt == max(attempt for _, attempt in ran)}
            times = "" if len(ran) == self._nodes else f": in attempt {max(attempt for _, attempt in ran)}"
            whole = len(ranks) == self._nodes
            return f"succeeded{times}" if whole else f"SUCCEEDED WITHOUT RUNNING: {dict(ran)}"
        assert isinstance(error, JobFailedError), error
        return f"failed: {' '.join(str(error).split())[:120]}"

    def _job(self, name: str) -> Job[Any] | None:
        """Return the job by its code, as a killed kernel may not know its name; else by that name."""
        pool_turns = turns.turns(self._pool.state)
        matches = [turn for turn in pool_turns if f"number = {self.number}\n" in turn.fact.text]
        assert len(matches) <= 1, matches
        return api.attach(f"warm#{matches[0].number}") if matches else api.attach(name) if name else None

    def _cell_is(self) -> str:
        job = self._job("")
        return f"it is {job.state.phase.word}" if job is not None else "it was not accepted"

    # Each of these kills its victim if it is due and the victim exists, and returns whether it did

    def _kill_kernel(self, kernel: "subprocess.Popen[str]", due: bool) -> bool:
        # In half of the trials once the job runs, however long it takes to send the job.
        if due and (self.number // 2 % 2 or any(self._folder.glob(f"{self.number}-?-*"))):
            kernel.kill()
            return True
        return False

    def _kill_asker(self, kernel: "subprocess.Popen[str]", due: bool) -> bool:
        askers = [pid for pid, words in commands() if ASKER in words and b"\0-c\0" in words]
        return sum(killed(pid) for pid in askers) > 0  # at once, as an asker lives for some milliseconds

    def _kill_rank(self, kernel: "subprocess.Popen[str]", due: bool) -> bool:
        return due and self._kill_above(0)

    def _kill_node(self, kernel: "subprocess.Popen[str]", due: bool) -> bool:
        # Above a rank are its zygote, the template of zygotes, and the agent.
        return due and self._kill_above(3)

    def _kill_above(self, generations: int) -> bool:
        """Kill the process so many generations above a rank of this job."""
        ran = sorted(self._folder.glob(f"{self.number}-?-*"))
        if not ran:
            return False
        pid = int(random.choice(ran).name.split("-")[2])
        with suppress(OSError):
            for _ in range(generations):
                pid = parent(pid)
            return pid > 1 and killed(pid)
        return False

    def _kill_pod(self, kernel: "subprocess.Popen[str]", due: bool) -> bool:
        async def delete(cluster_session: Session) -> bool:
            pods = (await cluster_session.client.list(PODS, NAMESPACE, labels=labelling.of("warm"))).items
            names = [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") == "Running"]
            if not names:
                return False
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{random.choice(names)}"
            async with self._cluster.plainly() as http:
                answer = await http.delete(path, json={"gracePeriodSeconds": 0})
                return answer.ok

        return due and on_loop(delete)


def killed(pid: int) -> bool:
    """Kill a process; return whether it existed."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def commands() -> Iterator[tuple[int, bytes]]:
    """Yield the descendants of this process and their commands; askers of others would look the same."""
    for entry in os.listdir("/proc"):
        with suppress(ValueError, OSError):
            pid = int(entry)
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            above = pid
            while above not in (0, os.getpid()):
                above = parent(above)
            if above:
                yield pid, words


def parent(pid: int) -> int:
    """Return the parent of a process; 0 for the first process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--retries", type=int, default=0, help="the budget of each job")
    parser.add_argument("--beside", action="store_true", help="run two jobs side by side")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    small: dict[str, Any] = {**SMALL}
    retry = Retry(retries=arguments.jobs, backoff=0)
    cluster = Cluster(kind="indexedjob", **small)
    spec = JobSpec(Elastic(nnodes=NODES), "kubernetes", cluster=cluster, retry=retry)
    outcomes: Counter[str] = Counter()
    kills = 0
    with own_state() as folder, Apart() as emulator:
        pool = api.pool(spec, name="warm")
        for number in range(1, arguments.jobs + 1, 1 + arguments.beside):
            victim = VICTIMS[(number // 2 if arguments.beside else number) % len(VICTIMS)]
            nodes = NODES // 2 if arguments.beside else NODES
            trial = Trial(number, folder, pool, emulator, arguments.retries, nodes)
            with ThreadPoolExecutor() as beside:
                other = Trial(number + 1, folder, pool, emulator, arguments.retries, nodes)
                running = beside.submit(other.run, "", 0.0) if arguments.beside else None
                outcome = trial.run(victim, random.uniform(0, LATEST_S))
            print(f"{number:3} {victim if trial.killed else '-':6} {outcome}", flush=True)
            outcomes[outcome.partition(":")[0]] += 1
            if running is not None:
                outcome = running.result()
                if victim in ("kernel", "rank") and outcome != "succeeded":
                    outcome = f"TOUCHED: {outcome}"
                print(f"{number + 1:3} beside {outcome}", flush=True)
                outcomes[outcome.partition(":")[0]] += 1
            kills += trial.killed
        pool.job.delete()
    print(f"\n{arguments.jobs} jobs, {kills} of them with something killed:")
    for outcome, count in outcomes.most_common():
        print(f"  {count:3} {outcome}")
    return int(any(outcome.isupper() for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
