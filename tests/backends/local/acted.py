"""A job of this machine whose folder a test writes, as a supervisor and ranks do; nothing runs."""

import os
import secrets
import shutil
import time

from nbtorchjob.backends.local import directory
from nbtorchjob.machine.processes import Process
from nbtorchjob.runtime.store.stream import TIMES
from nbtorchjob.state import JobInfo


class Acted:
    """Such a job; it counts as kept by a process as long as this one runs."""

    def __init__(self, name=None, nodes=1, **known):
        # No two have one name: who writes facts holds on to a file that it has opened.
        self.name = name or f"acted-{secrets.token_hex(4)}"
        info = JobInfo(self.name, created=time.time(), label="acted", nodes=(nodes, nodes), **known)
        self.folder = directory.create(directory.jobs_dir(), info, lambda folder: None)
        self.folder.claim(Process.of(os.getpid()))

    def begin(self, round=0, ranks=(0,), node=0):
        """Start ranks."""
        at = {"node": node, "restart": round, "round": round}
        self.folder.emit("WorkersStarted", **at, ranks=list(ranks), world_size=len(ranks))

    def fail(self, rank, round=0, message="boom"):
        """Let a rank fail."""
        error = {"type": "ValueError", "message": message, "time": time.time()}
        self.folder.emit("RankFailed", node=0, rank=rank, restart=round, round=round, error=error)

    def log(self, data, rank=0, round=0, at=None, node=0, *, stderr=False, marked=True):
        """Let a rank write, now or at a time, and have its index say so, unless it isn't marked."""
        path = self.folder.rank_log(node, round, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            file.write(data)
        if marked:
            with open(path.with_name(path.name + TIMES), "a") as file:
                file.write(f"{path.stat().st_size} {at or time.time()}{' 2' * stderr}\n")

    def end(self):
        """End it, and the process that kept it: who deletes a job ends that one first."""
        self.folder.emit("Closed")
        self.lose()

    def lose(self):
        """Let the process that keeps it be gone, with no last word."""
        (self.folder.path / "supervisor.json").unlink()
        self.folder.claim(Process(os.getpid(), 1, "another boot"))

    def remove(self):
        """Remove its folder."""
        shutil.rmtree(self.folder.path, ignore_errors=True)
