"""How a chart draws values, and where."""

import math
import re
from base64 import b64decode
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.ui.card import chart
from nbtorchjob.ui.card.chart import DARK, LIGHT, curves

SVG = "{http://www.w3.org/2000/svg}"


def parsed(series, **size):
    return ElementTree.fromstring(curves(series, **size).svg)


def contrast(one, other):
    """Return the contrast of two colours, as WCAG 2.1 defines it."""

    def light(colour):
        parts = [c / 255 for c in bytes.fromhex(colour.removeprefix("#"))]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05

    darker, lighter = sorted((light(one), light(other)))
    return lighter / darker


def texts(svg):
    return [node.text for node in svg.iter(f"{SVG}text")]


def numbers(svg):
    values = []
    for text in texts(svg):
        try:
            values.append(float(text))
        except ValueError:
            continue
    return values


def test_a_curve_has_its_name_ticks_and_points():
    svg = parsed({"loss": [(1, 3.0), (2, 1.0), (3, 0.5)]}, x_label="epoch")

    assert "loss" in texts(svg)
    assert "epoch" in texts(svg)
    assert {1.0, 2.0, 3.0} <= set(numbers(svg))
    (line,) = svg.iter(f"{SVG}polyline")
    assert len(line.get("points").split()) == 3


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_what_is_drawn_reads_on_the_charts_own_ground(palette):
    assert contrast(palette.text, palette.ground) >= 4.5
    assert all(contrast(line, palette.ground) >= 3 for line in palette.lines)


def test_the_page_or_the_user_decides_between_light_and_dark():
    svg = parsed({"loss": [(0, 1.0), (1, 2.0)], "accuracy": [(0, 0.1), (1, 0.9)]}, width=300, height=100)
    ground, *_ = svg.iter(f"{SVG}path")
    (style,) = svg.iter(f"{SVG}style")
    light, dark = style.text.split("@media(prefers-color-scheme:dark)")

    assert (ground.get("d"), ground.get("class")) == ("M0 0H300V100H0Z", "ground")
    assert [line.get("class") for line in svg.iter(f"{SVG}polyline")] == ["line0", "line1"]
    for rules, palette in ((light, LIGHT), (dark, DARK)):
        assert f"svg{{fill:{palette.text};color:{palette.text}}}" in rules
        assert f".ground{{fill:{palette.ground}}}" in rules
        assert f".line1{{color:{palette.lines[1]}}}" in rules


def test_more_than_one_series_gets_a_legend():
    one_series = parsed({"loss": [(0, 1.0), (1, 2.0)]})
    two_series = parsed({"loss": [(0, 1.0), (1, 2.0)], "accuracy": [(0, 0.1), (1, 0.9)]})

    def keys(svg):
        return [path for path in svg.iter(f"{SVG}path") if path.get("class", "").startswith("line")]

    assert (len(keys(one_series)), len(keys(two_series))) == (0, 2)
    assert "accuracy" in texts(two_series)


def test_series_whose_long_names_begin_alike_are_two():
    names = [f"train-transformer-wikitext-large-{number}" for number in (1, 2)]
    svg = parsed({name: [(0, 1.0), (1, 2.0)] for name in names})

    assert len([*svg.iter(f"{SVG}polyline")]) == 2
    assert [text[-8:] for text in texts(svg) if text.startswith("train-")] == ["-large-1", "-large-2"]


def test_several_lines_are_told_apart_without_their_colours():
    one_line = curves({"a": [(0, 1.0), (1, 2.0)]}, colours=[3])
    four_lines = curves({name: [(0, 1.0), (1, 2.0)] for name in "abcd"})

    patterns = re.findall(r"\.line\d\{stroke-dasharray:([\d ]+)\}", four_lines.svg)
    assert len(patterns) == len({*patterns}) == 3  # the first line is solid
    assert "dasharray" not in one_line.svg


def test_nan_and_infinity_leave_gaps():
    ys = [1.0, 2.0, math.nan, 3.0, math.inf, 1.0, 2.0]
    svg = parsed({"loss": [*enumerate(ys)]})

    assert len([*svg.iter(f"{SVG}polyline")]) == 2
    assert len([*svg.iter(f"{SVG}circle")]) == 1  # the lone 3.0


def test_a_single_point_is_a_dot():
    svg = parsed({"loss": [(5, 0.25)]})

    assert len([*svg.iter(f"{SVG}circle")]) == 1
    assert not [*svg.iter(f"{SVG}polyline")]


def test_a_spike_survives_thinning():
    points = [(float(x), 100.0 if x == 777 else 1.0) for x in range(2000)]
    svg = parsed({"loss": points}, height=180)
    (line,) = svg.iter(f"{SVG}polyline")
    heights = [float(point.split(",")[1]) for point in line.get("points").split()]

    assert len(heights) <= 120
    assert min(heights) == pytest.approx(30, abs=0.1)


def test_an_early_decay_is_no_straight_line():
    svg = parsed({"loss": [(float(x), 0.9**x) for x in range(500)]}, width=390, height=160)
    (line,) = svg.iter(f"{SVG}polyline")
    places = [[float(number) for number in point.split(",")] for point in line.get("points").split()]

    assert len([x for x, _ in places if x < 100]) > 20


def test_a_line_begins_anew_where_x_falls_back_and_a_mark_says_why():
    points = [(0.0, 3.0), (2.0, 2.0), (1.0, 2.5), (3.0, 1.0)]
    svg = ElementTree.fromstring(curves({"loss": points}, marks=[(2.0, "node 1 lost")]).svg)

    assert len([*svg.iter(f"{SVG}polyline")]) == 2
    assert [path.get("class") for path in svg.iter(f"{SVG}path")].count("mark") == 1
    assert "node 1 lost" in [text.text for text in svg.iter(f"{SVG}text")]


@pytest.mark.parametrize(
    "ys",
    [[0.0], [2.0, 2.0], [1e-12, 3e-12], [1e12, 4e12], [1e308, -1e308], [5e-324, 0.0], [-1.0, 1.0]],
)
def test_ticks_are_few_and_apart(ys):
    svg = parsed({"y": [*enumerate(ys)]})
    lines = svg.findall(f"{SVG}path")[1].get("d").split("M")[1:]
    labels = [t.text for t in svg.iter(f"{SVG}text") if t.get("text-anchor") == "end"]

    assert 3 <= len(lines) <= 5
    assert len(set(labels)) == len(labels)


def test_epochs_get_whole_ticks():
    svg = parsed({"y": [(1, 0.1), (2, 0.15), (3, 0.2)]})
    across = [float(t.text) for t in svg.iter(f"{SVG}text") if t.get("text-anchor") == "middle"]

    assert across == [1.0, 2.0, 3.0]


def test_nothing_to_draw_is_still_a_document():
    assert parsed({}).find(f"{SVG}title").text == "An empty chart"
    assert parsed({"loss": [(0, math.nan)]}) is not None


@given(
    st.dictionaries(
        st.text(max_size=60),
        st.lists(st.tuples(st.floats(), st.floats()), max_size=200),
        max_size=3,
    )
)
def test_any_series_gives_a_document_with_finite_places(series):
    svg = parsed(series)
    places = [v for node in svg.iter() for k, v in node.items() if k in ("x", "y", "cx", "cy", "points")]

    assert not [place for place in places if re.search("nan|inf", place)]


def test_the_image_tells_the_last_value():
    chart = curves({'lo"ss<': [(0, 1.0), (1, 0.25)]}, width=300)
    svg, tag = chart.svg, chart.img
    data = re.search(r'src="data:image/svg\+xml;base64,([^"]*)"', tag)

    assert data is not None
    assert b64decode(data[1]).decode() == svg
    assert 'width="300"' in tag
    assert 'alt="Chart of lo&quot;ss&lt;: 0.25 at the end"' in tag


def decay(low, high, points=100):
    return [low + (high - low) * 0.8**n for n in range(points)]


@pytest.mark.parametrize(
    ("values", "log"),
    [
        (decay(0.01, 8), True),
        (decay(0.5, 8), False),  # less than two decades
        ([0.01, 0.5, 0.8, 0.9, 0.95], False),  # an accuracy
        ([*decay(0.01, 8), 0.0], False),
        ([*decay(0.01, 8), -1.0], False),
        ([], False),
        ([3.0], False),
    ],
)
def test_an_axis_is_logarithmic_where_most_values_would_be_flat(values, log):
    assert chart.up_axis(values, 100, 0).log is log


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.02, 8, [0.03, 0.1, 0.3, 1, 3]),
        (0.1, 50, [0.1, 1, 10]),
        (0.01, 1000, [0.01, 1, 100]),
        (1e-20, 1, [1e-20, 1e-15, 1e-10, 1e-5, 1]),
    ],
)
def test_a_logarithmic_axis_has_round_ticks(low, high, ticks):
    axis = chart.Axis(low, high, 100, 0, log=True)

    assert axis.ticks() == pytest.approx(ticks)
    assert all(0 <= axis(tick) <= 100 for tick in ticks)
    assert (axis(low), axis(high)) == (100, 0)


NOISE = [n % 2 + n / 100 for n in range(200)]


def test_only_what_is_long_and_noisy_is_smoothed():
    assert chart.noisy(NOISE)
    assert not chart.noisy(NOISE[:20])
    assert not chart.noisy([0.97**n for n in range(200)])
    assert not chart.noisy([1.0] * 200)
    assert not chart.noisy([])


def test_a_mean_neither_lags_nor_changes_what_is_straight():
    line = [float(n) for n in range(200)]

    assert chart.smoothed(line)[:190] == pytest.approx(line[:190])
    assert chart.smoothed(NOISE)[100:190] == pytest.approx([0.5 + n / 100 for n in range(100, 190)], abs=0.06)
