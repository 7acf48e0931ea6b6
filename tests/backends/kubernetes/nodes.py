"""Cluster nodes as processes on this machine: an operator's variables in, frames out."""

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from nbtorchjob import Elastic, JobSpec, capture
from nbtorchjob.payload import archive
from nbtorchjob.runtime import store
from nbtorchjob.runtime.objects import wire
from nbtorchjob.runtime.store import frames
from nbtorchjob.runtime.store.frames import Fact, LogPiece, Output, Parser, ValuePart
from nbtorchjob.spec.cluster import Cluster
from tests.backends.kubernetes.warm import Program
from tests.backends.kubernetes.warm import children as children
from tests.patience import LIMIT

KEY = b"k" * 32


def pack(
    folder, fn, *args, nodes=1, nproc=1, start_method="forkserver", checkpoints=None, data=None, **launch
):
    """Write ``job.pyz`` and its key to ``folder`` as they are mounted in a pod."""
    elastic = Elastic(nnodes=nodes, nproc_per_node=nproc, start_method=start_method, **launch)
    cluster = Cluster(checkpoints=checkpoints)
    spec = JobSpec(elastic, backend="kubernetes", cluster=cluster, data=data or {})
    with open(folder / "job.pyz", "wb") as file:
        archive.write(file, capture.from_function(fn, args), spec, KEY)
    (folder / "key").write_bytes(KEY)
    return folder / "job.pyz"


class Node:
    """One running node, and its output so far."""

    def __init__(self, job, *, command=(), stdout=None, **env):
        folder = job.parent
        # A short path: multiprocessing binds sockets below it.
        self.temp = Path(tempfile.mkdtemp(prefix="node-"))
        self.words = self.temp / "termination-log"
        self.words.touch()
        self.frames = []
        self._news = threading.Condition()
        reading, writing = (os.open(os.devnull, os.O_RDONLY), stdout) if stdout else os.pipe()
        self._output = os.fdopen(reading, "rb")
        self.process = Program(
            sys.executable,
            [*command, *([] if command else [sys.executable]), str(job)],
            {
                "PATH": os.environ["PATH"],
                "TMPDIR": str(self.temp),
                "NBTORCHJOB_STREAM": "1",
                "NBTORCHJOB_KEY_FILE": str(folder / "key"),
                "NBTORCHJOB_TERMINATION_LOG": str(self.words),
                **env,
            },
            folder,
            writing,
        )
        if not stdout:
            os.close(writing)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        parser = Parser()
        for line in self._output:
            text = line.removesuffix(b"\n").removesuffix(b"\r")
            frame = parser.feed(text)
            with self._news:
                if frame is not None:
                    self.frames.append(frame)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def until(self, condition):
        """Wait until ``condition``, given this node, holds."""
        give_up = time.monotonic() + LIMIT
        with self._news:
            while not condition(self):
                assert time.monotonic() < give_up, self.frames
                assert self.process.poll() is None or condition(self), self.frames
                self._news.wait(0.02)  # only the log notifies; other effects need a poll
        return self

    def wait(self):
        """Wait for the end; return the exit code."""
        code = self.process.wait()
        self._reader.join(LIMIT)
        self._output.close()
        return code

    def end(self):
        """Kill the node, and remove its files."""
        self.process.kill()
        self.wait()
        self.process.close()
        shutil.rmtree(self.temp, ignore_errors=True)

    def facts(self, kind):
        return [f.record for f in list(self.frames) if type(f) is Fact and f.record["event"] == kind]

    def log(self, rank=0):
        pieces = [f for f in list(self.frames) if type(f) is LogPiece and f.rank == rank]
        return b"".join(piece.data for piece in pieces)

    def output(self):
        return "\n".join(frame.text for frame in list(self.frames) if type(frame) is Output)

    def value(self, rank=0):
        """Return a rank's value, as the host would fetch it."""
        (ready,) = [fact for fact in self.facts("ValueReady") if fact["rank"] == rank]
        path = self.temp / f"value-{rank}"
        key = wire.value_key(KEY, "", ready["round"], rank)
        url, _, digest = ready["ref"].rpartition("#")
        if url == store.LOG:
            origin = (ready["rank"], ready["round"])
            parts = [f for f in self.frames if type(f) is ValuePart and (f.rank, f.round) == origin]
            path.write_bytes(frames.collect(parts, digest, key))
        else:
            store.fetch(ready["ref"], str(path), key, ready["size"])
        assert path.stat().st_size == ready["size"]
        return wire.read_value(str(path), lambda *_: 1 / 0, key)

    def left_behind(self):
        """Return the node's processes that still run, and its files."""
        return [*self.process.left(), *self.temp.glob("nbtorchjob-*")]


def kill(pid, number=signal.SIGKILL):
    os.kill(pid, number)
