"""A rank's part in swaps: it waits for no decision that will not come, and misses none that was made."""

import asyncio
import gc
import inspect
import sys
import threading
import time
import types
import weakref

import pytest

from nbtorchjob.runtime import torch_versions
from nbtorchjob.runtime.api import points, report
from nbtorchjob.runtime.api.points import AT, KIND, NUMBER, POINT, SWAP, TRIAL, VERDICT, Page
from nbtorchjob.runtime.rank import swapped, swapping
from nbtorchjob.runtime.rank.swapping import (
    BACK,
    CHANGED,
    DROP,
    GO,
    PREPARED,
    RAISED,
    REFUSED,
    SETTLED,
    STAYS,
    STEP,
    WENT_WELL,
)
from tests.patience import LIMIT
from tests.runtime.swaps import packed

pytestmark = pytest.mark.torch


class Node:
    """The node of one rank: a test makes its decisions, and runs the rank's code in threads."""

    def __init__(self, folder, space):
        self.folder, self.space = folder, space
        self.page = Page.create(str(folder), 1)
        points.begin(str(folder), 0)
        swapping.install()
        self.point = points.of[POINT]
        self.threads = []

    def offer(self, number, text, *, or_back=False):
        """Offer the rank a swap at its next point."""
        names = [name for name in ("closed", "gate", "lr", "torch") if name in self.space]
        payload = packed(text, or_back=or_back, assumes=names)
        (self.folder / f"swap-{number}.payload").write_bytes(payload)
        self.page[KIND], self.page[AT + SWAP], self.page[NUMBER] = POINT, 0, number
        self.page[AT + SWAP] = self.page.bind(SWAP, POINT)

    def decide(self, number, verdict):
        self.page[TRIAL if verdict in (STAYS, BACK) else VERDICT] = number * STEP + verdict

    def start(self, function):
        """Run the rank's code in a thread."""
        self.threads.append(threading.Thread(target=function, daemon=True))
        self.threads[-1].start()

    def wait(self, number, what):
        until = time.monotonic() + LIMIT
        while self.page.ready(0) != number * STEP + what:
            assert time.monotonic() < until, divmod(self.page.ready(0), STEP)
            time.sleep(0.001)

    def join(self):
        for thread in self.threads:
            thread.join(LIMIT)
            assert not thread.is_alive()


@pytest.fixture
def node(folder, monkeypatch):
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec("def f():\n    return 'old'\nlr = 1", vars(main))
    monkeypatch.setattr(points, "page", None)
    yield Node(folder, vars(main))
    points._forget()
    assert points.on_trial is not None
    points.on_trial()  # it may have had compiled functions run as they are written
    points.on_swap = points.on_trial = None
    report.begin()  # it includes swapped numbers


def test_a_rank_that_is_slow_to_prepare_goes_on_though_another_verdict_stands_there(node):
    node.space["gate"] = threading.Event()
    node.offer(1, "lr = gate.wait(60)")
    node.start(node.point.passed)
    node.decide(1, DROP)
    node.page.release(SWAP)
    node.offer(2, "lr = 2")
    node.decide(2, DROP)  # the rank didn't reach this swap either
    node.page.release(SWAP)
    node.space["gate"].set()
    node.join()

    assert node.space["lr"] == 1


def test_a_rank_goes_on_though_what_a_swap_imports_exits(node, folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    (folder / "swapped_script.py").write_text("import sys\nsys.exit('usage: swapped_script.py FILE')")
    node.offer(1, "from swapped_script import f")
    node.decide(1, DROP)
    node.point.passed()

    assert divmod(node.page.ready(0), STEP) == (1, REFUSED)
    assert "usage: swapped_script.py FILE" in (folder / "swap-1-rank-0.json").read_text()
    assert node.space["f"]() == "old"


def test_a_function_on_trial_that_exits_is_put_back(node):
    node.offer(1, "def f():\n    raise SystemExit(2)", or_back=True)
    node.decide(1, GO)
    node.point.passed()
    node.start(lambda: node.space.update(answer=node.space["f"]()))
    node.wait(1, RAISED)
    node.decide(1, BACK)
    node.join()

    assert node.space["answer"] == "old"


def test_a_function_that_stays_as_it_is_tries_nothing(node):
    exec("def helper():\n    return 1", node.space)
    node.offer(1, "def helper():\n    return 1\ndef f():\n    return 1 / 0", or_back=True)
    node.decide(1, GO)
    node.point.passed()
    node.start(lambda: node.space.update(answer=(node.space["helper"](), node.space["f"]())))
    node.wait(1, RAISED)
    node.decide(1, BACK)
    node.join()

    assert node.space["answer"] == (1, "old")


def finished(value):
    """Return what a generator yields, or what a coroutine returns."""

    async def wait():
        return await value

    return asyncio.run(wait()) if inspect.iscoroutine(value) else [*value]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def f():\n    yield 'old'", "def f():\n    yield 1 / 0"),
        ("def f():\n    return ['old']", "def f():\n    yield 1 / 0"),
        ("async def f():\n    return ['old']", "async def f():\n    return 1 / 0"),
    ],
)
def test_what_runs_only_once_it_is_iterated_or_awaited_is_on_trial_then(node, old, new):
    exec(old, node.space)
    node.offer(1, new, or_back=True)
    node.decide(1, GO)
    node.point.passed()
    node.start(lambda: node.space.update(answer=finished(node.space["f"]())))
    node.wait(1, RAISED)
    node.decide(1, BACK)
    node.join()

    assert node.space["answer"] == ["old"]


def test_a_generator_on_trial_gets_what_is_sent_to_it_and_thrown_into_it(node):
    text = (
        "def f():\n    try:\n        sent = yield 1\n        yield sent\n"
        "    except KeyError:\n        yield 3\n    finally:\n        closed.append(1)\n    return 4"
    )
    node.space["closed"] = []
    node.offer(1, text, or_back=True)
    node.decide(1, GO)
    node.point.passed()
    items: list[int] = []

    def use():
        generator = node.space["f"]()
        items.extend((next(generator), generator.send(2), generator.throw(KeyError())))
        try:
            next(generator)
        except StopIteration as end:
            items.append(end.value)

    node.start(use)
    node.wait(1, WENT_WELL)
    node.decide(1, STAYS)
    node.join()

    assert (items, node.space["closed"]) == ([1, 2, 3, 4], [1])


COMPILED = [
    "@torch.compile(fullgraph=True, backend='eager')\ndef f(x):\n    return x + 1\nouter = f",
    "def f(x):\n    return x + 1\n"
    "@torch.compile(fullgraph=True, backend='eager')\ndef outer(x):\n    return f(x)",
]


@pytest.mark.parametrize("code", COMPILED, ids=["itself", "its caller"])
def test_a_function_in_code_that_is_compiled_whole_is_tried_or_refused(node, folder, code):
    torch = pytest.importorskip("torch")
    node.space["torch"] = torch
    exec(code, node.space)
    node.space["outer"](torch.ones(()))
    node.offer(1, "def f(x):\n    return x + 2", or_back=True)
    node.decide(1, GO if torch_versions.SET_STANCE.get() else DROP)
    node.point.passed()
    node.page.release(SWAP)
    if not torch_versions.SET_STANCE.get():
        assert "leave out --or-back" in (folder / "swap-1-rank-0.json").read_text()
        return
    node.start(lambda: node.space.update(answer=node.space["outer"](torch.ones(()))))
    node.wait(1, WENT_WELL)
    node.decide(1, STAYS)
    node.join()
    assert node.space["answer"] == 3

    node.page.watch(True)
    node.point.passed()
    assert divmod(node.page.ready(0), STEP) == (1, SETTLED)
    compiled = len(torch._dynamo.convert_frame.output_codes.seen)
    assert node.space["outer"](torch.ones(())) == 3
    assert len(torch._dynamo.convert_frame.output_codes.seen) > compiled


def test_what_was_on_trial_is_settled_before_another_swap(node):
    node.offer(1, "def f():\n    return 'new'\nlr = 5", or_back=True)
    node.decide(1, GO)
    node.point.passed()
    node.wait(1, CHANGED)
    node.decide(1, BACK)  # another rank raised; this one calls none of the new code, and reaches no point
    node.page.release(SWAP)
    node.offer(2, "lr = lr + 10")
    node.start(node.point.passed)
    node.wait(2, PREPARED)
    node.decide(2, GO)
    node.wait(2, CHANGED)
    node.decide(2, STAYS)
    node.join()

    assert (node.space["f"](), node.space["lr"]) == ("old", 11)


def test_what_was_on_trial_is_settled_though_another_swap_was_dropped_meanwhile(node):
    node.offer(1, "def f():\n    return 'new'", or_back=True)
    node.decide(1, GO)
    node.point.passed()
    node.decide(1, STAYS)
    node.page.release(SWAP)
    node.offer(2, "lr = 2")
    node.decide(2, DROP)
    node.page.release(SWAP)
    node.start(lambda: node.space.update(answer=node.space["f"]()))
    node.join()

    assert node.space["answer"] == "new"


def test_a_trial_is_settled_at_any_point_while_the_node_watches_for_that(node):
    node.offer(1, "def f():\n    return 'new'\nlr = 5", or_back=True)
    node.decide(1, GO)
    node.point.passed()
    node.page.release(SWAP)
    node.page.watch(True)
    node.decide(1, BACK)
    points.of[points.REPORT].passed()

    assert divmod(node.page.ready(0), STEP) == (1, SETTLED)
    assert (node.space["f"](), node.space["lr"]) == ("old", 1)
    node.page.watch(False)
    assert not node.point.passed()


def test_a_rank_keeps_a_change_only_once_it_stays_on_all(node):
    for number, decision, lr in ((1, BACK, 1), (2, STAYS, 2)):
        node.offer(number, "lr = 2")
        node.start(node.point.passed)
        node.wait(number, PREPARED)
        node.decide(number, GO)
        node.wait(number, CHANGED)
        node.decide(number, decision)
        node.join()
        assert node.space["lr"] == lr


def test_a_rank_that_fails_at_a_change_undoes_it_or_ends_where_it_stays_on_the_others(node, monkeypatch):
    monkeypatch.setattr(swapped.Change, "_recompile", lambda self: self._undo and 1 / 0)
    failed = []

    def passing():
        try:
            node.point.passed()
        except ZeroDivisionError as exc:
            failed.append(exc)

    for number, decision in ((1, BACK), (2, STAYS)):
        node.offer(number, "lr = 2")
        node.start(passing)
        node.wait(number, PREPARED)
        node.decide(number, GO)
        node.wait(number, RAISED)
        node.decide(number, decision)
        node.join()
        assert node.space["lr"] == 1
        assert len(failed) == number - 1


def test_values_that_a_change_has_replaced_arent_kept_once_it_stays(node):
    class Big:
        pass

    node.space["lr"] = Big()
    reference = weakref.ref(node.space["lr"])
    node.offer(1, "def f():\n    return 'new'\nlr = 5", or_back=True)
    node.decide(1, GO)
    node.point.passed()
    assert reference() is not None
    node.decide(1, STAYS)
    assert node.space["f"]() == "new"
    gc.collect()

    assert reference() is None


def test_a_round_that_is_over_leaves_nothing_on_trial(node, folder):
    node.offer(1, "def f():\n    return 'new'", or_back=True)
    node.decide(1, GO)
    node.point.passed()
    later = folder / "later"
    later.mkdir()
    Page.create(str(later), 1)
    points.begin(str(later), 0)
    node.start(lambda: node.space.update(answer=node.space["f"]()))
    node.join()

    assert node.space["answer"] == "new"


def test_random_numbers_are_drawn_anew_where_a_call_is_made_once_more(node):
    torch = pytest.importorskip("torch")
    node.space["torch"] = torch
    draw = "torch.rand(()).item()"
    if torch.cuda.is_available():
        draw += " + torch.rand((), device='cuda').item()"
    exec(f"def f():\n    return {draw}", node.space)
    torch.manual_seed(0)
    expected = node.space["f"]()
    torch.manual_seed(0)
    node.offer(1, f"def f():\n    {draw}\n    raise ValueError", or_back=True)
    node.decide(1, GO)
    node.point.passed()
    node.start(lambda: node.space.update(answer=node.space["f"]()))
    node.wait(1, RAISED)
    node.decide(1, BACK)
    node.join()

    assert node.space["answer"] == expected
