"""The card of a group's runs in a page of its own, as in a saved file."""

import pytest

from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.ui.runs import view

# Draw the output again as JupyterLab does: in the same element, running its scripts.
AGAIN = """card => document.querySelector("main").replaceChildren(
  document.createRange().createContextualFragment(card)
)"""


def run(number, lr, loss):
    state = JobState(JobInfo(f"sweep-r{number}", group="sweep", number=number, given={"lr": lr}))
    began = ev.WorkersStarted(2.0, 0, 0, 0, (0,), 1)
    for fact in (ev.NodeStarted(1.0, 0, "here", 1), began, ev.Reported(3.0, 0, 0, 0, {"loss": loss})):
        state = apply(state, fact)
    return state


@pytest.fixture
def page(chromium):
    page = chromium.new_page()
    yield page
    page.close()


def test_the_table_is_sorted_by_a_column_and_stays_so_when_it_is_drawn_again(page):
    card = view.mimebundle("sweep", [run(1, 10, 2), run(2, 9, 3), run(3, 100, 1)])["text/html"]
    page.set_content(f"<main>{card}</main>")
    rows = page.locator(".nbtorchjob-sorts tbody tr td:nth-child(2)")
    head = page.get_by_role("button", name="lr")

    head.click()
    assert rows.all_inner_texts() == ["9", "10", "100"]
    head.press("Enter")
    assert rows.all_inner_texts() == ["100", "10", "9"]
    assert page.locator("th[aria-sort=descending]").inner_text() == "lr"

    page.evaluate(AGAIN, card)
    assert rows.all_inner_texts() == ["100", "10", "9"]
