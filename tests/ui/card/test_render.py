"""The card and its plain text, for each state of a job.

``GOLDEN=write pytest tests/ui/card/test_render.py`` writes ``golden/`` anew: read the diff.
"""

import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from nbtorchjob.commands.table import OFFERS
from nbtorchjob.runtime.facts import exits
from nbtorchjob.runtime.facts.errors import Error, Frame
from nbtorchjob.runtime.facts.samples import RUNS, Collective, Group, RankSample, Thread
from nbtorchjob.spec.policies import Retry
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.ui.card import render
from tests.ui.card.retried import CLUSTER, begun, evicted, job, recoverable

GOLDEN = Path(__file__).parent / "golden"
CELL = ("Cell In[3]", 'for epoch in range(3):\n    x = 1\n    raise ValueError("no")\n')
HOSTILE = "<script>alert(1)</script><img src=x onerror=y>&amp;\"'\x1b[31m\u202e\ud800</pre>"


pytestmark = pytest.mark.usefixtures("greenwich")


def build(*facts, **info):
    state = JobState(JobInfo(**{"name": "swift-otter", "created": 1000.0, "nproc_per_node": 2, **info}))
    for fact in facts:
        state = apply(state, fact)
    return state


def started(nodes=1, round_=0, attempt=0, since=1001.0):
    out: list[ev.Event] = []
    for node in range(nodes):
        out.append(ev.NodeStarted(since, node, f"host-{node}", 100 + node))
        ranks = (2 * node, 2 * node + 1)
        out.append(ev.WorkersStarted(since + 1, node, attempt, round_, ranks, 2 * nodes))
    return out


def log(rank, text, round_=0):
    return ev.LogChunk(rank, round_, 0, text.encode())


def reports(count, **more):
    return [ev.Reported(1003.0 + n, 0, 0, n, {"epoch": n, "loss": 2 / (n + 1), **more}) for n in range(count)]


def failed(rank, message="no", time=1006.0, attempt=0, round_=0):
    error = Error("ValueError", message, (Frame("<cell-3>", 3, "<module>"),), time=time)
    return ev.RankFailed(time, rank // 2, rank, attempt, round_, error)


def ended(code=None, nodes=1, signal=None):
    nodes_exited = [ev.NodeExited(1007.0, node, code, signal) for node in range(nodes)]
    return [*nodes_exited, ev.Closed(1007.5)]


LOGS = [log(0, "epoch 0\n\x1b[32mok\x1b[0m\n 50%|##  |\r100%|####|\n"), log(1, "rank 1 <here>\n")]
FAILED = build(
    *started(2),
    *LOGS,
    failed(1),
    failed(0, time=1006.1),
    ev.RankExited(1006.2, 1, 2, 0, 0, code=3),
    ev.RankExited(1006.3, 1, 3, 0, 0, code=3),
    *ended(exits.USER_ERROR, nodes=2),
    nodes=(2, 2),
    sources={"<cell-3>": CELL},
)
CALL = Collective(417, "all_reduce", 946.0, False, ((1024,),), ("float32",))
INSIDE = (
    Frame("<cell>", 16, "<module>", "dist.all_reduce(loss)"),
    Frame("/site-packages/torch/distributed/distributed_c10d.py", 3252, "all_reduce", "work.wait()"),
)
HUNG = ev.Sampled(
    *(986.0, 0, 0, "quiet"),
    (
        RankSample(0, RUNS, 1, (Thread("main", INSIDE),), (Group("0", (0, 1), (CALL,)),)),
        RankSample(
            *(1, RUNS, 2, (Thread("main", (Frame("<cell>", 14, "<module>", "batch = next(loader)"),)),)),
            (Group("0", (0, 1), (replace(CALL, seq=416, done=True),)),),
        ),
    ),
)
STRAGGLER = [
    ev.Reported(1003.0 + n * pace, rank, 0, n, {"step": n})
    for rank, pace in enumerate((0.5, 0.5, 2.0, 0.5))
    for n in range(1 + int(6.5 / pace))
]
CASES = {
    "submitted": build(),
    "pending": build(started()[0], ev.Notice(1001.5, "waiting for 1 more node"), nodes=(2, 2)),
    "waiting": build(
        ev.Waiting(1001.0, "no host has enough cpu free", 0, "a", "Unschedulable", ev.Stage.PLACING),
        ev.Waiting(
            1001.0, f"its image can't be pulled: {HOSTILE}", 1, "b", "ErrImagePull", ev.Stage.STARTING
        ),
        nodes=(2, 2),
    ),
    "blocked": build(
        ev.Waiting(
            *(1001.0, "waits for stuck: hanging for 8 min, holds 2 of 2 places"), holder="stuck", stuck=True
        ),
    ),
    "evicted": build(
        ev.NodeStarted(1001.0, 0, "host-0", pod="a"),
        ev.NodeStarted(1001.0, 1, "host-1", pod="b"),
        ev.NodeDisrupted(1005.0, 1, "b", "EvictionByEvictionAPI"),
        ev.NodeOutput(1005.5, 1, "b", "Terminated"),
        ev.NodeExited(1006.0, 1, 143, 15, "b", "Error"),
        ev.NodeExited(1006.0, 0, 137, 9, "a", "OOMKilled"),
        ev.Verdict(1006.5, False, "PyTorchJobFailed"),
        ev.Closed(1007.5),
        nodes=(2, 2),
    ),
    "running": build(*started(), *LOGS, *reports(3, epochs=10), label="cell", ships="train, model (3.4 KiB)"),
    "reforming": build(
        *started(3), *reports(2), ev.NodeExited(1005.0, 2, signal=9), nodes=(1, 3), max_restarts=3
    ),
    "stalled": build(
        *started(since=890.0),
        *LOGS,
        *(
            ev.Reported(900.0 + n, rank, 0, n, {"step": n + 1, "steps": 9, "loss": 2 / (n + 1)})
            for rank in (0, 1)
            for n in range(3 + rank)
        ),
        created=890.0,
    ),
    "quiet": build(*started(since=800.0), created=790.0),
    "hanging": build(
        *started(since=860.0),
        *LOGS,
        HUNG,
        created=850.0,
        sources={"<cell>": ("Cell In[3]", "")},
        label="cell",
    ),
    "lost": build(
        *started(2),
        *(
            ev.Reported(1002.0 + n / 2, 2 * rank, 0, n, {"step": n, "loss": 2 - n / 9})
            for rank in (0, 1)
            for n in range(9)
        ),
        ev.NodeExited(1007.0, 1, signal=9),
        ev.WorkersStarted(1007.5, 0, 0, 1, (0, 1), 2),
        *(ev.Reported(1008.0 + n / 2, 0, 1, n, {"step": 6 + n, "loss": 1.4 - n / 9}) for n in range(4)),
        nodes=(1, 2),
    ),
    "straggler": build(*started(2), *LOGS, *STRAGGLER, nodes=(2, 2)),
    "succeeded": build(*started(), *LOGS, *reports(3), ev.ValueReady(1006.0, 0, 0, "value", 3500), *ended(0)),
    "failed": FAILED,
    "killed": build(*started(), *LOGS, ev.RankExited(1006.0, 0, 1, 0, 0, signal=9), *ended(exits.USER_ERROR)),
    "deadline": build(*started(), ev.DeadlineExceeded(1006.0, 5), *ended(signal=15)),
    "cancelled": build(*started(), *LOGS, ev.CancelRequested(1006.0), *ended(signal=15)),
    "restarted": build(*started(), failed(1), *started(round_=1, attempt=1), *LOGS, max_restarts=3),
    "retrying": job(*recoverable(1, 1000.0)),
    "unattended": job(*evicted(1, 900.0), created=900.0, backend="kubernetes", cluster=CLUSTER),
    "retried": job(*recoverable(1, 900.0), *evicted(2, 920.0), *begun(3, 980.0), created=900.0),
    "exhausted": job(
        *recoverable(1, 900.0),
        *recoverable(2, 920.0),
        ev.Closed(927.0),
        created=900.0,
        retry=Retry(retries=1),
    ),
    "hostile": build(
        ev.NodeStarted(1001.0, 0, HOSTILE, 1),
        ev.NodeStarted(1001.0, 1, HOSTILE, 1),
        ev.WorkersStarted(1002.0, 0, 0, 0, (0, 1), 2),
        log(0, HOSTILE.replace("\ud800", "") * 9),
        *(ev.Reported(1003.0 + n, 0, 0, n, {HOSTILE: n}) for n in range(2)),
        ev.Notice(1004.0, HOSTILE),
        failed(0, HOSTILE),
        *ended(exits.USER_ERROR, nodes=2),
        name=HOSTILE,
        backend=HOSTILE,
        label=HOSTILE,
        ships=HOSTILE,
        sources={"<cell-3>": (HOSTILE, f"\n\n{HOSTILE}")},
    ),
}


def crowd():
    """Return the state with the biggest card: every text from outside is long and hostile."""
    colours = "".join(f"\x1b[3{n % 8}m&<" for n in range(200))
    text = f"{colours}\n" * 60 + "🦦&" * 3000 + "\n"
    ranks = range(64)
    workers = [ev.WorkersStarted(1002.0, n, 0, 0, (2 * n, 2 * n + 1), 64) for n in range(32)]
    return build(
        *(ev.NodeStarted(1001.0, n, "&" * 500, n) for n in range(32)),
        *workers,
        *(log(rank, text) for rank in ranks),
        *(failed(rank, f"{rank}{'&🦦' * 4000}\n" * 3, 1006.0 + rank) for rank in ranks),
        *(ev.Reported(n, 0, 0, n, {"&" * 40 + f"{i}": n**1.5 + i for i in range(60)}) for n in range(300)),
        *(ev.Notice(n, f"{n}" + "&" * 5000) for n in range(9)),
        *ended(exits.USER_ERROR, nodes=32),
        name="&" * 500,
        nodes=(32, 32),
        ships="&" * 5000,
        label="&" * 5000,
    )


class Tags(HTMLParser):
    """A parser that collects what a card consists of, and checks that every tag is closed."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.styles, self.open = set(), set(), set(), []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        for rule in dict(attrs).get("style", "").split(";"):
            self.styles.add(tuple(rule.split(":")) if rule else None)
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", CASES)
def test_each_state_is_drawn_as_before(name):
    state = CASES[name]
    card = re.sub("<style>.*?</style>", "<style></style>", render.html(state, 1010.0, offers=OFFERS))
    drawn = f"{card}\n", f"{render.text(state, 1010.0)}\n"
    files = GOLDEN / f"{name}.html", GOLDEN / f"{name}.txt"
    if os.environ.get("GOLDEN") == "write":
        for file, text in zip(files, drawn, strict=True):
            file.write_text(text, encoding="utf-8")

    assert drawn == tuple(file.read_text(encoding="utf-8") for file in files)


def test_a_job_that_failed_can_be_retried_and_a_labs_turn_cannot():
    turn = replace(FAILED, info=replace(FAILED.info, name="lab#3", turn=(0, 1)))

    assert ["nbtorchjob:retry" in render.html(state, 1010.0, offers=OFFERS) for state in (FAILED, turn)] == [
        True,
        False,
    ]


@pytest.mark.parametrize("name", CASES)
def test_the_card_is_made_of_what_the_sanitiser_keeps(name):
    tags = Tags(render.html(CASES[name], 1010.0, expand_logs=True))
    kept = r"#[0-9a-f]{6}|rgba\((\d+,){3}0\.\d+\)|[a-z-]+|((\d+px|0) ?){1,4}|[\d.]+%?|bold|12px monospace"
    kept += r"|1 1 \d+px"
    border = rf"1px solid rgba\(128,128,128,0\.\d+\)|[23]px solid #[0-9a-f]{{6}}|{kept}"

    assert not tags.open
    assert tags.tags <= {
        *("div", "span", "b", "pre", "details", "summary", "progress", "img", "ul", "li"),
        *("table", "tr", "th", "td", "button", "a", "time"),
        "style",  # the sanitiser drops it: the layout's styles are inline
    }
    assert tags.attributes <= {"class", "style", "open", "max", "value", "src", "width", "height", "alt"} | {
        *("tabindex", "title", "cellpadding", "data-commandlinker-command", "data-commandlinker-args"),
        *("href", "target", "rel"),
    }
    for rule in tags.styles - {None}:
        assert re.fullmatch(border, rule[1]), rule


@pytest.mark.parametrize("name", CASES)
def test_a_card_of_the_same_facts_is_the_same_card(name):
    state = CASES[name]
    again = JobState(**{field: getattr(state, field) for field in state.__dataclass_fields__})

    assert render.html(again, 1010.0) == render.html(state, 1010.0)


def test_hostile_text_stays_text():
    card = render.html(CASES["hostile"], 1010.0, expand_logs=True)
    bare = re.sub(r'base64,[^"]*', "", card)

    assert "<script" not in bare
    assert "<img src=x" not in bare
    card.encode()
    for text in (card, render.text(CASES["hostile"], 0.0), render.last_line(CASES["hostile"], 0.0)):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e\ud800]", text)


def test_the_biggest_card_is_bounded():
    state = crowd()
    card, text = render.html(state, 2000.0, live=True), render.text(state, 2000.0, live=True)

    assert len(card.encode()) <= 48 * 1024
    assert len(text.encode()) <= 48 * 1024
    assert not Tags(card).open
    assert re.search("… and [56][0-9] more ranks", card)
    assert "… and 16 more nodes" in card
    assert "and 55 more" in card


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("submitted", "torchjob swift-otter submitted for 10 s · 1 node x 2 ranks"),
        ("running", "torchjob swift-otter running for 10 s · 1 node x 2 ranks · loss 0.6667"),
        ("succeeded", "torchjob swift-otter succeeded in 7.5 s · 1 node x 2 ranks · loss 0.6667"),
        (
            "failed",
            "torchjob swift-otter failed after 7.5 s · 2 nodes x 2 ranks",
        ),
        ("cancelled", "torchjob swift-otter cancelled after 7.5 s · 1 node x 2 ranks"),
        (
            "restarted",
            "torchjob swift-otter running for 10 s · 1 node x 2 ranks · restarts 1/3",
        ),
    ],
)
def test_the_last_line_tells_it_all(name, line):
    assert render.last_line(CASES[name], 1010.0) == line.replace(" x ", " \u00d7 ")


def test_a_crowded_card_leaves_out_the_strip_of_ranks():
    state = crowd()
    for rank in range(1, 64):
        for n in range(9):
            state = apply(state, ev.Reported(1003.0 + n, rank, 0, n, {"x": n}))
    card = render.html(state, 2000.0)

    assert len(card.encode()) <= 48 * 1024
    assert "<span title=" in render.html(CASES["straggler"], 1010.0)
    assert "<span title=" not in card
    assert "ranks 0-63 · 9 to 300 reports" in card


def opened(card):
    return re.findall(r"<details[^>]* open><summary>(?:<span[^>]*></span>)?(rank \d+)", card)


def test_the_last_line_of_a_job_between_two_attempts_says_what_comes():
    assert render.last_line(CASES["retrying"], 1010.0) == (
        "torchjob swift-otter retrying for 10 s · 2 nodes \u00d7 1 rank · failures 1/2 · preemptions 0/3 · "
        "attempt 2 starts in 6.0 s: rank 0: RecoverableError: the disk is away; uses failure 1 of 2"
    )


def test_a_running_job_shows_rank_0s_log_only():
    card = render.html(CASES["running"], 1010.0)

    assert opened(card) == ["rank 0"]
    assert re.search("</span>rank 1 · 1 line · <span[^>]*>rank 1 &lt;here&gt;</span></summary>", card)
    assert opened(render.html(CASES["running"], 1010.0, expand_logs=True)) == ["rank 0", "rank 1"]


def test_an_ended_job_opens_the_log_only_of_a_rank_that_died_without_a_word():
    assert opened(render.html(CASES["succeeded"], 1010.0)) == []
    assert opened(render.html(CASES["failed"], 1010.0)) == []
    assert opened(render.html(CASES["killed"], 1010.0)) == ["rank 1"]


def test_between_two_attempts_the_log_is_of_the_rank_that_failed():
    logs = [ev.LogChunk(rank, 0, 0, b"a line\n") for rank in (0, 1)]
    died = [ev.RankExited(1003.0, 1, 1, 0, 0, signal=9), *recoverable(1, 1000.0)]

    assert opened(render.html(job(*logs, *died), 1010.0)) == ["rank 1"]


def test_a_failure_is_told_once_with_the_cells_lines():
    traceback = log(1, "epoch 0\nValueError: no\n")
    card = render.html(apply(replace(FAILED, logs={}), traceback), 1010.0)

    assert " open><summary><b>rank 1: ValueError: no</b>" in card
    assert "rank 1 \u00b7 2 lines</summary>" in card


def test_what_ranks_left_is_told_with_how_to_have_it():
    def left(node, attempt):
        return ev.ArtifactsReady(1005.0, node, attempt, "ref", 1000, 2, 600_000)

    state = build(*started(), left(0, 1), left(1, 1))
    next_state = apply(state, left(0, 2))

    for draw in (render.html, render.text):
        assert "4 artifacts, 1.2 MB: %torchjob artifacts swift-otter" in draw(state, 1010.0)
        assert "2 artifacts of attempt 2, 600 kB: %torchjob artifacts swift-otter" in draw(next_state, 1010.0)
        assert "artifact" not in draw(build(*started()), 1010.0)


def test_a_cell_without_a_value_says_nothing_of_it():
    assert "alue: " not in render.html(CASES["succeeded"], 1010.0, value="None")
    assert "result ready" not in render.text(CASES["succeeded"], 1010.0, value="None")


def test_other_ranks_failures_are_drawn_together():
    card = render.html(FAILED, 1010.0)

    assert "<li>rank 0: ValueError: no</li><li>ranks 2-3: exited with code 3</li>" in card


def test_a_failure_that_the_ranks_were_restarted_after_is_told_while_they_run():
    assert "<li>before restart 1, rank 1: ValueError: no</li>" in render.html(CASES["restarted"], 1010.0)


def test_the_traceback_has_the_cells_lines_or_those_of_the_given_source():
    elsewhere = render.html(FAILED, 1010.0, source={"<cell-3>": ("Cell In[9]", "a\nb\nc")}.get)

    assert "Cell In[3], line 3" in render.html(FAILED, 1010.0)
    assert "Cell In[9], line 3\n      1 a\n      2 b\n" in elsewhere
    assert '<span class="nbt-line">----&gt; 3 c</span>' in elsewhere


def tiles(card):
    texts = re.findall(r'<span class="nbt-tile">(.*?</b>)', card)
    return [re.sub("<[^>]*>", "", text) for text in texts]


def test_progress_has_a_bar_and_the_time_left():
    card = render.html(CASES["running"], 1005.0)

    assert '<progress class="nbt-bar" max="10" value="3" ' in card
    assert tiles(card) == ["epoch 3 / 10", "left 7.0 s", "loss 0.6667", "speed 1.0 s per epoch"]


def test_a_card_says_when_it_was_drawn_and_what_can_be_done_until_the_job_has_ended():
    live, still = (render.html(CASES["running"], 1010.0, live=live) for live in (True, False))

    as_of = ">as of 1970-01-01 00:16:50</time><span> · "
    assert f"{as_of}interrupt the kernel to stop waiting for swift-otter, twice to cancel it" in live
    assert f"{as_of}%torchjob attach swift-otter to follow it · %torchjob cancel swift-otter" in still
    assert "as of 1970-01-01 00:16:50 · interrupt the kernel" in render.text(
        CASES["running"], 1010.0, live=True
    )
    assert "as of" not in render.html(CASES["succeeded"], 1010.0, live=True)


def test_a_lost_node_is_named_while_the_others_go_on():
    assert "node 2 (host-2) left; the other nodes are forming the next round" in render.html(
        CASES["reforming"], 1010.0
    )


def test_a_job_told_to_end_says_so():
    state = build(*started(), ev.CancelRequested(1004.0))

    assert ">Cancelling</b>" in render.html(state, 1010.0)
    assert render.last_line(state, 1010.0).startswith("torchjob swift-otter cancelling for 10 s")


def test_a_lost_job_says_why():
    state = build(*started(), ev.Lost(1004.0, "the job's folder is gone"))

    assert "the job's folder is gone" in render.text(state, 1010.0)


def test_a_node_that_cant_run_the_payload_says_why():
    wrong = Error(
        "nbtorchjob.runtime.store.payload.VersionMismatch", "Python 3.9 here, 3.11 there", time=1003.0
    )
    node = ev.NodeFailed(1003.0, 0, exits.CONFIG_ERROR, wrong)
    state = build(started()[0], node, *ended(exits.CONFIG_ERROR))

    why = "node 0 (host-0): the payload can't run on this node: Python 3.9 here, 3.11 there"
    text = render.text(state, 1010.0)

    assert why in text.splitlines()
    assert text.count("3.9") == render.html(state, 1010.0).count("3.9") == 1


def test_only_the_newest_lines_of_a_long_log_are_shown():
    many = build(*started(), log(0, "".join(f"line {n}\n" for n in range(100))))
    long = build(*started(), log(0, "x" * 1000))
    card = render.html(many, 1010.0)

    assert "rank 0 · last 30 lines of 100" in card
    assert "line 69\n" not in card
    assert "line 70\n" in card
    assert "x" * 399 + "…</pre>" in render.html(long, 1010.0)
    assert [x.strip() for x in render.text(many, 1010.0).splitlines() if "line 9" in x] == [
        f"line {n}" for n in range(90, 100)
    ]


def test_a_traceback_is_told_once_in_the_plain_text():
    wrote = "step 1\nTraceback (most recent call last):\n  File x\nValueError: no\n"
    text = render.text(job(*recoverable(1, 1000.0, log=wrote), ev.Closed(1007.0), retry=None), 1010.0)

    assert "  step 1" in text
    assert "Traceback" not in text
