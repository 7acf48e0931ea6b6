"""The table of verbs: each row has all that the magics, the command and the server need."""

import pytest

from nbtorchjob.backends.base import Backend, Exports, Queues, Retries, Suspends, Talks
from nbtorchjob.commands.front import ParsedArgs
from nbtorchjob.commands.table import CHANGES, VERBS
from nbtorchjob.errors import LineError

LINES = {
    "": [],
    "[NAME]": ["train"],
    "NAME": ["train"],
    "NAME...": ["train", "eval"],
    "NAME OTHER": ["train", "eval"],
    "NAME FOLDER": ["train", "out"],
    "NAME [FOLDER]": ["train"],
    "NAME [PATH]": ["train", "artifacts/runs"],
    "NAME [PORT[:RANK]]": ["train", "6006:1"],
    "NAME PATH [FOLDER]": ["train", "artifacts/runs"],
    "f(x, lr=0.1)": ["", "f(1)"],
    "NAME [FILE]": ["train", "new.py"],
    "NAME K=V...": ["train", "lr=1", "wd=2"],
    "[WORD...]": ["failed", "#v2"],
    "NAME [TEXT...]": ["train", "the", "best"],
    "NAME [TAG...]": ["train", "v2"],
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=lambda verb: verb.name)
def test_a_verb_is_done_in_one_way_and_takes_the_words_that_its_help_shows(verb):
    assert (verb.answers is None) != (verb.waits is None)
    assert verb.parse(LINES[verb.words]) == ParsedArgs(LINES[verb.words], {})
    if not verb.any_option:
        with pytest.raises(LineError, match=f"%torchjob {verb.name}"):
            verb.parse(["--nothing"])


def test_what_changes_a_job_is_a_verb_of_backends_too():
    assert CHANGES
    asks = {"stacks": "ask", "end": "talk"}
    able = (Backend, Exports, Queues, Retries, Suspends, Talks)
    assert all(any(hasattr(kind, asks.get(name, name)) for kind in able) for name in CHANGES)
