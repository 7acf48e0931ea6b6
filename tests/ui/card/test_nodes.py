"""The table of nodes."""

from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state import events as ev
from nbtorchjob.ui.card import nodes
from tests.ui.card.retried import begun, evicted, job


def two_nodes(*facts):
    state = JobState(JobInfo("swift-otter", nodes=(2, 2), nproc_per_node=2))
    for node in (0, 1):
        ranks = (2 * node, 2 * node + 1)
        state = apply(state, ev.NodeStarted(1.0, node, f"host-{node}"))
        state = apply(state, ev.WorkersStarted(2.0, node, 0, 0, ranks, 4))
    for fact in facts:
        state = apply(state, fact)
    return state


def test_a_node_has_its_host_ranks_state_restarts_and_last_line():
    logs = [ev.LogChunk(1, 0, 0, b"one\n"), ev.LogChunk(3, 0, 0, b"\x1b[31mtwo\x1b[0m\nthree\n\n")]

    assert nodes.rows(two_nodes(*logs)) == [
        ("node", "host", "ranks", "state", "restarts", "last line"),
        ("0", "host-0", "0-1", "running", "0", "one"),
        ("1", "host-1", "2-3", "running", "0", "three"),
    ]


def test_the_ranks_of_a_node_that_the_job_went_on_without_are_others_now():
    state = two_nodes(ev.NodeExited(3.0, 1, 1), ev.WorkersStarted(4.0, 0, 0, 1, (0, 1), 2))

    assert [row[2] for row in nodes.rows(state)[1:]] == ["0-1", "was 2-3"]


def test_where_no_rank_wrote_anything_the_pods_last_line_is_shown():
    output = [ev.NodeOutput(float(n), 1, "", text) for n, text in enumerate(("Traceback", "no module"))]

    assert nodes.rows(two_nodes(*output))[2][-1] == "no module"


def test_each_new_pod_of_a_node_is_a_restart():
    state = job(*evicted(1, 1000.0), *evicted(2, 1020.0), *begun(3, 1040.0))

    assert [row[4] for row in nodes.rows(state)[1:]] == ["2", "2"]


def test_the_table_has_a_row_for_each_of_16_nodes_and_counts_the_rest():
    started = [ev.NodeStarted(1.0, node, "here") for node in range(40)]
    state = two_nodes(*started)

    assert len(nodes.rows(state)) == 17
    assert nodes.more(state) == "… and 24 more nodes"
