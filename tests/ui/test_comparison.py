"""The aspects in which jobs differ, and how."""

import json
import re
from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob import Elastic, JobSpec
from nbtorchjob.runtime.facts.samples import GpuUse
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.info import SAMPLED
from nbtorchjob.ui import comparison

pytestmark = pytest.mark.usefixtures("greenwich")

NOW = 1010.0
CELL = "\nlr = 1\ntrain(lr)\n"


NOTHING: dict[str, tuple[str, str]] = {}
IMAGE = {"torch": "2.13.0+cpu", "peft": "0.18"}


def job(name, cell=CELL, captured=NOTHING, spec=None, host="here", has=IMAGE, **details):
    """Return a job that ran on ``host`` and reported a loss."""
    job_spec = replace(spec or JobSpec(), name=name)
    info = JobInfo(
        name,
        created=1000.0,
        label="cell",
        sources={"/tmp/1.py": ("Cell In[7]", cell)} if cell else {},
        captured=captured,
        spec=job_spec.to_json(),
    )
    state = apply(JobState(info), ev.NodeStarted(1000.5, 0, host))
    if has:
        state = apply(state, ev.EnvironmentTold(1000.6, 0, "3.11.7", "x86_64", has, **details))
    state = apply(state, ev.WorkersStarted(1001.0, 0, 0, 0, (0,), 1))
    return apply(state, ev.Reported(1002.0, 0, 0, 0, {"loss": 0.5}))


def compared(one, other, values=(None, None)):
    """Return how the jobs differ, as text and as data."""
    states, names = (one, other), (one.name, other.name)
    outcomes = [comparison.outcome(s, NOW, value) for s, value in zip(states, values, strict=True)]
    aspects = comparison.aspects(states, names)
    return comparison.text(aspects, names, outcomes), comparison.data(aspects, states, outcomes)


def part(text, title):
    """Return the lines below a title."""
    return [line.strip() for line in text.partition(f"\n{title}:\n")[2].partition("\n\n")[0].split("\n")]


def test_jobs_that_are_alike_say_so_in_a_line():
    text, data = compared(job("fox"), job("owl"))

    assert text.splitlines()[0] == "fox and owl are alike in options, code, captured data, packages and hosts"
    assert [line for line in text.splitlines() if line.endswith(":")] == ["Results:"]
    assert data["alike"] is True
    assert data["options"] == data["captured"] == {}


def test_what_differs_is_shown_and_the_rest_is_named():
    owl = job("owl", CELL.replace("1", "2"), spec=JobSpec(Elastic(nproc_per_node=2)))

    text, data = compared(job("fox"), owl, ({"acc": 0.9}, None))

    assert text.splitlines()[0] == (
        "fox and owl differ in options and code; alike: captured data, packages and hosts"
    )
    assert part(text, "Options") == ["option            fox  owl", "--nproc-per-node  1    2"]
    assert part(text, "Code") == ["--- fox", "+++ owl", "@@ -1,2 +1,2 @@", "-lr = 1", "+lr = 2", "train(lr)"]
    assert part(text, "Results") == [
        "fox           owl",
        "state     running       running",
        "value     {'acc': 0.9}  –",
        "loss      0.5           0.5",
        "took      9.5 s         9.5 s",
        "attempts  1             1",
    ]
    assert data["alike"] is False
    assert data["options"] == {"--nproc-per-node": ["1", "2"]}
    assert data["changes"][0].splitlines()[3:] == ["-lr = 1", "+lr = 2", " train(lr)"]
    assert data["results"][0]["value"] == {"acc": 0.9}


def test_captured_data_is_compared_by_digest():
    fox = {"lr": ("0.1", "aa"), "X": ("Tensor 9", "ab12cd34ef"), "only": ("int", "cc"), "same": ("Set", "dd")}
    owl = {"lr": ("0.2", "bb"), "X": ("Tensor 9", "cd12ab34ef"), "same": ("Set", "dd")}

    text, data = compared(job("fox", captured=fox), job("owl", captured=owl))

    assert part(text, "Captured data") == [
        "name  fox                  owl",
        "lr    0.1                  0.2",
        "X     Tensor 9 (ab12cd34)  Tensor 9 (cd12ab34)",
        "only  int                  –",
    ]
    assert data["captured"]["lr"] == ["0.1", "0.2"]


def test_what_can_t_be_told_is_said():
    big = {"X": ("Tensor 9", f"{SAMPLED}ab"), "api_key": ("str, 9 B", "")}

    text, data = compared(job("fox", "", captured=big, has={}), job("owl", captured=big, host="there"))

    assert part(text, "Not compared") == [
        "The code of fox isn't known here.",
        "Alike, as far as samples show: X. No digest is kept for api_key.",
        "The packages of fox aren't known.",
        "The host kinds of fox, owl aren't known.",
    ]
    assert data["alike"] is False
    assert [*data["unknown"]] == ["code", "captured", "packages", "hosts"]


def test_what_an_older_version_wrote_down_has_no_digests():
    text, data = compared(job("fox", captured=None), job("owl", captured={"x": ("1", "ab")}))

    assert part(text, "Not compared") == ["The captured data of fox isn't known here."]
    assert data["captured"] == {}


def test_packages_are_compared_with_where_they_are_from():
    origin = json.dumps({"url": "https://host/x.git", "vcs_info": {"vcs": "git", "commit_id": "ab12"}})
    owl = job("owl", has={"torch": "2.13.0+cpu", "x": "1"}, installed={"peft": "0.19"}, origins={"x": origin})

    text, data = compared(job("fox"), owl)

    assert part(text, "Packages") == [
        "package  fox   owl",
        "peft     0.18  0.19",
        "x        –     1 (git+https://host/x.git@ab12)",
    ]
    assert data["packages"]["peft"] == ["0.18", "0.19"]


def test_hosts_are_compared_by_their_kind():
    def used(state, cores, gpus=(), model=""):
        return apply(state, ev.Used(1005.0, 0, 0, 0, cores, 1, 64_000_000_000, gpus=gpus, model=model))

    gpus = tuple(GpuUse(i, 0.0, 1.0, 1, 80_000_000_000, "H100") for i in range(2))
    fox, owl = used(job("fox"), 8), used(job("owl", host="there"), 8, gpus, "EPYC 9654")

    assert part(compared(fox, owl)[0], "Hosts")[1:] == [
        "kind  8 cores, 64 GB  8 cores of EPYC 9654, 64 GB, 2 × H100 of 80 GB"
    ]
    assert compared(fox, used(job("owl", host="there"), 8))[1]["alike"] is True
    waits = JobState(JobInfo("owl", created=1000.0))
    assert compared(job("fox"), waits)[1]["unknown"]["hosts"].startswith("The host kinds of fox, owl aren't")
    assert compared(fox, waits)[1]["unknown"]["hosts"].startswith("The host kinds of owl aren't")


def test_code_is_coloured_by_what_its_words_are():
    text = 'def train(lr=0.1):\n    return "é"  # done\n'

    spans = [span for span in comparison.spans(text) if span[0]]

    assert spans == [
        ("keyword", "def"),
        ("def", "train"),
        ("number", "0.1"),
        ("keyword", "return"),
        ("string", '"é"'),
        ("comment", "# done"),
    ]


@pytest.mark.parametrize(
    "text", ["", "!pip list\nx = 1\n", "'''open\n", "  x\n y\n", "f'{a}' 'b\\\n", "\f\x1cx\r\ny"]
)
def test_what_is_no_python_is_shown_whole(text):
    assert "".join(part for _, part in comparison.spans(text)) == text


@given(st.text(alphabet="ab'\"#\n\r\\{}f( é\t\u2028"))
def test_spans_are_the_text_again(text):
    assert "".join(part for _, part in comparison.spans(text)) == text


def test_a_unified_diff_is_coloured_by_what_its_lines_are():
    lines = comparison.changes(["--- 1 fox", "+++ 2 owl", "@@ -1,2 +1,2 @@", " a", "-b", "+c"])

    assert lines == [
        ("removed", "--- 1 fox\n"),
        ("added", "+++ 2 owl\n"),
        ("hunk", "@@ -1,2 +1,2 @@\n"),
        ("", " a\n"),
        ("removed", "-b\n"),
        ("added", "+c\n"),
    ]


def test_the_curves_of_ordinary_jobs_are_laid_over_each_other_in_one_chart():
    fox, owl = (
        apply(job(name), ev.Reported(1003.0, 0, 0, 1, {"loss": last, "step": 1}))
        for name, last in (("fox", 0.2), ("owl", 0.3))
    )
    names, silent = ("fox", "owl"), apply(JobState(JobInfo("silent")), ev.NodeStarted(1.0, 0, "here"))

    drawn = comparison.charts([fox, owl], names)
    aspects = comparison.aspects([fox, owl], names)
    html = comparison.html(aspects, names, [comparison.outcome(s, NOW) for s in (fox, owl)], drawn)

    assert [*drawn] == ["loss"]
    assert drawn["loss"].title == "Chart of fox: 0.2 at the end, owl: 0.3 at the end"
    assert html.index("loss") < html.index("data:image/svg+xml") < html.index("Results")
    assert comparison.charts([silent, silent], names) == {}


def test_a_chart_names_the_jobs_that_reported_its_metric_in_their_own_colours():
    silent = apply(JobState(JobInfo("silent")), ev.NodeStarted(1.0, 0, "here"))
    owl, elk = (
        apply(job(name), ev.Reported(1003.0, 0, 0, 1, {"loss": 0.3, "step": 1})) for name in ("owl", "elk")
    )

    svg = comparison.charts([silent, owl, elk], ("fox", "owl", "elk"))["loss"].svg

    assert re.findall(r'class="line(\d)" stroke="currentColor" stroke-width="2.5"', svg) == ["1", "2"]
    assert re.findall(r'font-weight="bold">(\w+)<', svg) == ["owl", "elk"]


def test_curves_over_different_axes_have_charts_of_their_own():
    def counting(name, *counts):
        reports = ({"accuracy": n, **count} for n, count in enumerate(counts, 1))
        return reduce(apply, (ev.Reported(1003.0, 0, 0, n, of) for n, of in enumerate(reports, 1)), job(name))

    fox, elk = (counting(name, {"step": 100}, {"step": 200}) for name in ("fox", "elk"))
    drawn = comparison.charts([fox, counting("owl", {}, {}), elk], ("fox", "owl", "elk"))

    assert {title: re.findall(r'font-weight="bold">(\w+)<', chart.svg) for title, chart in drawn.items()} == {
        "accuracy by step": ["fox", "elk"],
        "accuracy by report": ["owl"],
    }
    assert all(f">{title.split()[-1]}<" in chart.svg for title, chart in drawn.items())
