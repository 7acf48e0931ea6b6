"""What a job's ranks do now: its nodes are asked, and what they answer is laid over what is known."""

from __future__ import annotations

import base64
import json
import time
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nbtorchjob.backends.base import Backend, Talks, able
from nbtorchjob.backends.talk import MOST
from nbtorchjob.errors import JobEndedError, NBTorchJobError
from nbtorchjob.runtime.ask.questions import RECORD_BYTES
from nbtorchjob.runtime.facts.samples import Thread
from nbtorchjob.state import JobState, apply
from nbtorchjob.state.events import Event, Sampled, believed

if TYPE_CHECKING:
    from nbtorchjob.state.text.stacks import Stacks

_LOOK_S = 10.0
_SPARE_S, _LEAST_S = 2.0, 1.0  # of the time for an answer, what isn't the other nodes' to tell theirs
_MOST_MISSED = 64  # nodes that are asked themselves, as they told nothing to the one that gathers
_UNHEARD = "it told nothing to the node that asked for all"


def ask(backend: Backend, state: JobState, timeout: float) -> Stacks:
    """Return the stacks of a job's ranks now; of one that has ended, or doesn't answer, the last known.

    Of many nodes one is asked, and it has all others tell it. Only those are then asked that didn't.
    """
    from nbtorchjob.state.text.stacks import Stacks  # late: most of what the command does asks for none

    answers = _Answers(able(backend, Talks, "stacks", state.info.address), state, timeout)
    try:
        lead = next((node for node, known in sorted(state.nodes.items()) if known.life.running), None)
        if len(state.nodes) <= MOST or lead is None or not answers.gather(lead):
            answers.ask(None)
    except JobEndedError:
        pass  # what is known last is shown, and said to be that
    # A state keeps the samples of few nodes for long; whoever asks now is told of all.
    state = replace(answers.state, samples={**answers.state.samples, **answers.samples})
    return Stacks(state, answers.trouble, asked=bool(answers.samples), time=time.time())


class _Answers:
    """What nodes have answered so far."""

    def __init__(self, backend: Talks, state: JobState, timeout: float) -> None:
        self.state = state
        self.samples: dict[int, Sampled] = {}
        self.trouble: dict[int, str] = {}
        self._backend = backend
        self._timeout = timeout
        self._threads: dict[str, tuple[Thread, ...]] = {}  # by what they were told as

    def ask(self, nodes: Sequence[int] | None) -> None:
        """Ask all nodes, or these, for their own samples."""
        question = {"question": "sample"}
        for answer in self._backend.ask(self.state.info.address, question, nodes, timeout=self._timeout):
            taken = [self._take(record) for record in answer.records]
            if answer.trouble or not any(taken):
                self.trouble[answer.node] = answer.trouble or "it told nothing of its ranks"

    def gather(self, lead: int) -> bool:
        """Ask one node for all nodes' samples, and those that told it none; False where it can't be asked."""
        question = {"question": "sample", "all": max(_LEAST_S, self._timeout - _SPARE_S)}
        (answer,) = self._backend.ask(self.state.info.address, question, [lead], timeout=self._timeout)
        if not any(record.get("gathers") for record in answer.records):
            return False
        for record in answer.records:
            self._take(_unpacked(record) if "packed" in record else record)
        alone = [node for node, known in self.state.nodes.items() if known.life.running]
        missed = sorted({*range(self.state.info.nodes[0]), *alone} - {*self.samples})
        self.trouble = dict.fromkeys(missed[_MOST_MISSED:], _UNHEARD)
        if missed:
            self.ask(missed[:_MOST_MISSED])
        return True

    def _take(self, record: dict[str, Any]) -> bool:
        fact = self._fact(record)
        if not isinstance(fact, Sampled):
            return False
        self.state = apply(self.state, fact)
        self.samples[fact.node] = fact
        return True

    def _fact(self, record: dict[str, Any]) -> Event | None:
        """Return a record's fact; ranks are at few places, of which each is read once."""
        samples = record.get("samples") if isinstance(record, dict) else None  # a node may tell anything
        if not isinstance(samples, list) or not all(isinstance(sample, dict) for sample in samples):
            return believed(record)
        fact = believed({**record, "samples": [{**sample, "threads": []} for sample in samples]})
        if not isinstance(fact, Sampled):
            return fact
        told = []
        for sample, written in zip(fact.samples, samples, strict=True):
            text = json.dumps(written.get("threads"))
            if text not in self._threads:
                one = believed({**record, "samples": [written]})
                if not isinstance(one, Sampled):
                    return one
                self._threads[text] = one.samples[0].threads
            told.append(replace(sample, threads=self._threads[text]))
        return replace(fact, samples=tuple(told))


def _unpacked(record: dict[str, Any]) -> dict[str, Any]:
    """Return what one node told another; nothing where that is no record, or too long for one."""
    try:
        data = zlib.decompressobj().decompress(base64.b64decode(record["packed"]), RECORD_BYTES)
        told = json.loads(data)
    except (ValueError, TypeError, zlib.error, RecursionError):
        return {}
    return told if isinstance(told, dict) and told.get("node") == record.get("of") else {}


def look(backend: Backend, name: str) -> None:
    """Have a job's nodes tell what their ranks do, a fact of the job from then on.

    Raises ``NBTorchJobError`` where none of them answers.
    """
    answers = ask(backend, backend.snapshot(name), _LOOK_S)
    if not answers.asked:
        why = next(iter(answers.trouble.values()), "the job has ended")
        raise NBTorchJobError(f"{answers.state.info.name} told nothing of its ranks: {why}")
