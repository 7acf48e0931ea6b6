"""A job of this machine with a folder that a test writes, as a supervisor and ranks would; nothing runs."""

import os
import secrets
import shutil
import time

from nbtorchjob.backends.local import directory
from nbtorchjob.machine.processes import Process
from nbtorchjob.runtime.store.stream import TIMES
from nbtorchjob.state import JobInfo


class Acted:
    """A job with a folder that a test writes; it counts as supervised as long as this process runs."""

    def __init__(self, name=None, nodes=1, **known):
        # No two jobs have the same name: a writer of facts keeps the file open.
        self.name = name or f"acted-{secrets.token_hex(4)}"
        info = JobInfo(self.name, created=time.time(), label="acted", nodes=(nodes, nodes), **known)
        self.folder = directory.create(directory.jobs_dir(), info, lambda folder: None)
        self.folder.claim(Process.of(os.getpid()))

    def begin(self, round=0, ranks=(0,), node=0):
        """Start ranks."""
        at = {"node": node, "restart": round, "round": round}
        self.folder.emit("WorkersStarted", **at, ranks=list(ranks), world_size=len(ranks))

    def fail(self, rank, round=0, message="boom"):
        """Record the failure of a rank."""
        error = {"type": "ValueError", "message": message, "time": time.time()}
        self.folder.emit("RankFailed", node=0, rank=rank, restart=round, round=round, error=error)

    def log(self, data, rank=0, round=0, at=None, node=0, *, stderr=False, marked=True):
        """Write to a rank's log, now or at a given time, and note that in its index, if ``marked``."""
        path = self.folder.rank_log(node, round, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            file.write(data)
        if marked:
            with open(path.with_name(path.name + TIMES), "a") as file:
                file.write(f"{path.stat().st_size} {at or time.time()}{' 2' * stderr}\n")

    def end(self):
        """End the job, and the process that supervised it: a deletion ends that process first."""
        self.folder.emit("Closed")
        self.lose()

    def lose(self):
        """Replace the job's supervisor by a process that is gone, with no last word."""
        (self.folder.path / "supervisor.json").unlink()
        self.folder.claim(Process(os.getpid(), 1, "another boot"))

    def remove(self):
        """Remove the job's folder."""
        shutil.rmtree(self.folder.path, ignore_errors=True)
