"""Libraries that draw in a notebook's page, on a rank: each writes text there, or says what to do."""

import os
import subprocess
import sys

import pytest

RANK = "from nbtorchjob.runtime import frontend; frontend.install()\n"


def run(code):
    """Return what ``code`` writes to stdout and to stderr where there is no page."""
    env = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
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
    assert err == (
        "nbtorchjob: plt.show() has no page to draw on: save the figure, or end the cell with it, plt.gcf()\n"
    )


def test_what_is_displayed_is_written():
    out, err = run(
        "from IPython.display import HTML, Markdown, display\n"
        "display(1, 'two')\n"
        "display(Markdown('*three*'))\n"
        "handle = display(HTML('<b>four</b>'), display_id=True)\n"
        "handle.update(5)"
    )

    assert out == "1\ntwo\n*three*\n<b>four</b>\n5\n"
    assert err == "nbtorchjob: display() writes text on a rank: end the cell with what shall be drawn\n"
