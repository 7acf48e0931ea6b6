"""A group's runs on one card."""

import base64
import re

import pytest

from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.ui import runs as render
from nbtorchjob.ui.card.chart import LIGHT

NOW = 1010.0
ENDED = (ev.NodeExited(1008.0, 0, 0), ev.Closed(1009.0))
FAILED = (
    ev.RankFailed(1004.0, 0, 0, 0, 0, Error("ValueError", "no <rate>", (), time=1004.0)),
    ev.NodeExited(1005.0, 0, 1),
    ev.Closed(1005.0),
)


def run(number, *facts, **arguments):
    info = JobInfo(
        f"sweep-r{number}", created=1000.0, label="train", group="sweep", number=number, given=arguments
    )
    state = JobState(info)
    for fact in facts:
        state = apply(state, fact)
    return state


def begun(*losses):
    return (
        ev.NodeStarted(1001.0, 0, "here", 1),
        ev.WorkersStarted(1002.0, 0, 0, 0, (0,), 1),
        *(ev.Reported(1003.0 + n, 0, 0, n, {"loss": loss, "epoch": n}) for n, loss in enumerate(losses)),
    )


STOPPED = (ev.CancelRequested(1004.0, "loss > 2"), ev.NodeExited(1005.0, 0, signal=15), ev.Closed(1005.0))
RUNS = [
    run(1, *begun(1.0, 0.5), *ENDED, lr=0.1, seed=0),
    run(2, *begun(1.0, 2.0), *FAILED, lr=3.0, seed=0),
    run(3, *begun(1.0), lr="<b>", seed=0),
    run(4, ev.Waiting(1001.0, "behind 2 jobs"), lr=None, seed=0),
]


def test_the_text_has_a_line_a_run_below_its_head():
    assert render.text("sweep", RUNS, NOW).splitlines() == [
        "torchjob sweep running for 10 s · 4 runs · 1 done, 1 running, 1 failed, 1 waiting",
        "run  lr    seed  loss  phase                  seconds",
        "1    0.1   0     0.5   succeeded · ★ best     8.0",
        "2    3     0     2     failed                 4.0",
        "     rank 0: ValueError: no <rate>",
        "3    <b>   0     1     running                9.0",
        "4    None  0           pending behind 2 jobs",
    ]


def test_a_metric_that_is_called_total_has_a_column():
    reported = ev.Reported(1003.0, 0, 0, 0, {"step": 1, "steps": 9, "total": 0.53})

    assert render.text("sweep", [run(1, *begun(), reported, lr=0.1)], NOW).splitlines()[1].split() == [
        *("run", "lr", "total", "phase", "seconds")
    ]


def test_what_was_stopped_early_is_told_from_what_was_cancelled():
    stopped = run(1, *begun(3.0), *STOPPED, lr=3.0)
    cancelled = run(2, *begun(3.0), ev.CancelRequested(1004.0), *STOPPED[1:], lr=2.0)
    done = run(3, *begun(3.0), *ENDED, lr=1.0)

    card = render.html("sweep", [stopped, cancelled, done], NOW)
    assert "3 runs · 1 done, 1 stopped early, 1 cancelled" in card
    assert "stopped early: loss &gt; 2</td>" in card
    assert render.text("sweep", [stopped, done], NOW).splitlines() == [
        "torchjob sweep succeeded in 9.0 s · 2 runs · 1 done, 1 stopped early",
        "run  lr  loss  phase      seconds",
        "1    3   3     stopped    4.0",
        "     stopped early: loss > 2",
        "3    1   3     succeeded  8.0",
    ]


@pytest.mark.parametrize("reports", [(1.0, 0.5), ()])
def test_each_row_of_the_table_is_as_wide_as_its_head(reports):
    card = render.html(
        "sweep", [run(1, *begun(*reports), *ENDED, lr=1.0), run(2, *begun(), *FAILED, lr=3.0)], NOW
    )

    rows = [re.findall(r"<t[dh]\b[^>]*>", row) for row in re.findall(r"<tr.*?</tr>", card)]
    spans = [[int(n) for n in re.findall(r'colspan="(\d+)"', "".join(cells))] for cells in rows]
    assert len(rows) == 4
    assert len({len(cells) + sum(span) - len(span) for cells, span in zip(rows, spans, strict=True)}) == 1


def test_the_card_has_a_bar_a_table_and_what_was_wrong():
    card = render.html("sweep", RUNS, NOW)

    assert "<b><b>" not in card
    assert "&lt;b&gt;" in card
    assert re.findall(r'flex:(\d+) 1 0;.*?title="([^"]*)"', card) == [
        ("1", "1 done"),
        ("1", "1 running"),
        ("1", "1 failed"),
        ("1", "1 waiting"),
    ]
    assert "ValueError: no &lt;rate&gt;" in card
    assert card.count('title="Logs" ') == len(RUNS)
    assert 'aria-label="Logs of sweep-r2"' in card
    assert "%torchjob attach sweep follows them" in card
    assert "%torchjob attach sweep" not in render.html("sweep", RUNS, NOW, live=True)


def drawn(card):
    return [base64.b64decode(picture).decode() for picture in re.findall(r"base64,([\w+/=]+)", card)]


def test_curves_are_told_apart_by_what_varies():
    (chart,) = drawn(render.html("sweep", RUNS[:2], NOW))

    assert "lr=0.1" in chart
    assert "lr=3" in chart
    assert "seed" not in chart
    assert "loss</b> · 2 runs by lr" in re.sub(r" +", " ", render.html("sweep", RUNS[:2], NOW))


def test_runs_that_count_differently_have_charts_of_their_own():
    steps = (ev.Reported(1003.0 + n, 0, 0, n, {"loss": 1 / (n + 1), "step": 100 * n}) for n in range(3))
    card = render.html("sweep", [RUNS[0], run(2, *steps, lr=3.0, seed=0)], NOW)

    assert [re.findall('font-weight="bold">([^<]*)<', chart) for chart in drawn(card)] == [
        ["lr=0.1"],
        ["lr=3"],
    ]
    assert re.findall("<b>(loss by [^<]*)</b> +· +([^<]*)", card) == [
        ("loss by epoch", "1 of 2 runs by lr"),
        ("loss by step", "1 of 2 runs by lr"),
    ]


def both(number, loss, accuracy, *facts, lr):
    reports = (
        ev.Reported(1003.0 + n, 0, 0, n, {"loss": loss + n, "accuracy": accuracy + n, "epoch": n})
        for n in range(2)
    )
    return run(number, *begun(), *reports, *facts, lr=lr)


def test_a_run_has_one_colour_in_all_charts_and_in_its_row():
    rising = [both(n, n, 10 - n, lr=n) for n in range(3)]
    loss_only = run(3, *begun(1.0, 9.0), lr=3)

    card = render.html("sweep", [*rising, loss_only], NOW)
    loss, accuracy = drawn(card)[:2]

    def colours(chart):
        legend = re.findall(r'<path[^>]*class="line(\d)"[^>]*/><text[^>]*>lr=(\d)', chart)
        return {lr: number for number, lr in legend}

    assert colours(loss) == {"0": "0", "1": "1", "2": "2", "3": "3"}
    assert colours(accuracy) == {"0": "0", "1": "1", "2": "2"}
    swatch = "vertical-align:middle;background-color:{}"
    assert [card.count(swatch.format(LIGHT.lines[number])) for number in range(4)] == [1, 1, 1, 1]


@pytest.mark.parametrize(("value", "named"), [(1, "lr=1"), (0.00125, "0.00125"), ("x" * 40, "run 1")])
def test_two_charts_are_as_wide_as_they_stand_side_by_side_and_their_legends_fit(value, named):
    states = [both(n, n, 10 - n, lr=value if n == 1 else n) for n in range(1, 7)]

    charts = drawn(render.html("sweep", states, NOW))

    assert len(charts) == 2
    for chart in charts:
        assert 'viewBox="0 0 450 200"' in chart  # in a card of 800 px each has half the width
        names = re.findall(r'<text x="([\d.]+)" y="16" font-weight="bold">([^<]*)', chart)
        assert names[0][1] == named
        assert float(names[-1][0]) + 6.2 * len(names[-1][1]) < 450 - 39  # the axis has its name there
    (alone,) = drawn(render.html("sweep", RUNS[:2], NOW))
    assert 'viewBox="0 0 720 200"' in alone


def test_the_best_run_is_first_and_marked():
    runs = [
        both(1, 3.0, 0.1, *ENDED, lr=1),
        both(2, 1.0, 0.3, *ENDED, lr=2),
        both(3, 0.5, 0.9, *FAILED, lr=3),
    ]

    rows = re.findall(r"<tr[^>]*>.*?</tr>", render.html("sweep", runs, NOW))

    assert re.findall(r"<td[^>]*>(\d)", rows[1])[0] == "2"
    assert ["best" in row for row in rows] == [False, True, False, False, False]


@pytest.mark.parametrize("ends", [ENDED, (), FAILED])
def test_of_many_runs_the_best_ones_are_shown(ends):
    many = [run(n, *begun(1.0 + n), *ends, lr=n) for n in range(100)]
    many += [run(n, *begun(0.5 - n / 1000), *ENDED, lr=n) for n in range(100, 103)]

    text, card = render.text("sweep", many, NOW), render.html("sweep", many, NOW)

    assert [line.split()[0] for line in text.splitlines() if "best" in line] == ["102"]
    first = re.findall(r"<tr[^>]*>.*?</tr>", card)[1]
    assert re.findall(r"<td[^>]*>(\d+)", first)[0] == "102"
    assert "best" in first
    shown = [int(line.split()[0]) for line in text.splitlines() if line[:1].isdigit()]
    assert len(shown) == 30
    if ends is ENDED:
        assert shown == [*range(27), 100, 101, 102]


def test_a_picture_of_many_runs_has_the_best_one():
    losses = [1.0] * 1000 + [0.0]
    states = [run(n, *begun(loss, loss), *ENDED, a=n, b=n, c=n) for n, loss in enumerate(losses)]

    picture = drawn(render.html("sweep", states, NOW))[-1]

    assert "loss of 300 of 1,001 runs, lowest to highest, by a, b, c" in picture
    assert picture.count("<polyline") == 300
    assert picture.count('stroke="rgb(9,105,218)"') == 1  # the run with the lowest loss


def test_a_metric_that_is_bigger_than_a_float_is_no_point_of_a_sparkline():
    states = [run(n, *begun(1.0, 10**400, 2.0), *ENDED, lr=n) for n in range(2)]

    assert "▁█</td>" in render.html("sweep", states, NOW)


def test_of_a_metric_that_nobody_knows_no_run_is_the_best():
    runs = [run(n, *begun(), ev.Reported(1003.0, 0, 0, 0, {"size": n}), *ENDED, lr=n) for n in range(2)]

    assert "best" not in render.html("sweep", runs, NOW)


def test_of_many_runs_the_card_stays_small_and_tells_how_many_it_leaves_out():
    many = [
        run(n, *begun(1.0, 1.0 / (n + 2)), *ENDED, lr=n, seed=n % 3, opt=["adam", "sgd"][n % 2])
        for n in range(1000)
    ]

    card = render.html("sweep", many, NOW)

    assert len(card) < 100_000
    assert "and 940 more runs: runs.frame() has all of them" in card
    assert "6 of 1,000 runs" in card
    assert "and 970 more runs" in render.text("sweep", many, NOW)


@pytest.mark.parametrize(("names", "pictures"), [(("a", "b"), 1), (("a", "b", "c"), 2)])
def test_three_that_vary_have_a_picture_together(names, pictures):
    states = [run(n, *begun(1.0, n), *ENDED, **dict.fromkeys(names, n)) for n in range(3)]

    images = drawn(render.html("sweep", states, NOW))

    assert len(images) == pictures
    assert pictures == 1 or "loss of 3 runs by a, b, c" in images[-1]


@pytest.mark.parametrize("losses", [(-9e307, 1.2e308), (0.0, 1e-310), (1e308, -1e308)])
def test_any_finite_values_are_drawn(losses):
    runs = [
        run(n, *begun(*losses, losses[n % 2]), *ENDED, lr=losses[1] / 8 * n, a=n, b=10**400 * n)
        for n in range(1, 9)
    ]

    text = render.html("sweep", runs, NOW)

    assert text.count('class="nbt-spark"') == len(runs)
    svgs = [base64.b64decode(data).decode() for data in re.findall(r"svg\+xml;base64,([^\"]+)", text)]
    assert any("<title>loss of 8 runs by lr, a, b</title>" in svg for svg in svgs)
    assert not any(re.search(r"\b(nan|inf)\b", svg) for svg in svgs)


def test_parameters_are_told_apart_in_one_line_each():
    arguments = ({"decay": 0.9999999, "prompt": "a\nb"}, {"decay": 0.99999999, "prompt": "c"})
    runs = [run(n, *begun(1.0), *ENDED, **given) for n, given in enumerate(arguments, 1)]

    lines = render.text("sweep", runs, NOW).splitlines()

    assert [words for text in lines if (words := text.split()[:4])[0] in "12"] == [
        ["1", "0.9999999", "a", "b"],
        ["2", "0.99999999", "c", "1"],
    ]
