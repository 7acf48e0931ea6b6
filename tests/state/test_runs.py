"""The runs of a group: their table, their curves, and the ones that stop early."""

import math
import random
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtorchjob.spec.grid import Early
from nbtorchjob.state import JobInfo, JobState, apply, runs
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.runs import Judge
from tests.ui.card.retried import begun, recoverable


def test_no_column_hides_another_one_of_its_name():
    info = JobInfo("sweep-r7", group="sweep", number=7, given={"lr": 0.1, "run": 3})
    facts: list[ev.Event] = [
        ev.WorkersStarted(0.0, 0, 0, 0, (0,), 1),
        ev.Reported(1.0, 0, 0, 0, {"lr": 0.05, "loss": 2.0, "value": 1.0}),
    ]

    row = runs.row(reduce(apply, facts, JobState(info)), 2.0, "mine")

    assert (row["run"], row["params.run"]) == (7, 3)
    assert (row["lr"], row["metrics.lr"], row["loss"]) == (0.1, 0.05, 2.0)
    assert (row["value"], row["metrics.value"]) == ("mine", 1.0)


def test_how_long_a_run_took_counts_all_its_attempts():
    info = JobInfo("sweep-r1", created=1000.0, group="sweep", number=1)
    state = reduce(apply, [*recoverable(1, 1100.0), *begun(2, 1200.0), ev.Closed(1300.0)], JobState(info))

    assert runs.row(state, 2000.0, None)["seconds"] == 199.0  # from the first node's start
    assert runs.row(JobState(info), 2000.0, None)["seconds"] is None


@pytest.mark.parametrize(
    ("every", "along", "xs"),
    [
        ([{"epoch": n // 2, "step": n} for n in range(4)], "step", [0, 1, 2, 3]),
        ([{"epoch": n // 2, "step": n % 2} for n in range(4)], "report", [0, 1, 2, 3]),
        ([{"epoch": 1 + n} for n in range(3)], "epoch", [1, 2, 3]),
        ([{}, {"epoch": 1}], "report", [0, 1]),
        ([{"step": 10**400}, {"step": 1}], "report", [0, 1]),
    ],
)
def test_curves_are_over_the_finest_count_that_grows(every, along, xs):
    run = reported(1, [{"loss": 10**400, **counts} for counts in every])

    assert runs.curves([run], "loss") == (along, {run.info.id: [(x, math.inf) for x in xs]})
    assert runs.curves([run, reported(2, [{"loss": 1.0}])], "loss")[0] == "report"
    assert runs.curves([run], "size")[1] == {}


def reported(number, reports, *more, begins=0.0):
    """Return a run that goes on, with these reports, one a second."""
    facts = [
        ev.NodeStarted(begins, 0, "host", 10),
        ev.WorkersStarted(begins, 0, 0, 0, (0,), 1),
        *(ev.Reported(begins + at, 0, 0, at, metrics) for at, metrics in enumerate(reports)),
        *more,
    ]
    return reduce(apply, facts, JobState(JobInfo(f"g-r{number}", group="g", number=number)))


def losses(number, values, *more, first=0, begins=0.0):
    return reported(
        number, [{"epoch": at, "loss": value} for at, value in enumerate(values, first)], *more, begins=begins
    )


def stops(early, *states):
    return Judge(early).stops(states)


ENDED = (ev.NodeExited(90.0, 0, code=0), ev.Closed(91.0))


def test_a_run_is_measured_by_what_others_had_reported_when_they_were_as_far():
    early = Early(stop_when="loss > 2 * best_loss")
    done = losses(1, [8.0, 4.0, 2.0, 1.0], *ENDED)

    assert stops(early, done, losses(2, [9.0])) == {}  # the best loss after one epoch was 8
    assert stops(early, done, losses(2, [9.0, 8.5]), losses(3, [9.0, 7.5])) == {
        "g-r2": "loss > 2 * best_loss (loss=8.5, best_loss=4)"
    }
    assert stops(early, losses(1, [8.0]), losses(2, [9.0, 17.0])) == {
        "g-r2": "loss > 2 * best_loss (loss=17, best_loss=8)"
    }


def test_who_counts_nothing_is_as_far_as_it_has_reports():
    early = Early(stop_when="acc < median_acc / 2 or acc < best_acc / 4", largest=("acc",))
    runs = [reported(n, [{"acc": 0.1}, {"acc": last}]) for n, last in enumerate([0.5, 0.4, 0.19, 0.3], 1)]

    assert stops(early, *runs) == {}
    assert [*stops(early, *runs, reported(5, [{"acc": 0.1}, {"acc": 0.1}]))] == ["g-r5"]
    assert stops(early, *runs, reported(5, [{"acc": 0.1}])) == {}


@pytest.mark.parametrize("early", [{"stop_when": "loss > 2 * best_loss"}, {"halve": "loss"}])
def test_a_run_that_counts_nothing_yet_makes_no_other_one_seem_further(early):
    early = Early(**early, at_least=5)
    slow = reported(1, [{"epoch": 0, "loss": 9.0}] * 8, begins=9.0)
    done = reported(2, [{"epoch": 0, "loss": 1.0}] * 8, *ENDED)
    late = reported(3, [{"params": 1e8}] * 8)

    judge = Judge(early)

    assert judge.stops([slow, done, late]) == {}
    late = reported(3, [{"params": 1e8}, {"epoch": 0, "loss": 1.0}])
    assert judge.stops([slow, done, late]) == {}
    slow = losses(1, [9.0] * 5, begins=9.0)
    done = losses(2, [1.0] * 5, *ENDED)
    assert [*judge.stops([slow, done, late])] == ["g-r1"]


def test_what_counted_before_a_restart_counts_until_the_first_report_that_does():
    again = [ev.WorkersStarted(60.0, 0, 1, 1, (0,), 1), ev.Reported(61.0, 0, 1, 0, {"params": 1e8})]
    runs = [reported(int(n), [{"epoch": 0, "loss": n}] * 8, *again, begins=n) for n in (1.0, 2.0)]

    assert stops(Early(halve="loss", at_least=5), *runs) == {}


def test_epochs_count_where_the_steps_of_one_run_begin_anew():
    early = Early(stop_when="loss > 2 * best_loss", at_least=2)
    batches = [{"step": step, "loss": 1.0} for step in (0, 1)]
    further = reported(1, [*batches, {"epoch": 0}, *batches, {"epoch": 1}, {"step": 0, "loss": 1.0}])
    behind = reported(2, [{"step": step, "loss": 9.0} for step in range(4)])

    assert stops(early, further, behind) == {}


def test_arrivals_by_one_count_are_none_by_another():
    judge = Judge(Early(halve="loss", at_least=2))
    counts_nothing = [reported(n, [{"loss": loss}] * 3, begins=n) for n, loss in ((1, 9.0), (2, 1.0))]
    assert judge.stops(counts_nothing) == {}

    counts = [
        reported(n, [{"loss": loss}] * 3 + [{"step": s, "loss": 5.0 + n} for s in range(2)], begins=n)
        for n, loss in ((1, 9.0), (2, 1.0))
    ]

    assert [*judge.stops(counts)] == ["g-r2"]


@pytest.mark.parametrize("early", [{"stop_when": "val_loss > 2 * best_val_loss"}, {"halve": "val_loss"}])
def test_what_is_reported_without_a_count_is_as_far_as_the_newest_one(early):
    def train(number, loss, *more):
        reports = []
        for epoch in range(2):
            reports += [{"step": 10 * epoch + batch, "loss": loss} for batch in range(10)]
            reports.append({"epoch": epoch, "val_loss": loss})
        return reported(number, [{"val_loss": 0.0}, *reports], *more, begins=number)

    assert [*stops(Early(**early, at_least=5), train(1, 1.0, *ENDED), train(2, 100.0))] == ["g-r2"]


def test_a_rare_metric_of_a_long_run_is_known_where_a_slower_one_is():
    def train(number, many, loss):
        reports = [{"val_loss": loss} if n % 2 else {"step": n, "loss": loss} for n in range(many)]
        return reported(number, reports)

    early = Early(stop_when="val_loss > 2 * best_val_loss")

    assert [*stops(early, train(1, 1400, 1.0), train(2, 700, 100.0))] == ["g-r2"]


def test_only_what_runs_is_stopped_and_once():
    early = Early(stop_when="loss > 1")
    values = [2.0, 2.0]

    assert [*stops(early, losses(1, values))] == ["g-r1"]
    assert stops(early, losses(1, values, *ENDED)) == {}
    assert stops(early, losses(1, values, ev.CancelRequested(50.0))) == {}
    stop = ev.RankStops(50.0, 0, 0, 0, 7, "train", "<cell>", ev.BREAKPOINT)
    assert stops(early, losses(1, values, stop)) == {}  # a user is debugging it
    assert stops(Early(stop_when="loss > 1", at_least=3), losses(1, values)) == {}
    assert [*stops(Early(stop_when="loss > 1", at_least=2), losses(1, [0.0, 2.0]))] == ["g-r1"]
    assert stops(Early(stop_when="acc < 1"), losses(1, values), reported(2, [])) == {}


def test_what_nobody_reports_is_told_once_a_run_is_through():
    judge = Judge(Early(stop_when="los > 2 * best_loss", halve="loss", by="epochs"))

    assert judge.unheard([losses(1, [1.0])]) is None
    assert (
        judge.unheard([losses(1, [1.0]), losses(2, [1.0], *ENDED)]) == "epochs, los: they report epoch, loss"
    )
    assert Judge(Early(halve="loss")).unheard([losses(1, [1.0], *ENDED)]) == ""
    assert judge.unheard([reported(1, [], *ENDED), reported(2, [])]) is None
    assert judge.unheard([reported(1, [], *ENDED)]) == "epochs, los, loss: they report nothing"


def test_a_rung_is_judged_by_who_was_there_and_waits_for_nobody():
    early = Early(halve="loss", by="epoch", factor=3)
    first = losses(1, [5.0, 5.0], begins=0.0)
    worse = losses(2, [6.0], begins=1.0)
    better = losses(3, [1.0], begins=2.0)
    late = losses(4, [3.0], begins=3.0)

    assert stops(early, first) == {}
    assert stops(early, first, worse, better, late) == {
        "g-r2": "loss=6 after 1 epoch was number 2 of 2",
        "g-r4": "loss=3 after 1 epoch was number 2 of 4",
    }
    many = [losses(n, [float(n)] * 2, begins=-n) for n in range(10, 16)]  # the worst begins first
    assert stops(early, *many) == {}
    assert [*stops(early, *many, losses(1, [11.5], begins=0), losses(2, [10.5], begins=1))] == ["g-r1"]


def test_the_next_rung_is_factor_times_as_far():
    early = Early(halve="loss", by="epoch", factor=2, at_least=2)
    leader = losses(1, [1.0] * 8, begins=0.0)

    assert stops(early, leader, losses(2, [9.0], begins=20.0)) == {}
    assert stops(early, leader, losses(2, [9.0, 0.5, 2.0], begins=20.0)) == {}
    assert stops(early, leader, losses(2, [9.0, 0.5, 2.0, 1.5], begins=20.0)) == {
        "g-r2": "loss=1.5 after 4 epochs was number 2 of 2"
    }


def test_what_is_not_finite_never_goes_on_and_what_is_through_does():
    early = Early(halve="loss", by="epoch", factor=2)

    assert stops(early, losses(1, [float("nan")] * 2)) == {"g-r1": "loss=nan after 1 epoch was not finite"}
    ends = [{"epoch": at, "epochs": 2, "loss": 9.0} for at in (1, 2)]
    assert stops(early, losses(1, [1.0, 1.0], *ENDED, first=1), reported(2, ends[1:], begins=50.0)) == {
        "g-r2": "loss=9 after 1 epoch was number 2 of 2"
    }
    well = [{"epoch": 1, "epochs": 2, "loss": 0.5}, ends[1]]
    assert stops(early, losses(1, [1.0, 1.0], *ENDED, first=1), reported(2, well, begins=50.0)) == {}


def test_the_largest_goes_on_where_that_is_best():
    early = Early(halve="acc", by="step", largest=("acc",), factor=2)
    runs = [
        reported(n, [{"step": step, "acc": acc} for step in (1, 2)], begins=n)
        for n, acc in enumerate([0.5, 0.4, 0.9], 1)
    ]

    assert [*stops(early, *runs)] == ["g-r2"]


@pytest.mark.parametrize("first", [0, 1])
def test_an_epoch_that_each_of_its_steps_tells_is_done_once_the_next_begins(first):
    def train(number, values, *more):
        reports = [{"epoch": step // 10 + first, "loss": value} for step, value in enumerate(values)]
        return reported(number, reports, *more, begins=number / 10)

    early = Early(halve="loss", by="epoch", factor=2)
    usual, warms_up = train(1, [2.0] * 25), [*[3.0] * 5, *[1.0] * 5, *[4.0] * 15]

    assert stops(early, usual, train(2, warms_up[:1])) == {}
    assert stops(early, usual, train(2, warms_up[:10])) == {}
    assert stops(early, usual, train(2, warms_up[:15])) == {}  # its loss after the first epoch is 1.0
    assert stops(early, usual, train(2, warms_up)) == {
        "g-r2": "loss=4 after 2 epochs was number 2 of 2",
    }
    through = train(1, [2.0] * 20, *ENDED)
    assert [*stops(early, through, train(2, warms_up))] == ["g-r2"]

    at_least = Early(stop_when="loss > 2 * best_loss", by="epoch", at_least=2)
    assert stops(at_least, usual, train(2, [9.0] * 20)) == {}
    assert [*stops(at_least, usual, train(2, [9.0] * 21))] == ["g-r2"]


def test_a_metric_that_comes_at_an_epochs_end_is_judged_with_that_epoch():
    def train(number, *losses):
        reports = []
        for epoch, loss in enumerate(losses, 1):
            reports += [*[{"epoch": epoch, "loss": 1.0}] * 9, {"epoch": epoch, "val_loss": loss}]
        return reported(number, [*reports, {"epoch": len(losses) + 1, "loss": 1.0}], begins=number)

    early = Early(halve="val_loss", by="epoch", at_least=3)

    assert stops(early, train(1, 0.9, 0.5, 0.5), train(2, 0.9, 0.6, 0.1)) == {}
    assert stops(early, train(1, 0.9, 0.5, 0.5), train(2, 0.9, 0.1, 0.6)) == {
        "g-r2": "val_loss=0.6 after 3 epochs was number 2 of 2"
    }


def test_nothing_is_judged_until_it_is_known_whether_reports_come_at_an_epochs_end():
    early = Early(halve="loss", by="epoch")
    good, bad = losses(1, [1.0]), losses(2, [9.0], begins=1.0)

    assert stops(early, good, bad) == {}
    assert [*stops(early, losses(1, [1.0], *ENDED), bad)] == ["g-r2"]
    assert [*stops(early, losses(1, [1.0, 1.0]), bad)] == ["g-r2"]


def test_a_long_run_is_judged_by_what_was_seen_first():
    early = Early(halve="loss", by="epoch", factor=3, at_least=3)
    begun, other = losses(1, [9.0, 9.0, 1.0], first=1), losses(2, [2.0] * 3, first=1, begins=50.0)
    judge = Judge(early)
    assert [*judge.stops([begun, other])] == ["g-r2"]

    gone_on = losses(1, [9.0, 9.0, 1.0, *[5.0] * 2000], first=1, begins=0.0)

    assert [*judge.stops([gone_on, other])] == ["g-r2"]


def test_a_run_that_counts_from_zero_still_does_after_many_restarts():
    early = Early(stop_when="loss > 2", by="epoch", at_least=13)
    again: list[ev.Event] = []
    for round_ in range(1, 12):  # each goes on from a checkpoint after the epoch before
        again.append(ev.WorkersStarted(90.0 * round_, 0, round_, round_, (0,), 1))
        again += [
            ev.Reported(90.0 * round_ + epoch, 0, round_, n, {"epoch": epoch, "loss": 9.0})
            for n, epoch in enumerate((round_, round_ + 1))
        ]

    assert [*stops(early, losses(1, [9.0, 9.0], *again))] == ["g-r1"]
    assert stops(early, losses(1, [9.0, 9.0], *again[:-1])) == {}


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.floats(0, 9) | st.just(math.nan), max_size=6), max_size=6),
    st.integers(2, 4),
    st.randoms(use_true_random=False),
)
def test_any_order_of_runs_gives_the_same_and_the_best_is_never_halved(curves, factor, chance: random.Random):
    early = Early(halve="loss", factor=factor, stop_when="loss > 3 * best_loss and loss > median_loss")
    states = [losses(n, values, begins=n / 100) for n, values in enumerate(curves, 1)]
    shuffled = chance.sample(states, len(states))

    reasons = stops(early, *states)

    assert stops(early, *shuffled) == reasons
    always = [n for n, values in enumerate(curves, 1) if values and all(value == 0 for value in values)]
    assert not {f"g-r{n}" for n in always} & reasons.keys()


@pytest.mark.parametrize("begins", [0.0, 5.0])
def test_what_was_reported_before_a_restart_counts(begins):
    again = [ev.WorkersStarted(60.0, 0, 1, 1, (0,), 1), ev.Reported(61.0, 0, 1, 0, {"epoch": 0, "loss": 8.0})]
    early = Early(stop_when="loss >= 2 * best_loss")

    run = losses(1, [8.0, 4.0], *again, begins=begins)

    assert [*stops(early, run)] == ["g-r1"]  # the run is behind its own best
