"""Jobs that hang in pods, each in its own way: a user's call names the rank and its line.

A job hangs in one way after another, each in a round of its own: torch restarts all ranks once they are
killed, and the cell looks up the next way. Two jobs take turns, as a wait shows only after a moment.
With NBTORCHJOB_TEST_HANGS=all these are all known ways, otherwise one for each kind of sample.
"""

import inspect
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from nbtorchjob import Elastic
from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.warm import children
from tests.patience import LIMIT
from tests.runtime import hangs

pytestmark = pytest.mark.torch

CELL = Path(hangs.__file__).read_text() + "\nwith open(which) as file:\n    name = file.read()\nALL[name]()\n"
RANKS = 4

# The ranks that are named, the start of the diagnosis, its words about a line of the cell, and that line.
TOLD = {
    "skipped_collective": (
        [1],
        "as call #4 of the default group rank 1 entered barrier, but ranks 0, 2-3 all_reduce float32[8]",
        "rank 1 waits in barrier #4 of the default group (",
        "dist.barrier()",
    ),
    "other_order": (
        [2],
        "as call #4 of the default group rank 2 entered broadcast float32[16], but ranks 0-1, 3 all_reduce",
        "rank 2 waits in broadcast #4 of the default group (",
        "dist.broadcast(second, 0)",
    ),
    "other_shape": (
        [2],
        "as call #4 of the default group rank 2 entered all_reduce float32[8], but ranks 0-1, 3 all_reduce "
        "float32[4]",
        "rank 2 waits in all_reduce #4 of the default group (",
        "dist.all_reduce(",
    ),
    "sleep": ([1], "rank 1 never entered all_reduce #4", "it sleeps in ", "time.sleep(LONG)"),
    "lock": ([1], "rank 1 never entered all_reduce #4", "it waits for a lock in ", "held.acquire()"),
    "full_queue": ([0], "rank 0 never entered barrier #4", "it waits for a queue in ", "waiting.put(2)"),
    "stuck_worker": (
        [1],
        "rank 1 never entered all_reduce #6",
        "it waits for its DataLoader in ",
        "for batch in",
    ),
    "stopped": ([1], "rank 1 is stopped, by a signal or a debugger", "ranks 0, 2-3 have waited for it", ""),
    "lock_of_python_held": ([1], "rank 1 is held by something in C", "in ", "ctypes.PyDLL(None)"),
    "subgroup": ([1], "rank 1 never entered barrier #4", "it sleeps in ", "time.sleep(LONG)"),
    "store_wait": ([2], "rank 2 never entered all_reduce #4", "it waits for a store in ", '.get("never")'),
    "read_of_a_pipe": ([0], "rank 0 never entered broadcast #4", "it reads in ", "os.read("),
    "crossed_groups": (
        [0, 1],
        "ranks 0-1 wait for each other",
        "rank 0 for rank 1 in all_reduce #1 of group first (ranks 0-1) (",
        "group=first)",
    ),
    "returned_early": ([1], "rank 1 never entered init_process_group", "it has returned", ""),
    "swallowed_exception": (
        [2],
        "rank 2 never entered all_reduce #7",
        "it sleeps in ",
        "time.sleep(0.5)",
    ),
    "other_root": (
        [0, 1],
        "in one call rank 0 entered broadcast from rank 0 in the default group, but rank 1 broadcast from ",
        "rank 1 waits in broadcast #4 of the default group from rank 1 (",
        "src=best",
    ),
    "other_group": (
        [1],
        "in one call rank 1 entered all_reduce in group model (ranks 0-3), but ranks 0, 2-3 all_reduce in",
        "rank 1 waits in all_reduce #1 of group model (ranks 0-3) (",
        "group=model",
    ),
    # Calls that aren't recorded: it is unknown how long a rank has waited in them.
    "missing_receiver": (
        [0, 1],
        "unsure: ranks 0-1 wait for each other",
        "rank 0 waits in send to rank 1 (",
        "dist.send(",
    ),
    "other_tag": (
        [0, 1],
        "unsure: ranks 0-1 wait for each other with different tags or groups",
        "rank 0 waits in send to rank 1 with tag 3 (",
        "tag=3",
    ),
    "ring": (
        [0, 1, 2, 3],
        "unsure: ranks 0-3 wait for each other",
        "rank 0 waits in recv from rank 3 (",
        "dist.recv(",
    ),
    "pipeline": ([1], "unsure: rank 0 waits in send to rank 1 (", "rank 1 sleeps in ", "time.sleep(LONG)"),
    "missing_sender": (
        [0, 1],
        "unsure: ranks 0-1 wait for each other",
        "rank 0 waits in recv from rank 1 (",
        "dist.recv(",
    ),
    "awaited_sender": ([0], "unsure: ranks 1-3 have waited for rank 0", "rank 0 waits in ", "coming.wait()"),
    "monitored_barrier": (
        [1],
        "unsure: rank 1 never entered monitored_barrier, where ranks 0, 2-3 are waiting",
        "it sleeps in ",
        "time.sleep(LONG)",
    ),
}


# Ways of hanging with samples that differ in more than a line of Python.
SOME = (
    *("skipped_collective", "stuck_worker", "stopped", "lock_of_python_held", "subgroup"),
    *("store_wait", "crossed_groups", "returned_early", "missing_sender", "monitored_barrier"),
)
NAMES = [*TOLD] if os.environ.get("NBTORCHJOB_TEST_HANGS") == "all" else [*SOME]


@pytest.fixture(scope="module")
def cluster():
    """Yield a cluster of the kind that needs no operator."""
    with Emulator(kinds=("indexedjob",)) as emulator:
        yield emulator


TIMES_OUT = """import datetime, time, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
if dist.get_rank() == 1:
    time.sleep(600)
dist.barrier()
"""


def submit(stage, cell, nproc, variables=None, **launch):
    """Submit a cell that runs in two pods."""
    elastic = Elastic(nnodes=2, nproc_per_node=nproc, **launch)
    return stage.submit(cell=cell, variables=variables, launch=elastic, image="localhost/torch:1", cpu="100m")


class Hanging:
    """A job that hangs in the named ways, one after the other."""

    def __init__(self, stage, names):
        self._names = iter(names)
        self._which = stage.signs / f"hangs-{names[0]}"
        self._round = -1
        self._pids = []
        self.next()
        which = {"which": str(self._which)}
        self.job = submit(stage, CELL, RANKS // 2, which, max_restarts=100)

    def next(self):
        """Hang in the next way."""
        self.name = next(self._names, "all_compute")
        self._which.write_text(self.name)
        self.end_ranks()

    def end_ranks(self):
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def told(self, *parts):
        """Return the diagnosis of this round, once its text has these parts."""
        give_up = time.monotonic() + LIMIT
        while True:
            stacks = self.job.stacks(timeout=LIMIT)
            diagnosis = stacks.diagnosis
            whole = len(stacks.samples) == RANKS and stacks.state.round > self._round
            if whole and diagnosis is not None and all(part in stacks.cause for part in parts):
                self._round = stacks.state.round
                self._pids = [sample.pid for sample in stacks.samples.values()]
                return diagnosis
            assert time.monotonic() < give_up, f"{self.name}: {stacks}"


def place(name, code):
    """Return the number of a case's line with this code, and the text that reports the line."""
    lines, first = inspect.getsourcelines(hangs.ALL[name])
    numbered = enumerate(lines, first + 1)  # the cell's first line is the magic
    number, line = next((n, line.strip()) for n, line in numbered if code in line)
    return number, f"<torchjob cell>, line {number}: {line}" if code else ""


def tree(pid):
    """Return the pids of a process and of its descendants."""
    return [pid, *(descendant for child in children(pid) for descendant in tree(child))]


def parent(pid):
    """Return the pid of a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_the_rank_and_its_line_are_named_or_it_is_unsure(stage):
    late, jobs = submit(stage, TIMES_OUT, 1), [Hanging(stage, NAMES[at::2]) for at in (0, 1)]
    try:
        for turn in range(len(NAMES)):
            hanging = jobs[turn % 2]
            ranks, begins, does, code = TOLD[hanging.name]
            number, where = place(hanging.name, code)
            diagnosis = hanging.told(begins, does + where)
            assert (sorted(diagnosis.ranks), diagnosis.sure) == (ranks, not begins.startswith("unsure"))
            assert not code or (diagnosis.frame and diagnosis.frame.lineno == number)
            hanging.next()
        names_who_was_missing(late)
        jobs[0].told("no rank waits in a collective: ranks 0-3 sleep in ")
        says_which_node_does_not_answer(jobs[0].job)
    finally:
        for job in jobs:
            job.end_ranks()  # a stopped rank would take its whole grace period
            job.job.cancel()


def names_who_was_missing(job):
    """Check the diagnosis of a job that a timeout has ended."""
    missing = "rank 1 never entered barrier #1 of the default group, which rank 0 had waited in for "
    failed = str(job.exception(LIMIT))
    assert missing in failed
    assert "; it slept in <torchjob cell>, line 5: time.sleep(600)" in failed
    stacks = job.stacks()
    assert (stacks.asked, sorted(stacks.samples)) == (False, [0, 1])
    assert str(stacks).startswith(missing)
    assert "\nThe job has ended; this is its last sample, of " in str(stacks)


def says_which_node_does_not_answer(job):
    """Check the report on a node that is stopped with all its processes."""
    (rank, *_) = next(fact.samples for fact in job.stacks(LIMIT).state.samples.values() if fact.node == 1)
    pids = tree(parent(parent(rank.pid)))  # a rank's parent is its template, and the template's is its node
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        stacks = job.stacks(timeout=1.0)
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)
    assert stacks.trouble[1] == "hasn't answered for 1 s"
    assert "node 1: hasn't answered for 1 s" in stacks.lines
