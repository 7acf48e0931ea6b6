"""Labs on real nodes of this machine, asked at their sockets as the local backend asks them."""

import io
import itertools
import json
import os
import pickle
import shutil
import socket
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from nbtorchjob import Elastic, JobSpec, capture
from nbtorchjob.backends.local.sockets import SocketLine
from nbtorchjob.backends.talk import Conversation, Talk
from nbtorchjob.errors import AskError
from nbtorchjob.payload import archive
from nbtorchjob.runtime.ask import questions
from nbtorchjob.runtime.objects import wire
from tests.backends.kubernetes.nodes import KEY
from tests.backends.kubernetes.warm import Program
from tests.patience import LIMIT
from tests.ports import free_port

QUICK = "silence=3,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"


def packed(call, *, push=(), all_ranks=False, key=KEY):
    """Return the payload of a turn."""
    file = io.BytesIO()
    archive.write_turn(file, call, key, JobSpec(all_ranks=all_ranks), push=push)
    return file.getvalue()


def parsed(line):
    """Return the fact of a line; None for half a line, as a full disk leaves it."""
    with suppress(ValueError):
        return json.loads(line)


class Lab:
    """A lab on ``nodes`` nodes, with the cell ``text`` as its own call."""

    def __init__(self, text="pass", *, nodes=1, nproc=1, idle=0, attempt=1, folder=None, **options):
        self.folder = folder or Path(tempfile.mkdtemp(prefix="lab-"))
        self.events = self.folder / "events.jsonl"
        restarts, nnodes = options.pop("max_restarts", 0), options.pop("nnodes", nodes)
        elastic = Elastic(nnodes, nproc_per_node=nproc, max_restarts=restarts, start_method="forkserver")
        spec = JobSpec(elastic, lab=True, idle=idle, **options)
        with open(self.folder / "job.pyz", "wb") as file:
            archive.write(file, self.cell(text), spec, KEY)
        (self.folder / "key").write_bytes(KEY)
        self.port = free_port()
        self.nodes = {}
        self.attempt = attempt
        for index in range(nodes):
            self.start(index)

    def cell(self, text, namespace=None, argv=(), **options):
        """Return a cell with the names that it reads from ``namespace``, or without one from the ranks."""
        self._cells = getattr(self, "_cells", itertools.count(1))
        filename = f"<cell {next(self._cells)}>"
        if namespace is not None:
            return capture.from_cell(text, namespace, filename=filename, argv=argv, **options)
        empty = replace(capture.from_cell("pass", {}, filename=filename), text=text, sources={filename: text})
        inner = {"cell": text, "filename": filename, "flags": 0, "entry": None, "kwargs": {}, "names": []}
        return replace(empty, pickle=pickle.dumps({**inner, "argv": ["cell", *argv], "namespace": len}))

    def start(self, index):
        """Start a node of the lab."""
        own = self.folder / f"node-{index}"
        own.mkdir(exist_ok=True)
        env = {
            "PATH": os.environ["PATH"],
            "TMPDIR": str(self.folder),
            "NBTORCHJOB_NODE": str(index),
            "NBTORCHJOB_FOLDER": str(own),
            "NBTORCHJOB_EVENTS": str(self.events),
            "NBTORCHJOB_KEY_FILE": str(self.folder / "key"),
            "NBTORCHJOB_STOP_WITHIN": "5",
            "NBTORCHJOB_ATTEMPT": str(self.attempt),
            "PET_LOCAL_ADDR": f"127.0.0.{index + 1}",
            "PET_RDZV_ENDPOINT": f"127.0.0.1:{self.port}",
            "PET_RDZV_CONF": QUICK,
        }
        with open(self.folder / f"output-{index}", "ab") as output:
            job = str(self.folder / "job.pyz")
            self.nodes[index] = Program(
                sys.executable, [sys.executable, job], env, self.folder, output.fileno()
            )

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for node in self.nodes.values():
            node.kill()
            node.wait()
            node.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # Facts and output

    def facts(self, kind=None, **like):
        """Return the facts emitted so far, of a kind and with these fields, as records."""
        with suppress(FileNotFoundError):
            lines = self.events.read_bytes().split(b"\n")[:-1]
            records = [record for line in lines if (record := parsed(line))]
            return [
                fact
                for fact in records
                if kind in (None, fact["event"]) and all(fact.get(k) == v for k, v in like.items())
            ]
        return []

    def output(self):
        """Return what its nodes have printed."""
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("output-*")))

    def until(self, condition):
        """Wait until a condition returns a true value; return that value."""
        give_up = time.monotonic() + LIMIT
        while not (value := condition()):
            assert time.monotonic() < give_up, (self.facts()[-9:], self.output())
            ended = {index: node.poll() for index, node in self.nodes.items()}
            assert None in ended.values() or condition(), (ended, self.facts()[-9:], self.output())
            time.sleep(0.005)
        return value

    def base(self, many=1):
        """Return the round of the newest base, once ``many`` bases have begun and the ranks wait."""
        return self.until(lambda: self._bases(many))

    def _bases(self, many):
        turn_rounds = {fact["round"] for fact in self.facts("TurnTaken") if fact["id"]}
        rounds = sorted({fact["round"] for fact in self.facts("WorkersStarted")} - turn_rounds)
        if len(rounds) < many:
            return None
        with suppress(AskError, FileNotFoundError, ConnectionError):
            return rounds[-1] if not self.names([])["ahead"] else None

    def log(self, round_, rank=0, node=0):
        """Return what a rank printed in a round."""
        path = self.folder / f"node-{node}" / f"round-{round_}" / f"rank-{rank}.log"
        return path.read_text() if path.exists() else ""

    def value(self, round_, rank=0):
        """Return a rank's value in a round."""
        (ready,) = self.facts("ValueReady", round=round_, rank=rank)
        return wire.read_value(ready["ref"], lambda path, *_: path, wire.value_key(KEY, "", round_, rank))

    def over(self, round_):
        """Return the ranks that failed in a turn, once it is over."""
        (turn,) = self.until(lambda: self.facts("TurnTaken", round=round_))
        ended = self.until(
            lambda: len(facts := self.facts("TurnEnded", round=round_)) == len(turn["nodes"]) and facts
        )
        return sorted(rank for fact in ended for rank in fact["failed"])

    # Questions

    def talk(self, question, node=0, **more):
        """Begin a conversation with a node."""
        peer = socket.socket(socket.AF_UNIX)
        try:
            questions.within(str(self.folder / f"node-{node}"), questions.SOCKET, peer.connect)
        except BaseException:
            peer.close()
            raise
        key = questions.node_key(KEY, "", node)
        conversation = Conversation(node, key, {"question": question, **more}, goes_on=True)
        return Talk(conversation, SocketLine(peer), LIMIT)

    def ask(self, question, node=0, **more):
        with self.talk(question, node, **more) as talk:
            return talk.hear(LIMIT)

    def names(self, of, ranks=None):
        return self.ask("names", of=of, ranks=ranks)

    def take(self, call, *, ranks=None, base=None, known_as=None, node=0, data=None, **how):
        """Send a turn; return the answer."""
        data = packed(replace(call, by="a test"), **how) if data is None else data
        known_as = known_as or os.urandom(16).hex()
        with self.talk("turn", node, id=known_as, base=base, ranks=ranks, size=len(data)) as talk:
            talk.send_all(memoryview(data))
            answer = talk.hear(LIMIT)
            if "bring" in answer:
                for other in answer["bring"]:
                    self.bring(data, known_as, other)
                talk.send({"brought": True})
                answer = talk.hear(LIMIT)
            return answer

    def bring(self, data, known_as, node):
        """Bring the payload of a turn to a node that isn't the lead."""
        with self.talk("bring", node, id=known_as, size=len(data)) as talk:
            talk.send_all(memoryview(data))
            return talk.hear(LIMIT)

    def run(self, text, namespace=None, **how):
        """Run a cell; return its round once it is over."""
        round_ = self.take(self.cell(text, namespace), **how)["round"]
        failed = self.over(round_)
        assert not failed, self.facts("RankFailed", round=round_)
        return round_

    def gives(self, text, namespace=None, **how):
        """Run a cell; return its value."""
        return self.value(self.run(text, namespace, **how), min(how.get("ranks") or [0]))

    def fails(self, text, namespace=None, **how):
        """Run a cell that fails; return its first error."""
        round_ = self.take(self.cell(text, namespace), **how)["round"]
        assert self.over(round_)
        return self.facts("RankFailed", round=round_)[0]["error"]

    def wait(self, node=0):
        """Wait for a node's end; return its exit code."""
        return self.nodes[node].wait()
