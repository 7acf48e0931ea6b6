"""What a job that comes to run is doing, and how long each step took."""

from functools import reduce

import pytest

from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state import events as ev
from nbtorchjob.state.text import facts, startup

NODES = [ev.NodeStarted(2.0, node, f"host-{node}") for node in (0, 1)]
MET = [ev.NodeMeets(5.0 + node, node) for node in (0, 1)]
WORKERS = [ev.WorkersStarted(7.5, node, 0, 0, (node,), 2) for node in (0, 1)]
TWO = "installing 2 packages (a 1, b 2)"
BEGAN = [ev.RankBegan(8.0 + rank, rank, 0) for rank in (0, 1)]


def job(*known, fewest=2):
    return reduce(apply, known, JobState(JobInfo("job", created=1.0, nodes=(fewest, 2))))


@pytest.mark.parametrize(
    ("known", "doing"),
    [
        ([], "importing torch"),
        (NODES, "importing torch on 2 of 2 nodes"),
        ([*NODES, MET[0]], "importing torch on 1 of 2 nodes"),
        ([*NODES, ev.Installing(3.0, 0)], "choosing packages on 1 of 2 nodes"),
        ([*NODES, *(ev.Installing(3.0, n, ("a 1", "b 2")) for n in (0, 1))], f"{TWO} on 2 of 2 nodes"),
        ([NODES[0], ev.Installing(3.0, 0, tuple("abcd"))], "installing 4 packages (a, b, c and others)"),
        ([NODES[0], MET[0]], "meeting: 1 of 2 nodes are there"),
        ([*NODES, *MET], "meeting: 2 of 2 nodes are there"),
        ([*NODES, *MET, *WORKERS, BEGAN[0]], "starting ranks: 1 of 2 run"),
        ([*NODES, *MET, *WORKERS, *BEGAN], ""),
        ([*NODES, *WORKERS], ""),
    ],
)
def test_until_the_call_runs_it_is_said_what_the_nodes_do(known, doing):
    assert startup.doing(job(*known)) == doing


def test_each_step_says_how_long_it_took():
    assert startup.steps(job(*NODES, *MET, *WORKERS, *BEGAN)) == [
        ("submitting, and waiting for nodes", "1.0 s"),
        ("importing torch", "4.0 s"),
        ("meeting", "1.5 s"),
        ("starting ranks", "1.5 s"),
    ]


def test_the_first_step_says_how_big_the_payload_is():
    info = JobInfo("job", created=1.0, nodes=(2, 2), began=0.5, packed=1.75, payload=12_000_000)

    assert startup.steps(reduce(apply, NODES, JobState(info))) == [
        ("packing 12 MB", "1.2 s"),
        ("submitting, and waiting for nodes", "0.2 s"),
    ]


def test_what_a_node_says_of_its_packages_is_shown_as_text_alone():
    forged = "\ud800\x1b[2J" + "x" * 99
    installs = job(ev.NodeStarted(2.0, 0, "host"), ev.Installing(3.0, 0, (forged,)))
    installed = job(ev.Installed(9.0, 0, ("peft",), forged, 1.0))

    assert startup.doing(installs).isprintable()
    assert all(what.isprintable() for what, _ in startup.steps(installed))


def test_on_a_cluster_nothing_is_known_before_there_are_nodes():
    cluster = {"context": "", "namespace": "ml", "kind": "indexedjob"}

    assert startup.doing(JobState(JobInfo("job", backend="kubernetes", cluster=cluster))) == ""


def test_while_the_others_form_the_next_round_a_node_isnt_said_to_run():
    state = job(*NODES, *WORKERS, ev.NodeExited(9.0, 1, signal=9), fewest=1)

    assert facts.condition(state.nodes[0], state) == "forming the next round"
