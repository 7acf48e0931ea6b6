"""What the verbs that act on a job make of their options."""

from pathlib import Path
from typing import Any

import pytest

from nbtorchjob.commands.table import VERBS
from nbtorchjob.errors import LineError
from nbtorchjob.state.text.profile import MemoryProfile


class Profiled:
    """A job that tells how it was to be profiled."""

    name = "job"

    def __init__(self):
        self.asked = []

    def profile(self, *how):
        self.asked.append(("profile", *how))
        return MemoryProfile(0, Path("file"), 3.0, 7, ())

    def profile_memory(self, *how):
        self.asked.append(("memory", *how))
        return self.profile()


@pytest.mark.parametrize(
    ("words", "asked", "aside"),
    [
        ([], ("profile", 3.0, 0, "."), "Profiling rank 0 of job for 3 s …"),
        (
            ["job", "--seconds", "0.5", "--rank=1", "--memory", "--folder", "there"],
            ("memory", 0.5, 1, "there"),
            "Profiling memory of rank 1 of job for 0.5 s …",
        ),
    ],
)
def test_a_profile_says_first_how_long_it_takes(words, asked, aside):
    job: Any = Profiled()
    verb = VERBS["profile"]
    assert verb.answers is not None

    first, answer = verb.answers(verb.given(words), lambda name: job)

    assert (first.text, first.aside) == (aside, True)
    assert job.asked[0] == asked
    assert answer.data["events"] == 7
    assert "7 events of its allocator" in answer.text


def test_the_seconds_of_a_profile_are_a_number():
    verb, job = VERBS["profile"], Profiled()
    found: Any = job
    assert verb.answers is not None

    with pytest.raises(LineError, match="--seconds needs a number, got 'x'"):
        [*verb.answers(verb.given(["--seconds", "x"]), lambda name: found)]
    assert job.asked == []
