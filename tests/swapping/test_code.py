"""What the text of a job's code shows about a swap: changes without effect, and impossible ones."""

from functools import reduce

import pytest

from nbtorchjob.errors import SwapError
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts.events import Swapped
from nbtorchjob.swapping import code

CELL = """
import enum
from torch import nn
from torch.nn import Module
lr, smoothing, warmup = 0.1, 0.0, 10
momentum = 0.9
token = "secret"
mode = "train"
step = 0
class Net(nn.Module):
    def forward(self, x):
        return x
class Slotted:
    __slots__ = ("x",)
class Kind(enum.Enum):
    ONE = 1
def loss(out):
    return out * smoothing if mode == "train" else token
def make(by):
    scale = by
    def inner(x):
        return x * by
    return inner
optimizer = SGD(lr=lr, momentum=momentum)
while step < warmup:
    step += 1
    loss(decay)
print(step)
"""


def job(text=CELL, *swapped, **captured):
    swaps = [
        Swapped(float(n), 0, 0, n, f"s{n}", "ada", new, "", {}, "report()", 1)
        for n, new in enumerate(swapped, 1)
    ]
    kept = {name: (value, "") for name, value in captured.items()}
    return reduce(
        apply, swaps, JobState(JobInfo("train", sources={"a": ("Cell In[1]", text)}, captured=kept))
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("lr = 1", "lr is read only on line 24 of Cell In.1., which has already run: a new value "),
        ("momentum = 1", "set train optimizer.momentum=VALUE sets its optimizer's momentum"),
        ("scale = 1", r"scale is a local variable of make\(\) \(Cell In.1., line 19\)"),
        ("inner = 1", r"inner is a local variable of make\(\)"),
        ("by = 1", r"have the code read by as one, or swap make\(\)"),
        ("def inner(x):\n    return x", r"inner is a local variable of make\(\)"),
        ("smothing = 0.1", "no code of train reads a global smothing; did you mean smoothing"),
        ("class Slotted:\n    __slots__ = ('x', 'y')", "Slotted has other __slots__ now"),
        (
            "class Net(Module, nn.Linear):\n    pass",
            r"Net has other bases now \(Module, nn.Linear, not nn.Mod",
        ),
        ("class Net(Slotted):\n    pass", "Net has other bases now"),
        ("class Kind(enum.Enum):\n    TWO = 2", "Kind is an enum"),
        ("def Net():\n    pass", "Net is a class, and can't become anything else: give it another name"),
    ],
)
def test_what_would_change_nothing_or_cant_be_changed_is_refused_by_name(text, why):
    for swapped in ((), ("# inner.lr = 3",)):  # a setting of an optimizer is no code
        with pytest.raises(SwapError, match=why):
            code.of(job(CELL, *swapped)).refuse(text, "train")


@pytest.mark.parametrize(
    "text",
    [
        "smoothing = 0.1",
        "step = 3",
        "class Net(Module):\n    def forward(self, x):\n        return -x",
        "class Slotted:\n    __slots__ = 'x'",
        "lr = 3\ndef loss(out):\n    return out * lr",  # the new code reads lr at each call
        "def helper():\n    return 1\nnew = 2",
        "decay = 0.5",
    ],
)
def test_what_may_be_changed_is_left_to_the_ranks(text):
    code.of(job()).refuse(text, "train")


SAVES = """
path = "a.pt"
trainer = Trainer(model)
def train():
    while True:
        report(loss=1)
%s
"""


@pytest.mark.parametrize(
    "lines",
    [
        "for _ in range(9):\n    swap_point()\nsave(model, path)",
        "train()\nsave(model, path)",
        "print(path)\ntrainer.train()\nsave(model, path)",
    ],
)
def test_a_value_that_a_line_after_the_training_reads_may_be_changed(lines):
    code.of(job(SAVES % lines)).refuse("path = 'b.pt'", "train")


def test_a_value_that_only_lines_ahead_of_the_training_read_is_refused():
    job_code = code.of(job(SAVES % "for _ in range(9):\n    prepare()\nprint(path)\ntrain()"))

    with pytest.raises(SwapError, match=r"path is read only on line 9 of Cell In.1., which has already run"):
        job_code.refuse("path = 'b.pt'", "train")


def test_of_code_that_isnt_known_whole_nothing_is_refused_for_not_being_read():
    code.of(job("def broken(:")).refuse("lr = 1", "train")


def test_the_plain_values_that_code_reads_again_and_again_are_known_but_no_secrets():
    assert code.of(
        job("def f():\n    return lr, token, n, big, mode", lr="0.1", token="'x'", n="[1]")
    ).values == {"lr": 0.1}
    assert code.of(job()).values == {"mode": "train", "smoothing": 0.0, "warmup": 10}
    assert code.of(job(CELL, "smoothing = 0.1\nmode = 'eval'")).values == {
        "mode": "eval",
        "smoothing": 0.1,
        "warmup": 10,
    }
    assert code.of(job("lr = 2\ndef f():\n    return lr", lr="1")).values == {}
    assert code.of(job("a, *b, c = 1, 2, 3, 4\ndef f():\n    return a + c")).values == {"a": 1}


def test_of_a_whole_edited_cell_what_differs_is_swapped():
    edited = CELL.replace("out * smoothing", "out - smoothing").replace('mode = "train"', 'mode = "eval"')
    new = code.of(job()).definitions_in(edited, "train")

    assert [line for line in new.split("\n") if line] == [
        'mode = "eval"',
        "def loss(out):",
        '    return out - smoothing if mode == "train" else token',
    ]
    assert new.split("\n").index('mode = "eval"') == edited.split("\n").index('mode = "eval"')
    with pytest.raises(SwapError, match="runs this cell as it is"):
        code.of(job()).definitions_in(CELL, "train")
    with pytest.raises(SwapError, match=r"line 25 of the cell \(while step < 20:\) isn't what train runs"):
        code.of(job()).definitions_in(CELL.replace("step < warmup", "step < 20"), "train")
    assert (
        code.of(job(CELL, new)).definitions_in(CELL, "train").split()
        == "".join(
            ['mode = "train" ', "def loss(out): ", 'return out * smoothing if mode == "train" else token']
        ).split()
    )


def test_of_an_edited_line_only_what_it_defines_is_swapped():
    job_code = code.of(job("train(); lr = 0.1; go(); wd = 0  # decay\nré = 'é'; lr_é = 1; print(lr_é)"))
    edited = "train(); lr = 0.2; go(); wd = 1  # decay\nré = 'é'; lr_é = 2; print(lr_é)"

    assert job_code.definitions_in(edited, "train") == "lr = 0.2; wd = 1  # decay\nlr_é = 2"


def test_a_diff_is_of_the_code_as_it_was_swapped_before():
    job_code = code.of(job("lr = 1\ndef f(): return lr", "lr = 2"))

    assert job_code.diff("lr = 3").splitlines()[3:] == ["-lr = 2", "+lr = 3"]


def test_a_diff_of_a_name_shows_no_other_statement_of_its_line():
    job_code = code.of(job("lr = 0.1; wd = 0.01"))

    assert job_code.diff("lr = 1e-4; wd = 1").splitlines()[3:5] == ["-lr = 0.1", "+lr = 1e-4"]


def test_a_cells_future_imports_stay_with_what_differs():
    cell = "from __future__ import annotations\ndef f(x: Later): return 1\nrun(f)"
    job_code = code.of(job(cell))

    new = job_code.definitions_in(cell.replace("1", "2"), "train")
    assert new == "from __future__ import annotations\ndef f(x: Later): return 2\n"
    with pytest.raises(SwapError, match="nothing to swap"):
        job_code.definitions_in(cell, "train")


def test_a_cell_as_it_was_swapped_has_the_newest_definitions_in_their_places():
    cell = '"""About."""\nlr = 1\n@cached\ndef loss():\n    return lr\nfor x in y:\n    loss()\n'
    swaps = ["def loss():\n    return lr * by\nby = 2\noptimizer.lr = 3", "by = 4\nlr = 5"]

    assert code.as_swapped(cell, swaps) == "\n".join(
        [
            '"""About."""',
            "by = 4",
            "lr = 5",
            "def loss():",
            "    return lr * by",
            "for x in y:",
            "    loss()",
            "",
        ]
    )
    assert code.as_swapped(cell, []) == cell
    # A name that is set together with others is set again behind them.
    assert code.as_swapped("lr, most = 1, 2\nrun()", ["most = 3"]) == "lr, most = 1, 2\nmost = 3\nrun()"


@pytest.mark.parametrize(
    ("cell", "swaps", "swapped"),
    [
        ("lr = 0.1; train(lr)\nprint(1)", ["lr = 1e-4"], "lr = 1e-4\ntrain(lr)\nprint(1)"),
        ("scale = 1.0; model = load()", ["scale = 2.0"], "scale = 2.0\nmodel = load()"),
        ("é = 'é'; ü = 1; run(é)  # go", ["ü = 2  # more"], "é = 'é'\nü = 2  # more\nrun(é)  # go"),
        ("a = 1; b = 2\nlr = 1; go()", ["lr = 2"], "a = 1; b = 2\nlr = 2\ngo()"),
        ('"""About."""; go()', ["by = 2"], '"""About."""\nby = 2\ngo()'),
        ("train(lr := 0.1)", ["lr = 1"], "train(lr := 0.1)\nlr = 1"),
        (
            "if fast:\n    lr = 1\n    warm()\ngo()",
            ["lr = 2"],
            "if fast:\n    lr = 1\n    warm()\nlr = 2\ngo()",
        ),
        ("lr, run.lr = 1, 1", ["lr = 2"], "lr, run.lr = 1, 1\nlr = 2"),
    ],
)
def test_a_cell_as_it_was_swapped_keeps_what_else_it_does(cell, swaps, swapped):
    assert code.as_swapped(cell, swaps) == swapped


@pytest.mark.parametrize(
    ("cell", "swaps", "swapped"),
    [
        (
            "import copy\nmodel = load()\ndef after(): pass\nfor _ in x:\n    after()\nmodel = None",
            ["ema = copy.copy(model)\nby = 2\ndef after(): ema.take(by)\nmore = ema"],
            "by = 2\nimport copy\nmodel = load()\nema = copy.copy(model)\nmore = ema\n"
            "def after(): ema.take(by)\nfor _ in x:\n    after()\nmodel = None",
        ),
        ("model = load(); go(model)", ["w = model.w"], "model = load()\nw = model.w\ngo(model)"),
        ("from helpers import *\ngo()", ["lr = 2"], "from helpers import *\nlr = 2\ngo()"),
        ("go()", ["def f(by=None):\n    return model"], "def f(by=None):\n    return model\ngo()"),
        (
            "from __future__ import annotations\ngo()",
            ["lr = 2"],
            "from __future__ import annotations\nlr = 2\ngo()",
        ),
        (
            "go()",
            ["by = 2", "from __future__ import annotations\ndef f(): pass"],
            "from __future__ import annotations\nby = 2\ndef f(): pass\ngo()",
        ),
        (
            "import torch\ngo()",
            ["def f(n) -> torch.Tensor: pass"],
            "import torch\ndef f(n) -> torch.Tensor: pass\ngo()",
        ),
        (
            "import torch\ngo()",
            ["def by(): return torch.ones(2)\nw = by()"],
            "def by(): return torch.ones(2)\nimport torch\nw = by()\ngo()",
        ),
    ],
)
def test_a_new_definition_in_a_cell_as_it_was_swapped_comes_after_what_it_reads(cell, swaps, swapped):
    assert code.as_swapped(cell, swaps) == swapped


@pytest.mark.parametrize(
    ("cell", "swaps", "swapped"),
    [
        (
            "lr = 0.1\nopts = dict(lr=lr)\nwd = 0.01\ngo(opts, wd)",
            ["lr, wd = 1e-4, 0.1"],
            "lr, wd = 1e-4, 0.1\nopts = dict(lr=lr)\ngo(opts, wd)",
        ),
        ("lr, b = 0, 0\ngo()", ["lr, b = 1, 2", "b = 5"], "lr, b = 1, 2\nb = 5\ngo()"),
        ("b = 0\nlr = 0\ngo()", ["lr, b = 1, 2", "b = 5"], "lr, b = 1, 2\nb = 5\ngo()"),
        ("n = 0\ngo()\nn = 0\ngo()", ["n = 1"], "n = 1\ngo()\nn = 1\ngo()"),
        ("n = 0\ngo()\nlr, n = 0, 0\ngo()", ["n = 1"], "n = 1\ngo()\nlr, n = 0, 0\nn = 1\ngo()"),
        ("go()", ["def by(): return 2\nlr = by()"], "def by(): return 2\nlr = by()\ngo()"),
        ("%time go()", ["lr = 1", "lr = 2"], "%time go()\nlr = 2"),
    ],
)
def test_each_name_of_a_cell_is_defined_as_swapped_where_the_cell_first_reads_it(cell, swaps, swapped):
    assert code.as_swapped(cell, swaps) == swapped
