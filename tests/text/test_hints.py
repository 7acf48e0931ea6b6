"""Hints in the words of a notebook, and of a front end with words of its own."""

import ast
import threading
from pathlib import Path

import nbtorchjob
from nbtorchjob.errors import DamagedError
from nbtorchjob.text.hints import MAGICS, Wording, hint, run_hint, worded

PACKAGE = Path(nbtorchjob.__file__).parent
# Notebooks' own code, texts about their cells, and a table that stands in a page of the documentation.
OF_NOTEBOOKS = {"frontends/notebook", "frontends/panel", "frontends/server", "capture"}
OF_NOTEBOOKS |= {"text/hints.py", "backends/local/policies.py", "ui/page.py"}
SHELL = Wording("ours", "ours run IT", "ours --help")


def test_a_hint_names_magics_where_no_front_has_words_of_its_own():
    assert hint() == MAGICS.verb == "%torchjob"
    assert hint("delete", "NAME") == "%torchjob delete NAME"
    assert run_hint("--nnodes 2") == "%%torchjob --nnodes 2"
    assert run_hint("") == "%%torchjob"


def test_a_front_s_words_hold_in_all_its_threads_and_no_longer_than_it_shows():
    lines = []
    with worded(SHELL):
        thread = threading.Thread(target=lambda: lines.append(hint("list")))
        thread.start()
        thread.join()
        lines.append(run_hint("--nnodes 2"))

    assert lines == ["ours list", "ours run IT --nnodes 2"]
    assert hint("list") == "%torchjob list"


def test_an_error_keeps_the_words_it_was_made_with():
    with worded(SHELL):
        error = DamagedError("local", "lost", "info", "%torchjob")

    assert str(error) == "the info of lost can't be read (%torchjob): ours delete lost removes it"


def test_no_text_that_a_terminal_may_show_names_a_magic():
    places = set()
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE)
        if OF_NOTEBOOKS & {folder.as_posix() for folder in (place, *place.parents)}:
            continue
        tree = ast.parse(path.read_text())
        # A string on a line of its own is a docstring.
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docs]
        places |= {f"{place}:{node.lineno}" for node in texts if "%torchjob" in str(node.value)}

    assert places == set()
