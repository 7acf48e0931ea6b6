"""What a job's ranks do now: its nodes are asked, and what they answer is laid over what is known."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nbtorchjob.backends.base import Backend, Talks, able
from nbtorchjob.errors import JobEndedError, NBTorchJobError
from nbtorchjob.state import JobState, apply
from nbtorchjob.state.events import Sampled, believed

if TYPE_CHECKING:
    from nbtorchjob.state.text.stacks import Stacks

_LOOK_S = 10.0


def ask(backend: Backend, state: JobState, timeout: float) -> Stacks:
    """Return the stacks of a job's ranks now; of one that has ended, or doesn't answer, the last known."""
    from nbtorchjob.state.text.stacks import Stacks  # late: most of what the command does asks for none

    trouble: dict[int, str] = {}
    asked = False
    try:
        for answer in able(backend, Talks, "stacks", state.info.address).ask(
            state.info.address, {"question": "sample"}, timeout=timeout
        ):
            facts = [fact for record in answer.records if isinstance(fact := believed(record), Sampled)]
            for fact in facts:
                state, asked = apply(state, fact), True
            if answer.trouble or not facts:
                trouble[answer.node] = answer.trouble or "it told nothing of its ranks"
    except JobEndedError:
        pass  # what is known last is shown, and said to be that
    return Stacks(state, trouble, asked=asked, time=time.time())


def look(backend: Backend, name: str) -> None:
    """Have a job's nodes tell what their ranks do, a fact of the job from then on.

    Raises ``NBTorchJobError`` where none of them answers.
    """
    answers = ask(backend, backend.snapshot(name), _LOOK_S)
    if not answers.asked:
        why = next(iter(answers.trouble.values()), "the job has ended")
        raise NBTorchJobError(f"{answers.state.info.name} told nothing of its ranks: {why}")
