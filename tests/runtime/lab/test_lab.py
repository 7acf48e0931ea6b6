"""Labs on real nodes: ranks that stay, the turns that they run, and who may interrupt or end them."""

import os
import random
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from nbtorchjob.capture import RankNames
from nbtorchjob.errors import AskError
from nbtorchjob.runtime.facts import exits
from tests.patience import LIMIT
from tests.runtime.labs import Lab, packed

pytestmark = pytest.mark.torch

BEGINS = """
import os, sys, time
import torch, torch.distributed as dist
count = 0
"""


@pytest.fixture(scope="module")
def lab():
    """Yield a lab of two ranks; check afterwards that it is still usable."""
    with Lab(BEGINS, nproc=2) as lab:
        lab.base()
        yield lab
        assert lab.gives("count") >= 0
        assert not lab.output()


def test_what_a_cell_sets_is_there_for_the_next_and_what_it_prints_is_its_own(lab):
    first = lab.run("x = 5; print('first')")
    second = lab.run("print('second', file=sys.stderr); x + 1")

    assert lab.value(second) == 6
    assert [lab.log(first, 1), lab.log(second, 1)] == ["first\n", "second\n"]
    assert lab.names(["x", "y"])["has"] == ["x"]
    assert lab.gives(f"x # {'x' * 100_000}") == 5
    assert {fact["rank"] for fact in lab.facts("RankBegan", round=second)} == {0, 1}


SETS = """
def function():
    global of_function
    inner = of_function = 1
class Kind:
    field = 1
squares = [(last := each) * each for each in range(3)]
for step in range(1): time.sleep(1)
"""


def test_a_cell_that_runs_sets_for_the_next_what_is_not_local_to_its_parts(lab):
    running = lab.take(lab.cell(SETS))["round"]

    local = ["inner", "field", "each"]
    meanwhile = lab.names(["function", "of_function", "Kind", "squares", "last", "step", *local])["has"]
    assert not lab.over(running)
    assert meanwhile == ["function", "of_function", "Kind", "squares", "last", "step"]


def test_each_cell_has_arguments_of_its_own(lab):
    seen = []
    for argv in (["3", "--lr", "0.1"], []):
        round_ = lab.take(lab.cell("sys.argv", argv=argv))["round"]
        assert not lab.over(round_)
        seen.append(lab.value(round_))
    assert seen == [["cell", "3", "--lr", "0.1"], ["cell"]]


def test_an_exception_is_told_with_its_lines_and_leaves_ranks_as_they_are(lab):
    lab.run("kept = 1")
    error = lab.fails("def step():\n    lost = kept + 1\n    raise ValueError(lost)\nstep()")

    assert [frame["line"] for frame in error["frames"]] == ["step()", "raise ValueError(lost)"]
    last = lab.facts("RankFailed")[-1]
    assert last["stays"]
    assert ["lost", "2"] in last["error"]["frames"][-1]["variables"]
    assert lab.fails("1 +")["type"] == "SyntaxError"
    assert lab.gives("kept") == 1


def test_the_agent_sleeps_through_short_cells_and_looks_after_long_ones(lab):
    def waits():
        fields = (process / "status").read_text().split()
        return int(fields[fields.index("voluntary_ctxt_switches:") + 1])

    agent = lab.gives("os.getppid() if os.getppid() != 1 else 0")
    while not len(list(Path(f"/proc/{agent}/task").iterdir())) > 2:  # skip the ranks' template process
        agent = int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1])
    process = Path(f"/proc/{agent}/task/{agent}")
    began, before = time.monotonic(), waits()
    for _ in range(30):
        lab.gives("1 + 1")
    short, seconds = waits() - before, time.monotonic() - began
    before = waits()
    lab.gives("time.sleep(0.5)")

    assert short < 15 + 2 * seconds  # the agent looks each second anyway
    assert waits() - before >= 3


def test_a_child_that_ends_while_an_exception_is_told_ends_no_rank(lab):
    # A signal handler raises wherever the main thread is, like torch's handler for a loader's workers.
    error = lab.fails("""
import signal
def raises(*_): raise RuntimeError("a worker ended")
class Fails(Exception):
    @property
    def __notes__(self):
        os.kill(os.getpid(), signal.SIGCHLD)
        return ["told"]
signal.signal(signal.SIGCHLD, raises)
raise Fails
""")
    assert (error["type"], error["notes"]) == ("Fails", ["told"])
    assert lab.gives("handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL); handler is raises")


def test_a_collective_that_times_out_is_an_exception_that_ranks_outlive():
    meets = "import datetime\ndist.init_process_group('gloo', timeout=datetime.timedelta(seconds=1))"
    with Lab(BEGINS + meets, nproc=2) as lab:
        lab.base()
        error = lab.fails("if not dist.get_rank(): dist.recv(torch.ones(1), 1)")

        assert "imed out" in error["message"]
        assert lab.gives("count, dist.get_rank()") == (0, 0)


def test_a_cell_that_exits_or_forks_ends_its_turn_and_no_rank(lab):
    forks = "pid = os.fork()\nif not pid: raise ValueError\n"

    assert lab.gives("sys.exit()") is None
    assert lab.fails("sys.exit('enough')")["message"] == "enough"
    assert lab.gives(forks + "os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])") == 1


def test_a_cell_that_clears_its_environment_has_its_value_and_ends_no_lab():
    with Lab(BEGINS, nproc=2) as lab:
        lab.base()
        assert lab.gives("kept = os.environ['PATH']; os.environ.clear(); os.environ['PATH'] = kept; 1") == 1
        assert lab.gives("2") == 2


@pytest.mark.parametrize(
    "spoils",
    [
        "import io; sys.stdout = io.StringIO(); sys.stderr = None",
        "sys.stdout.close()",
        "import io; sys.stdout = io.TextIOWrapper(sys.stdout.detach())",
        "os.close(1); os.close(2)",
        "os.closerange(3, 1000); opened = [open(os.devnull) for _ in range(20)]",
        "os.closerange(3, 1000)",
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "from threading import Thread; Thread(target=time.sleep, args=(0.01,)).start()",
    ],
)
def test_what_a_cell_does_to_its_process_is_put_right(lab, spoils):
    lab.run(spoils)
    after = lab.run("print('still'); os.system('echo there'); count")

    assert sorted(lab.log(after).split()) == ["still", "there"]
    assert interrupted(lab) == [0, 1]


def interrupted(lab, **how):
    """Interrupt a cell that has begun; return the ranks on which that ended it."""
    round_ = lab.take(lab.cell("print('on')\nwhile True: time.sleep(0.001)"), **how)["round"]
    lab.until(lambda: lab.log(round_) and lab.log(round_, 1))
    assert lab.ask("interrupt", round=round_) == {"interrupted": [0, 1]}
    failed = lab.over(round_)
    assert {fact["error"]["type"] for fact in lab.facts("RankFailed", round=round_)} == {"KeyboardInterrupt"}
    return failed


def test_classes_of_a_cell_travel_by_name_between_ranks_and_processes(lab):
    lab.run("class Point:\n    def __init__(self, at): self.at = at\n    def __len__(self): return self.at")
    text = """
        dist.init_process_group("gloo")
        points = [None] * 2
        dist.all_gather_object(points, Point(dist.get_rank()))
        dist.destroy_process_group()
        from torch.utils.data import DataLoader
        [len(point) for point in points], len(list(DataLoader(range(8), num_workers=2)))
    """
    assert lab.gives("\n".join(line[8:] for line in text.splitlines())) == ([0, 1], 8)


def test_a_process_that_is_spawned_knows_what_later_cells_define(lab):
    lab.run("import multiprocessing\nclass Much:\n    value = 3")
    text = """
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found = pool.apply(len, (Much.__name__,)), pool.apply(getattr, (Much, "value"))
        found
    """
    assert lab.gives("\n".join(line[8:] for line in text.splitlines()), ranks=[0]) == (4, 3)


def test_a_process_that_is_spawned_knows_what_came_along_with_later_cells(lab):
    lab.run("import multiprocessing\nstep = 10")
    notebook: dict[str, Any] = {"__name__": "__main__", "more": 5, "step": 0}
    exec("def inner(n): return n + more + step\ndef outer(n): return inner(n)", notebook)
    text = """
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found = pool.map(outer, range(2))
        found
    """
    rank_names = RankNames(frozenset(["multiprocessing"]))
    sent = lab.cell("\n".join(line[8:] for line in text.splitlines()), notebook, rank_names=rank_names)
    round_ = lab.take(sent, ranks=[0])["round"]
    assert lab.over(round_) == []
    assert lab.value(round_) == [15, 16]
    # A cell of the lab uses them in such a process, too.
    lab.run("def last(n): return outer(n) * 2", ranks=[0])
    use = "with multiprocessing.get_context('spawn').Pool(1) as pool: found = pool.map(last, range(2))\nfound"
    assert lab.gives(use, ranks=[0]) == [30, 32]


def test_what_weak_references_lead_to_stays_as_long_as_the_names_that_came_along(lab):
    notebook: dict[str, Any] = {"__name__": "__main__"}
    text = """
import weakref
class Node:
    def __init__(self, parent=None): self.parent, self.word = parent and weakref.ref(parent), "here"
root = Node()
leaf = Node(root)
def up(_): return leaf.parent().word
"""
    exec(text, notebook)
    lab.run("import multiprocessing")
    round_ = lab.take(lab.cell("up(0)", notebook), ranks=[0])["round"]
    assert lab.over(round_) == []
    assert lab.value(round_) == "here"
    assert lab.gives("import gc; gc.collect(); up(0)", ranks=[0]) == "here"
    use = "with multiprocessing.get_context('spawn').Pool(1) as pool: found = pool.map(up, [0])\nfound"
    assert lab.gives(use, ranks=[0]) == ["here"]


def test_a_cell_may_run_on_some_ranks(lab):
    assert lab.gives("mine = os.environ['RANK']; mine", ranks=[1]) == "1"
    assert (lab.names(["mine"], [1])["has"], lab.names(["mine"])["has"]) == (["mine"], [])
    assert lab.gives("'mine' in globals()") is False
    assert lab.facts("WorkersStarted")[-2]["ranks"] == [1]


def test_names_that_come_along_give_way_to_the_ranks_own_unless_they_are_pushed(lab):
    notebook = {"__name__": "__main__", "ours": 1}
    exec("offset = 10\ndef shift(value): return value + offset + ours\n", notebook)
    lab.run("ours = 100")

    assert lab.gives("shift(0)", notebook) == 110
    notebook["offset"] = 20
    assert lab.gives("shift(0)", notebook) == 110
    assert lab.gives("shift(0)", notebook, push=["offset"]) == 120
    assert lab.gives("offset + ours") == 120
    assert lab.gives("data.sum()", {"data": numpy.ones(100_000)}) == 100_000


def test_reports_and_places_are_those_of_the_turn(lab):
    text = "import nbtorchjob as nb\nnb.report(loss=count)\n(nb.artifacts_dir() / 'a').touch()\nnb.leaving()"
    round_ = lab.run(text)

    assert lab.value(round_) is False
    assert [fact["seq"] for fact in lab.facts("Reported", round=round_)] == [0, 0]
    assert (lab.folder / "node-0" / "artifacts-1" / "a").exists()


def test_what_is_sent_twice_runs_once_and_what_is_cut_off_never(lab):
    cell = lab.cell("count += 1; count")
    before = lab.gives("count")
    answer = lab.take(cell, known_as="twice")
    assert lab.take(cell, known_as="twice") == answer
    data = packed(cell)
    with lab.talk("turn", id="cut", base=None, ranks=None, size=len(data)) as talk:
        talk.send(data[:-1])

    assert not lab.over(answer["round"])
    assert lab.gives("count") == before + 1
    assert lab.until(lambda: not list(lab.folder.glob("node-0/*.payload")))


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"ranks": [1, 9]}, "there is no rank 9: it has ranks 0 to 1"),
        ({"base": 99}, "its ranks began anew"),
        ({"key": b"x" * 32}, "the payload's signature doesn't match this job's key"),
        ({"data": b"x" * 99}, "the payload is damaged: File is not a zip file"),
    ],
)
def test_a_turn_that_cannot_run_is_refused_in_a_line(lab, how, why):
    count = len(lab.facts("TurnTaken"))

    with pytest.raises(AskError, match=why):
        lab.take(lab.cell("1"), **how)
    assert len(lab.facts("TurnTaken")) == count


def test_turns_wait_for_those_before_and_one_that_waits_can_be_taken_back(lab):
    running = lab.take(lab.cell("go = False\nwhile not go: time.sleep(0.001)"))
    second = lab.take(lab.cell("import json; later = 1"))
    third = lab.take(lab.cell("earlier = 'later' in globals()"), ranks=[0])

    assert [turn["round"] for turn in third["ahead"]] == [running["round"], second["round"]]
    assert lab.names(["json", "later", "no"])["has"] == ["json", "later"]
    assert lab.ask("interrupt", round=second["round"]) == {"interrupted": [0, 1]}
    assert lab.over(second["round"]) == [0, 1]
    lab.ask("interrupt", round=None)
    assert lab.over(running["round"]) == [0, 1]
    assert lab.over(third["round"]) == []
    assert lab.gives("earlier", ranks=[0]) is False
    assert lab.ask("interrupt", round=None) == {"interrupted": []}


def test_interrupts_at_any_moment_lose_nothing_and_end_no_rank(lab):
    chance, before = random.Random(0), lab.gives("count")
    cells = [
        "count += 1; time.sleep(0.05)",
        "count += 1\nfor _ in range(10**6): pass",
        "count += 1; print('x' * 9999)",
    ]
    for number in range(20):
        round_ = lab.take(lab.cell(cells[number % 3]))["round"]
        until = time.perf_counter() + chance.random() * 0.02
        while time.perf_counter() < until:
            pass
        lab.ask("interrupt", round=round_)
        lab.over(round_)

    assert before <= lab.gives("count") <= before + 20
    assert not lab.facts("RankExited")


def test_an_interrupt_is_what_sigint_is_to_the_code(lab):
    setup = "import signal\nheard = []\nsignal.signal(signal.SIGINT, lambda *_: heard.append(1))\n"
    round_ = lab.take(lab.cell(setup + "print('on')\nwhile not heard: time.sleep(0.001)"))["round"]
    lab.until(lambda: lab.log(round_) and lab.log(round_, 1))
    lab.ask("interrupt", round=round_)

    assert lab.over(round_) == []
    assert lab.gives("heard") == [1]


SLEEPS = "print('on', file=sys.__stderr__, flush=True) or time.sleep(1000)"


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("def f():\n    breakpoint()\n    return 1\nf()", ["p 1"]),
        ("breakpoint()\n1", ["interact", "1"]),
        ("breakpoint()\n1", [SLEEPS]),
        ("breakpoint()\n1", [f"debug {SLEEPS}", "c"]),
        ("import asyncio\nbreakpoint()\nawait asyncio.sleep(1000)", ["p 1"]),
    ],
    ids=["prompt", "interpreter", "command", "debugger", "task"],
)
def test_an_interrupt_ends_a_cell_that_is_stopped_in_the_debugger(lab, text, typed):
    round_ = lab.take(lab.cell(text))["round"]
    lab.until(lambda: len(lab.facts("RankStops", round=round_)) == 2)
    with lab.talk("debug", rank=1, by="me") as talk:
        for line in typed:
            while "prompt" not in talk.hear(LIMIT):
                pass
            talk.send({"line": line})
        if SLEEPS in typed[0]:
            lab.until(lambda: lab.log(round_, 1).endswith("on\n"))
        lab.ask("interrupt", round=round_)
        while "left" not in (last := talk.hear(LIMIT)):
            pass

    assert last == {"left": "rank 1 is interrupted"}
    assert lab.over(round_) == [0, 1]
    errors = [fact["error"] for fact in lab.facts("RankFailed", round=round_)]
    assert {error["type"] for error in errors} == {"KeyboardInterrupt"}
    assert all(frame["filename"].startswith("<cell ") for error in errors for frame in error["frames"])
    assert [fact["how"] for fact in lab.facts("RankGoesOn", round=round_)] == ["interrupted"] * 2


def test_a_lab_ends_when_it_is_asked_to_once_what_was_taken_is_done():
    with Lab("import os, time\nprint('begun')") as lab:
        lab.base()
        go = lab.folder / "go"
        lab.take(lab.cell(f"while not os.path.exists({str(go)!r}): time.sleep(0.01)"))
        last = lab.take(lab.cell("7"))["round"]
        assert lab.ask("end") == {"ends": True}
        with pytest.raises(AskError, match="it is ending"):
            lab.take(lab.cell("8"))
        go.touch()

        assert lab.wait() == exits.OK
        assert lab.value(last) == 7
        assert [fact["why"] for fact in lab.facts("LabEnds")] == ["asked"]


def test_a_lab_that_waits_for_too_long_ends():
    with Lab("1", idle=0.05) as lab:
        assert lab.wait() == exits.OK
        assert [fact["why"] for fact in lab.facts("LabEnds")] == ["idle"]


def test_a_lab_that_waits_ends_at_once_when_its_node_has_to():
    with Lab("import nbtorchjob\nnbtorchjob.leaving()", nproc=2) as lab:
        lab.base()
        os.kill(lab.nodes[0].pid, signal.SIGTERM)

        assert lab.wait() == exits.CANCELLED
        assert not lab.facts("NodeLeaves")


def test_a_rank_that_dies_has_all_begin_anew_and_empty():
    with Lab("import os; mine = 1", nproc=2, max_restarts=1) as lab:
        base = lab.base()
        lab.take(lab.cell("os._exit(0)"), ranks=[1])
        anew = lab.base(2)

        assert anew > max(fact["round"] for fact in lab.facts("TurnTaken"))
        assert lab.names(["mine"]) == {"has": [], "base": anew, "ahead": []}
        with pytest.raises(AskError, match="its ranks began anew"):
            lab.take(lab.cell("mine"), base=base)
        lab.take(lab.cell("import os; os._exit(3)"))
        assert lab.wait() == exits.USER_ERROR


def test_the_own_call_is_run_again_only_if_it_never_ended():
    dies = "import os, sys\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': os._exit(1)\nmine = 1"
    with Lab(dies, max_restarts=1) as lab:
        base = lab.base(2)
        assert lab.names(["mine"]) == {"has": ["mine"], "base": base, "ahead": []}
    with Lab("mine = 1", attempt=2) as lab:
        lab.base()
        assert lab.names(["mine"])["has"] == []
        assert not lab.facts("TurnTaken")


def overheard(port, base):
    """Return what any user of this machine reads in the store where a lab's nodes meet."""
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=False)
    keys = [f"nbtorchjob/lab/{base}/say/{number}" for number in range(64)]
    return [store.get(key) for key in keys if store.check([key])]


def test_nodes_run_the_same_turns_in_the_same_order():
    with Lab("import os, time", nodes=2) as lab:
        base = lab.base()
        total = "data.sum() + int(os.environ['RANK'])"
        data = numpy.random.default_rng(0).random(3_000_000)  # more than nodes send at once
        sums = lab.take(lab.cell(total, {"data": data, "os": os}), all_ranks=True)["round"]
        assert lab.over(sums) == []
        assert [lab.value(sums, rank) for rank in range(2)] == [data.sum(), data.sum() + 1]
        assert lab.gives("here = 1; os.environ['NBTORCHJOB_NODE']", ranks=[1]) == "1"
        assert (lab.names(["here"], [1])["has"], lab.names(["here"])["has"]) == (["here"], [])
        running = lab.take(lab.cell("print('on')\nwhile True: time.sleep(0.001)"))["round"]
        lab.until(lambda: lab.log(running, 1, node=1))
        lab.ask("interrupt", round=running)
        assert lab.over(running) == [0, 1]
        with pytest.raises(AskError, match="the lead is node 0"):
            lab.ask("names", node=1, of=[])
        lab.run("'a secret of the cell'", {"token": "a secret of the notebook"})
        words = overheard(lab.port, base)
        assert words
        assert [word for word in words if len(word) > 500 or b"secret" in word] == []
        for number in range(80):  # enough that nodes remove payloads that all have taken
            last = lab.take(lab.cell(f"number = {number}"))["round"]
        assert lab.over(last) == []
        lab.ask("end")

        assert [lab.wait(node) for node in range(2)] == [exits.OK, exits.OK]
        assert not list(lab.folder.glob("node-*/*.payload"))


@pytest.mark.parametrize("words", [[f"say/{number}" for number in range(32)], ["done/{}/1"]])
def test_somebody_else_who_writes_where_nodes_meet_ends_a_lab_in_clear_words(words):
    with Lab(nodes=2) as lab:
        base = lab.base()
        assert lab.gives("1") == 1
        running = lab.take(lab.cell("import time\ntime.sleep(1000)"))["round"]
        lab.until(lambda: len(lab.facts("RankBegan", round=running)) == 2)
        store = torch.distributed.TCPStore("127.0.0.1", lab.port, is_master=False)
        with suppress(RuntimeError):  # the first words may have ended the lab and its store by now
            for word in words:
                store.set(f"nbtorchjob/lab/{base}/{word.format(running)}", "forged")

        assert lab.wait(0) != exits.OK
        assert lab.wait(1) != exits.OK
        assert "wrote to the store where its nodes meet" in str(lab.facts("NodeFailed"))


def test_what_is_left_of_an_elastic_lab_begins_anew():
    with Lab("mine = 1", nodes=2, nnodes="1:2") as lab:
        lab.until(lambda: lab.facts("WorkersStarted", world_size=2))
        lab.base()
        running = lab.take(lab.cell("import time\ntime.sleep(1000)"))["round"]
        lab.until(lambda: len(lab.facts("RankBegan", round=running)) == 2)
        lab.nodes[1].kill()
        lab.until(lambda: lab.facts("WorkersStarted", world_size=1, node=0))
        base = lab.base()

        assert base > running
        assert lab.names(["mine"])["has"] == []
        assert lab.gives("2") == 2


@pytest.fixture
def small_disk(folder):
    """Return a folder with room for 8 MB."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", folder], check=False)
    if done.returncode:
        pytest.skip("mounting a small file system takes root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


FILLS = """
import os
def fill(room):
    with open(os.path.join(os.environ["NBTORCHJOB_FOLDER"], "filler"), "wb", buffering=0) as file:
        free = os.statvfs(file.fileno())
        file.write(bytes((free.f_bavail - room) * free.f_bsize))
kept = [os.getpid()]
"""


def test_a_full_disk_costs_a_lab_turns_and_no_rank(small_disk):
    with Lab(FILLS, folder=small_disk) as lab:
        (lab.folder / "ballast").write_bytes(bytes(65_536))
        lab.base()
        kept = lab.gives("kept")
        messages = []
        for room in range(9):  # free pages: for none, some or all of a turn's files
            (lab.folder / "node-0" / "filler").unlink(missing_ok=True)
            lab.over(lab.take(lab.cell(f"fill({room})"))["round"])
            try:
                round_ = lab.take(lab.cell("print('x' * 5000)\n'y' * 5000"))["round"]
            except AskError as exc:
                messages.append(str(exc))
                continue
            finally:
                (lab.folder / "node-0" / "filler").unlink()
            if lab.over(round_):
                error = lab.facts("RankFailed", round=round_)[-1]["error"]
                messages.append(f"{error['message']}: {' '.join(error['notes'])}")

        assert [text for text in messages if not re.search(r"is full: .* of 8.39 MB are free", text)] == []
        assert messages
        assert lab.gives("kept") == kept
        assert not [fact for fact in lab.facts("RankFailed") if not fact["stays"]]
        assert not lab.facts("RankExited")
