"""Libraries that draw in a notebook, on ranks: rank 0's cell shows the output; otherwise ranks write text."""

import base64
import json
import os
import shutil
import subprocess
import sys

import pytest

from nbtorchjob.runtime.api import displays

RANK = "from nbtorchjob.runtime.api import displays as frontend; frontend.install()\n"


def run(code, **env):
    """Return what ``code`` writes to stdout and to stderr without a page."""
    env = {**{name: value for name, value in os.environ.items() if name != "MPLBACKEND"}, **env}
    done = subprocess.run(
        [sys.executable, "-c", RANK + code], capture_output=True, text=True, check=True, env=env
    )
    return done.stdout, done.stderr


def test_a_bar_of_a_notebook_is_one_of_text():
    pytest.importorskip("tqdm")
    out, err = run(
        "import inspect, pickle\n"
        "from tqdm.notebook import tqdm, trange\n"
        "import tqdm.notebook\n"
        "print(sum(tqdm.notebook.tqdm_notebook(range(3), desc='steps')), list(trange(2)))\n"
        "print('class TqdmHBox' in inspect.getsource(tqdm.notebook))"
    )

    assert out == "3 [0, 1]\nTrue\n"
    assert "steps: 100%" in err


def test_a_figure_that_is_shown_says_where_it_could_go():
    pytest.importorskip("matplotlib")
    out, err = run("import matplotlib.pyplot as plt\nplt.show()\nplt.plot([1, 2])\nplt.show()\nplt.show()")

    assert out == ""
    assert err == "nbtorchjob: plt.show() can't draw this in the notebook: save the figure\n"


def test_what_is_displayed_is_written():
    out, err = run(
        "from IPython.display import HTML, Markdown, display\n"
        "display(1, 'two')\n"
        "display(Markdown('*three*'))\n"
        "handle = display(HTML('<b>four</b>'), display_id=True)\n"
        "handle.update(5)"
    )

    assert out == "1\ntwo\n*three*\n<b>four</b>\n5\n"
    assert err == "nbtorchjob: display() can't draw this in the notebook, and writes text\n"


def shown(code, folder, rank="0"):
    """Return the bundles that a rank sends to its cell, and what it writes to stdout and stderr."""
    path = folder / "events.jsonl"
    shutil.rmtree(folder / "round-0", ignore_errors=True)
    (folder / "round-0").mkdir()
    place = {"NBTORCHJOB_EVENTS": str(path), "NBTORCHJOB_FOLDER": str(folder), "NBTORCHJOB_ROUND": "0"}
    texts = run(code, RANK=rank, **place)
    facts = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    assert [fact["seq"] for fact in facts] == list(range(len(facts)))
    return [fact["data"] for fact in facts], texts


def test_rank_0_has_its_cell_draw_figures(folder):
    pytest.importorskip("matplotlib")
    code = (
        "import matplotlib.pyplot as plt\n"
        "plt.plot([1, 2])\n"
        "plt.show(), plt.show()\n"
        "plt.plot([2, 1])\n"
        "plt.show()\n"
        "print(plt.get_fignums())"
    )
    (first, changed), texts = shown(code, folder)

    for bundle in (first, changed):
        assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert first != changed
    assert texts == ("[1]\n", "")  # stays open as in a script, which may save it afterwards


def test_figures_that_a_cell_leaves_open_are_drawn_at_its_end_and_closed(folder):
    pytest.importorskip("matplotlib")
    code = (
        "import matplotlib.pyplot as plt\n"
        "from nbtorchjob.runtime.rank import call\n"
        "draws = 'plt.plot([1, 2]); plt.show(); plt.figure(); plt.plot([3]); None'\n"
        "for cell in (draws, 'plt.figure().savefig = None; 7'):\n"
        "    cell = {'cell': cell, 'filename': '<cell>', 'flags': 0, 'entry': None}\n"
        "    print(call.act(cell, globals()), plt.get_fignums())"
    )
    bundles, (out, err) = shown(code, folder)

    assert ["image/png" in bundle for bundle in bundles] == [True, True]
    assert out == "None []\n7 []\n"
    assert "a figure can't be drawn" in err


def test_what_only_looks_like_a_figure_is_written(folder):
    code = (
        "from IPython.display import display\n"
        "class Like:\n"
        "    savefig = None\n"
        "    def __repr__(self): return 'like'\n"
        "display(Like())"
    )
    bundles, (out, err) = shown(code, folder)

    assert (bundles, out) == ([], "like\n")
    assert "can't draw this in the notebook" in err


def test_rank_0_has_its_cell_draw_what_is_displayed(folder):
    code = (
        "from IPython.display import HTML, display\n"
        "display(HTML('<b>bold</b>'), 'plain')\n"
        "display({'text/html': '<i>raw</i>', 'text/plain': 'raw'}, raw=True)\n"
        "display(HTML('x' * 1_000_000), {'a': 1})\n"
    )
    bundles, (out, err) = shown(code, folder)

    assert bundles[0]["text/html"] == "<b>bold</b>"
    assert bundles[1:] == [{"text/html": "<i>raw</i>", "text/plain": "raw"}]
    assert out.startswith("<b>bold</b>\nplain\nraw\nxxx")
    assert "can't draw this in the notebook" in err


def test_display_needs_no_import_and_no_ipython(folder):
    code = (
        "class Bold:\n    def __repr__(self): return 'plain'\n"
        "    def _repr_html_(self): return '<b>bold</b>'\n"
        "display(Bold(), 3)"
    )
    alone = "import sys; sys.modules.update(dict.fromkeys(['IPython', 'IPython.display']))\n"
    for begin in ("", alone):
        bundles, texts = shown(begin + code, folder)
        assert (bundles, texts) == ([{"text/html": "<b>bold</b>", "text/plain": "plain"}], ("plain\n3\n", ""))
        (folder / "events.jsonl").unlink()


def test_processes_that_a_rank_forks_display_as_many_as_the_rank_may(folder):
    code = (
        "import os\n"
        "from IPython.display import HTML, display\n"
        "if child := os.fork(): os.waitpid(child, 0)\n"
        "for n in range(15): display(HTML(str(n)))"
    )
    bundles, _ = shown(code, folder)

    assert [bundle["text/html"] for bundle in bundles] == [str(n % 15) for n in range(displays.MOST)]


def test_other_ranks_write_what_they_display(folder):
    code = "from IPython.display import HTML, display\ndisplay(HTML('<b>bold</b>'))"

    assert shown(code, folder, rank="1") == ([], ("<b>bold</b>\n", ""))


def test_a_loop_that_displays_too_much_is_cut_short(folder):
    code = "from IPython.display import HTML, display\nfor n in range(100): display(HTML(str(n)))"
    bundles, (out, err) = shown(code, folder)

    assert len(bundles) == displays.MOST
    assert (out.count("\n"), err.count("\n")) == (100, 1)
