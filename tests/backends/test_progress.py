"""The few lines that a list keeps of all that a job's ranks report."""

import json
import math
import random
from functools import reduce
from itertools import pairwise

import pytest

from nbtorchjob.backends.progress import NODES, Telling, lasting
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts.factlines import read
from nbtorchjob.state.progress import progress


def used(seq, *, node=0, round_=0):
    return json.dumps({"event": "Used", "node": node, "round": round_, "seq": seq}).encode()


def kept(telling):
    return [(fact["node"], fact["round"], fact["seq"]) for fact in map(json.loads, telling.lines)]


def test_what_nodes_use_is_thinned_evenly_and_the_newest_is_kept():
    telling = Telling()
    telling.sift(used(seq) for seq in range(10_000))

    seqs = sorted({seq for _, _, seq in kept(telling)})
    steps = {later - earlier for earlier, later in pairwise(seqs[:-1])}
    assert (seqs[0], seqs[-1], len(steps)) == (0, 9_999, 1)
    assert 16 <= len(seqs) <= 33


def test_a_ranks_newest_reports_are_kept_to_tell_its_pace():
    def reported(seq, time):
        record = {"event": "Reported", "time": time, "rank": 0, "round": 0, "seq": seq}
        return json.dumps({**record, "metrics": {"step": seq, "steps": 9_999}}).encode()

    telling = Telling()
    telling.sift([reported(seq, seq * 0.1) for seq in range(5_000)])
    telling.sift([reported(5_000 + seq, 510.0 + seq) for seq in range(20)])

    headway = progress(reduce(apply, read(telling.lines), JobState(JobInfo("job"))))
    assert headway is not None
    assert headway.pace == 1.0


def test_of_a_few_nodes_the_newest_round_is_kept():
    telling = Telling()
    lines = [*(used(0, node=node) for node in range(NODES + 3)), used(0, round_=1), b'{"event": "Used"']
    assert telling.sift(lines) == []

    assert {fact[:2] for fact in kept(telling)} == {(0, 1), *((node, 0) for node in range(1, NODES))}


def test_of_newest_reports_those_are_left_out_whose_metrics_all_came_again():
    def reported(seq, round_=0, **metrics):
        record = {"event": "Reported", "time": 1.0, "rank": 0, "round": round_, "seq": seq}
        return json.dumps({**record, "metrics": metrics}).encode()

    telling = Telling()
    lines = [
        reported(1, loss=9, accuracy=1),
        reported(2, loss=8),
        b'{"event": "Reported", "rank": 0, "half',
        reported(3, round_=1, loss=7),
        reported(4, loss=math.nan),
        reported(5, loss=5),
    ]
    telling.sift([reported(0, loss=10), *lines])
    assert telling.newest(0) == [lines[0], lines[2], lines[3], lines[5]]

    telling = Telling()
    telling.sift([reported(seq, **{"Güte": seq, '"quoted"': 1}) for seq in range(1, 5)])
    assert telling.newest(0) == [reported(4, **{"Güte": 4, '"quoted"': 1})]


@pytest.mark.parametrize("before", [0, 10_000])
def test_a_first_report_that_counts_from_zero_comes_before_the_newest(before):
    def reported(seq, round_=0, **metrics):
        record = {"event": "Reported", "time": 1.0, "rank": 0, "round": round_, "seq": seq}
        return json.dumps({**record, "metrics": metrics}).encode()

    telling = Telling()
    lines = [reported(0, step=0), *(reported(seq, step=seq) for seq in range(1, 9)), reported(0, 1, step=5)]
    telling.sift([*(used(seq) for seq in range(before)), *lines])

    assert telling.newest(0) == [lines[0], reported(8, step=8), lines[-1]]  # the newest round has one report


def test_newest_reports_are_the_same_however_many_lines_came_before():
    def reported(rank, seq, **metrics):
        record = {"event": "Reported", "time": 1.0, "rank": rank, "round": 0, "seq": seq}
        return json.dumps({**record, "metrics": metrics}).encode()

    lines = [reported(seq % 3, seq // 3, **{f"m{seq % 5}": seq}) for seq in range(90)]
    few, many = Telling(), Telling()
    few.sift(lines)
    many.sift([*(used(seq) for seq in range(10_000)), *lines])

    for rank in range(4):
        assert few.newest(rank) == many.newest(rank)
    assert [json.loads(line)["seq"] for line in few.newest(1)] == [25, 26, 27, 28, 29]


@pytest.mark.parametrize(("ranks", "many"), [(2, 1500), (520, 40)])
def test_a_state_is_the_same_without_the_reports_of_which_nothing_stays(ranks, many):
    lines = []
    for rank in range(ranks):
        for round_ in range(1 + rank % 2):
            for seq in range(many):
                record = {"event": "Reported", "time": 1.0 + seq, "rank": rank, "round": round_, "seq": seq}
                metrics = {"val_loss": seq} if seq % 30 == 7 else {"loss": 1 / (seq + 1), "step": seq}
                lines.append(json.dumps({**record, "metrics": metrics}).encode())
    odd = b'{"event": "Reported", "time": 1.0, "rank": 1, "round": 0, "seq": 1, "metrics": {"loss": "?"}}'
    lines += [odd, *lines[:7], b'{"event": "Reported", "rank": 1', b'{"event": "Closed", "time": 9.0}']
    random.Random(ranks).shuffle(lines)
    few = lasting(lines)

    assert len(few) < len(lines)
    states = [reduce(apply, read(some), JobState(JobInfo("wide"))) for some in (lines, few)]
    assert states[0] == states[1]
    assert len(states[1].refused) == 1
