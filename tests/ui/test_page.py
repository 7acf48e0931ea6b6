"""Jobs as data for a page: one in full, and several in comparison."""

from pathlib import Path

import pytest

from nbtorchjob import Elastic, JobSpec
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.ui import page

pytestmark = pytest.mark.usefixtures("greenwich")

NOW = 1010.0


def job(name, cell="\nlr = 1\ntrain(lr)\n", losses=(3.0, 2.0, 1.0), **spec):
    """Return a job that reported these losses."""
    job_spec = JobSpec(name=name, **spec)
    sources = {"/tmp/9.py": ("Cell In[2]", "def train(lr): ...\n"), "/tmp/1.py": ("Cell In[7]", cell)}
    info = JobInfo(name, created=1000.0, label="cell", sources=sources, spec=job_spec.to_json())
    state = apply(JobState(info), ev.WorkersStarted(1001.0, 0, 0, 0, (0,), 1))
    for step, loss in enumerate(losses):
        state = apply(state, ev.Reported(1002.0 + step, 0, 0, step, {"step": step, "loss": loss}))
    return state


def part(content, title):
    """Return the only part with that title."""
    (match,) = [part for part in content["parts"] if part["title"].startswith(title)]
    return match


def text(part):
    """Return the code of a part."""
    return "".join(text for _, text in part["code"])


def test_a_job_s_page_has_its_options_and_the_code_of_its_cells():
    state = job("fox", launch=Elastic(nnodes=2, nproc_per_node=3))

    content = page.description(state, NOW, {}, Path("/state"))

    assert content["heading"].startswith("fox running")
    assert ["name", "fox"] in part(content, "Job")["rows"]
    assert text(part(content, "Options")) == "%%torchjob --nnodes 2 --nproc-per-node 3 --name fox"
    titles = [part["title"] for part in content["parts"]]
    assert titles[-2:] == ["Code of Cell In[7]", "Code of Cell In[2]"]
    assert text(part(content, "Code of Cell In[7]")) == "lr = 1\ntrain(lr)\n"


def test_of_a_spec_that_can_t_be_read_all_else_is_there():
    state = JobState(JobInfo("fox", spec={"launch": {"kind": "Later"}}))

    content = page.description(state, NOW, {}, Path("/state"))

    assert not [part for part in content["parts"] if part["title"] == "Options"]
    assert part(page.comparison([state, state], NOW), "Options")["said"][0].startswith(
        "The spec of 1 fox, 2 fox"
    )


def test_jobs_are_compared_by_curves_options_and_code():
    changed = job("owl", "\nlr = 2\ntrain(lr)\n", (1.0, 2.0), launch=Elastic(nproc_per_node=2))

    content = page.comparison([job("fox"), changed], NOW)

    (chart,) = part(content, "loss")["charts"]
    assert "1 fox: 1 at the end, 2 owl: 2 at the end" in chart["title"]
    assert [row[:3] for row in part(content, "Jobs")["rows"]] == [
        ["1", "fox", "running"],
        ["2", "owl", "running"],
    ]
    assert part(content, "Options")["rows"] == [["--nproc-per-node", "1", "2"]]
    assert text(part(content, "What 2 owl changed in 1 fox")).splitlines()[2:] == [
        "@@ -1,4 +1,4 @@",
        "-lr = 1",
        "+lr = 2",
        " train(lr)",
        " ",
        " def train(lr): ...",
    ]


def test_a_job_without_a_metric_keeps_its_colour():
    content = page.comparison([job("fox", losses=()), job("owl")], NOW)

    (chart,) = part(content, "loss")["charts"]
    assert 'class="line1" fill="none"' in chart["svg"]
    assert 'class="line0" fill="none"' not in chart["svg"]


def test_alike_is_said_to_be_alike():
    content = page.comparison([job("fox", losses=()), job("owl", losses=())], NOW)

    assert part(content, "Metrics")["said"] == ["None of them reported a metric that changed."]
    assert part(content, "Options")["said"] == ["None: they were submitted with the same options."]
    assert part(content, "Code")["said"] == ["Nothing: they ran the same code."]
