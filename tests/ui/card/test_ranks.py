"""The ranks side by side, by their reports; each is judged by what is usual among them."""

import re

import pytest

from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.ui.card import ranks
from tests.ui.card.retried import begun, evicted, job


def running(many, round_=0):
    """Return a job of one node with ranks that started at 1000."""
    info = JobInfo("swift-otter", created=990.0, nproc_per_node=many)
    started = ev.WorkersStarted(1000.0, 0, 0, round_, tuple(range(many)), many)
    return all_of(JobState(info), ev.NodeStarted(995.0, 0, "here"), started)


def all_of(state, *facts):
    for fact in facts:
        state = apply(state, fact)
    return state


def steps(rank, many, pace=0.5, round_=0, **more):
    """Return a report for each step; the first comes at 1000."""
    return [ev.Reported(1000.0 + n * pace, rank, round_, n, {"step": float(n), **more}) for n in range(many)]


def together(many, *, but=()):
    """Return a job with 20 reported steps for each rank, except for the ranks' reports in ``but``."""
    but = dict(but)
    reports = [report for rank in range(many) for report in but.get(rank, steps(rank, 20))]
    return all_of(running(many), *reports)


def cells(state, now=1010.0):
    """Return the title and the text of each cell."""
    return re.findall('<span title="([^"]*)"[^>]*>(..?)</span>', ranks.html(state, now))


def test_ranks_that_go_on_together_have_a_cell_each_and_nothing_to_say():
    state = together(4)

    assert ranks.rank_lines(state, 1010.0) == [
        "ranks 0-3 · 20 steps · 0.5 s per step · last report 0.5 s ago"
    ]
    assert cells(state) == [
        (f"rank {rank} · 20 steps · 0.5 s per step · last report 0.5 s ago", "\u00a0\u00a0")
        for rank in range(4)
    ]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (together(2), "both ranks report at 0.5 s per step"),
        (together(4), "all 4 ranks report at 0.5 s per step"),
        (together(4, but={3: []}), "3 of 4 ranks report at 0.5 s per step"),
        (together(4, but={2: steps(2, 7, pace=1.5)}), "<b>rank 2 slow: 1.5 s per step, the others 0.5 s</b>"),
    ],
)
def test_what_stands_out_is_said_beside_the_strip_and_else_how_fast_they_are(state, text):
    assert f"</span> <span>{text}</span>" in ranks.html(state, 1010.0)


def test_a_straggler_is_named_and_marked():
    state = together(4, but={2: steps(2, 7, pace=1.5)})

    assert ranks.rank_lines(state, 1010.0)[1:] == ["rank 2 slow: 1.5 s per step, the others 0.5 s"]
    title, sign = cells(state)[2]
    assert (title.rpartition(" · ")[2], sign) == ("slow", "!")


def test_of_two_ranks_the_slower_is_the_straggler():
    state = together(2, but={0: steps(0, 7, pace=1.5)})

    assert ranks.rank_lines(state, 1010.0)[1:] == ["rank 0 slow: 1.5 s per step, the others 0.5 s"]


def test_a_rank_that_says_nothing_while_the_others_go_on_is_silent():
    state = together(3, but={1: steps(1, 5), 0: steps(0, 40), 2: steps(2, 40)})

    assert ranks.rank_lines(state, 1020.0)[1:] == ["rank 1 silent: no report for 18 s, after 5 steps"]
    assert [sign for _, sign in cells(state, 1020.0)] == ["\u00a0\u00a0", "…", "\u00a0\u00a0"]


def test_where_all_wait_for_one_it_is_the_one_that_is_behind():
    state = together(4, but={3: steps(3, 19)})

    assert ranks.rank_lines(state, 1060.0)[1:] == [
        "rank 3 behind: 19 steps, the others 20",
        "ranks 0-2 silent: no report for 50 s, after 20 steps",
    ]


def test_a_rank_that_came_late_is_behind_though_as_fast():
    late = [ev.Reported(e.time + 8.0, 1, 0, e.seq, e.metrics) for e in steps(1, 4)]
    state = together(3, but={1: late})

    assert ranks.rank_lines(state, 1010.0)[1:] == ["rank 1 behind: 4 steps, the others 20"]


def test_ranks_of_fast_steps_may_be_some_steps_apart():
    state = together(2, but={0: steps(0, 1000, pace=0.01), 1: steps(1, 940, pace=0.01)})

    assert len(ranks.rank_lines(state, 1010.0)) == 1


def test_slow_reports_are_no_silence():
    state = together(2, but={rank: steps(rank, 5, pace=30.0) for rank in (0, 1)})

    assert len(ranks.rank_lines(state, 1180.0)) == 1
    assert len(ranks.rank_lines(state, 1300.0)) == 2


def test_epochs_count_where_steps_begin_anew_and_reports_where_nothing_counts():
    def again(rank, name):
        counts = [{"step": float(n % 5), name: float(n // 5)} for n in range(20)]
        return [ev.Reported(1000.0 + n, rank, 0, n, count) for n, count in enumerate(counts)]

    epochs = together(2, but={rank: again(rank, "epoch") for rank in (0, 1)})
    reports = together(2, but={rank: again(rank, "loss") for rank in (0, 1)})

    assert "4 epochs" in ranks.rank_lines(epochs, 1020.0)[0]
    assert "20 reports · 1 s per report" in ranks.rank_lines(reports, 1020.0)[0]


def test_a_rank_that_failed_is_marked():
    state = all_of(together(2), ev.RankExited(1010.0, 0, 1, 0, 0, code=3))

    assert cells(state)[1][1] == "×"


def test_a_rank_without_a_report_in_this_round_says_so():
    state = all_of(together(2), ev.WorkersStarted(1011.0, 0, 1, 1, (0, 1), 2), *steps(0, 3, round_=1))

    assert cells(state, 1012.0)[1] == ("rank 1 · no report in this round", "\u00a0\u00a0")
    assert ranks.rank_lines(state, 1012.0)[0].endswith(" · 1 rank without a report")


def test_a_lost_node_is_lost_and_who_failed_of_that_hasnt_failed():
    """Node 1 is killed: rank 0's collective breaks, and rank 0 waits for the next round."""
    lost = Error("DistBackendError", "Connection closed by peer", time=1010.0)
    nodes = [ev.WorkersStarted(1000.0, node, 0, 0, (node,), 2) for node in (0, 1)]
    starts = [ev.NodeStarted(995.0, node, f"host-{node}") for node in (0, 1)]
    info = JobInfo("swift-otter", created=990.0, nodes=(1, 2))
    begun = all_of(JobState(info), *starts, *nodes, *steps(0, 20), *steps(1, 20))
    state = all_of(begun, ev.RankFailed(1010.0, 0, 0, 0, 0, lost), ev.NodeExited(1010.2, 1, signal=9))

    assert lost.lost_peer
    assert [sign for _, sign in cells(state)] == ["\u00a0\u00a0", "∅"]


def test_a_node_that_finished_isnt_called_silent():
    state = all_of(together(2), ev.NodeExited(1010.0, 0, 0))

    assert len(ranks.rank_lines(state, 1100.0)) == 1


@pytest.mark.parametrize(
    "state",
    [
        running(4),
        all_of(running(4), *steps(0, 20)),
        all_of(running(1), *steps(0, 20)),
        all_of(together(2), ev.NodeExited(1010.0, 0, 0), ev.Closed(1011.0)),
    ],
    ids=["no report", "rank 0 alone reports", "one rank", "succeeded"],
)
def test_there_is_no_strip_where_it_has_nothing_to_compare(state):
    assert ranks.rank_lines(state, 1010.0) == []
    assert ranks.html(state, 1010.0) == ranks.words(state, 1010.0) == ""


def test_of_a_thousand_ranks_a_cell_shows_the_worst_of_its_group():
    state = together(1000, but={700: steps(700, 7, pace=1.5)})
    pairs = cells(state)

    assert len(pairs) <= 64
    assert len(ranks.html(state, 1010.0).encode()) < 13_000
    (odd,) = [title for title, sign in pairs if sign == "!"]
    assert re.match(r"ranks 688-703 · 7 to 20 steps · 0\.5 s to 1\.5 s per step · .* · slow$", odd)
    assert ranks.rank_lines(state, 1010.0)[1:] == ["rank 700 slow: 1.5 s per step, the others 0.5 s"]


def test_numbers_that_are_none_are_drawn_too():
    for odd in (float("nan"), float("inf"), -float("inf"), 10**400):
        weird = [ev.Reported(1000.0, rank, 0, 0, {"step": odd}) for rank in (0, 1)]

        assert ranks.html(all_of(running(2), *weird), 1010.0)


def two_nodes(*facts):
    state = JobState(JobInfo("swift-otter", nodes=(2, 2), nproc_per_node=2))
    for node in (0, 1):
        ranks = (2 * node, 2 * node + 1)
        state = apply(state, ev.NodeStarted(1.0, node, f"host-{node}"))
        state = apply(state, ev.WorkersStarted(2.0, node, 0, 0, ranks, 4))
    for fact in facts:
        state = apply(state, fact)
    return state


def test_a_rank_that_has_just_started_again_is_not_behind():
    again = ev.WorkersStarted(1020.0, 0, 1, 1, (0, 1), 2)
    ahead = [ev.Reported(1021.0 + n / 2, 0, 1, n, {"step": 40.0 + n}) for n in range(8)]
    first, second = (ev.Reported(1024.0 + n / 2, 1, 1, n, {"step": 9.0 + n}) for n in range(2))
    state = all_of(together(2), again, *ahead, first)

    assert ranks.rank_lines(state, 1025.0) == [
        "ranks 0-1 · 10 to 48 steps · 0.5 s per step · last report 0.5 s to 1.0 s ago"
    ]
    assert ranks.rank_lines(all_of(state, second), 1025.5)[1:] == ["rank 1 behind: 11 steps, the others 48"]


def test_a_node_has_its_host_ranks_state_restarts_and_last_line():
    logs = [ev.LogChunk(1, 0, 0, b"one\n"), ev.LogChunk(3, 0, 0, b"\x1b[31mtwo\x1b[0m\nthree\n\n")]

    assert ranks.rows(two_nodes(*logs)) == [
        ("node", "host", "ranks", "state", "restarts", "last line"),
        ("0", "host-0", "0-1", "running", "0", "one"),
        ("1", "host-1", "2-3", "running", "0", "three"),
    ]


def test_the_ranks_of_a_node_that_the_job_went_on_without_are_others_now():
    state = two_nodes(ev.NodeExited(3.0, 1, 1), ev.WorkersStarted(4.0, 0, 0, 1, (0, 1), 2))

    assert [row[2] for row in ranks.rows(state)[1:]] == ["0-1", "was 2-3"]


def test_where_no_rank_wrote_anything_the_pods_last_line_is_shown():
    output = [ev.NodeOutput(float(n), 1, "", text) for n, text in enumerate(("Traceback", "no module"))]

    assert ranks.rows(two_nodes(*output))[2][-1] == "no module"


def test_each_new_pod_of_a_node_is_a_restart():
    state = job(*evicted(1, 1000.0), *evicted(2, 1020.0), *begun(3, 1040.0))

    assert [row[4] for row in ranks.rows(state)[1:]] == ["2", "2"]


def test_the_table_has_a_row_for_each_of_16_nodes_and_counts_the_rest():
    started = [ev.NodeStarted(1.0, node, "here") for node in range(40)]
    state = two_nodes(*started)

    assert len(ranks.rows(state)) == 17
    assert ranks.more(state) == "… and 24 more nodes"


@pytest.mark.parametrize(
    ("now", "rest"), [(1012.0, "60 more nodes · as usual"), (1060.0, "60 more nodes · 60 silent")]
)
def test_of_many_nodes_ten_have_a_row_and_the_rest_is_counted_by_what_is_odd(now, rest):
    state = JobState(JobInfo("wide", created=990.0, nodes=(70, 70)))
    for node in range(70):
        started = ev.NodeStarted(995.0, node, "here"), ev.WorkersStarted(999.0, node, 0, 0, (node,), 70)
        state = all_of(state, *started, *steps(node, 3 if node == 40 else 20))

    assert rest in ranks.html(state, now)
