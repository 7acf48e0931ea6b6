"""A job in its cell: a fake job, with a script for every wait."""

import itertools

import IPython.display
import pytest

from nbtorchjob import JobCancelledError, JobFailedError
from nbtorchjob.commands.table import OFFERS
from nbtorchjob.state import JobInfo, JobState, apply
from nbtorchjob.state.facts import events as ev
from nbtorchjob.ui.card import sending, view

STARTED = (ev.NodeStarted(1.0, 0, "here", 1), ev.WorkersStarted(2.0, 0, 0, 0, (0,), 1))
SUCCEEDED = (ev.NodeExited(8.0, 0, 0), ev.Closed(9.0))
CANCELLED = (ev.CancelRequested(3.0), ev.NodeExited(8.0, 0, None, 15), ev.Closed(9.0))


def state(*facts):
    now = JobState(JobInfo("swift-otter"))
    for fact in facts:
        now = apply(now, fact)
    return now


def log(text, offset=0, round_=0, rank=0):
    return ev.LogChunk(rank, round_, offset, text if isinstance(text, bytes) else text.encode())


class Waits:
    """A job with waits that take their whole time, and end as scripted: with facts or an interrupt."""

    name = "swift-otter"

    def __init__(self, clock, script):
        self.clock = clock
        self.script = iter(script)
        self.state = state()
        self.cancelled = False

    def wait(self, timeout=None):
        step = next(self.script)
        if isinstance(step, BaseException):
            raise step
        self.clock.now += timeout or 0
        for fact in step:
            self.state = apply(self.state, fact)
        return self.state.phase.terminal

    def cancel(self):
        self.cancelled = True

    def exception(self):
        return JobCancelledError("swift-otter cancelled") if self.cancelled else None


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


class Seen:
    """A display that records what it drew, and when."""

    tells = True

    def __init__(self, clock):
        self.clock = clock
        self.draws: list[tuple[float, JobState]] = []
        self.closed: list[JobState] = []

    def draw(self, state):
        self.draws.append((self.clock.now, state))

    def close(self, state, value="", *, deleted=False):
        self.closed.append(state)


@pytest.fixture
def clock():
    return Clock()


def watched(clock, *script):
    job, display = Waits(clock, script), Seen(clock)
    view.watch(job, display, clock=clock)  # type: ignore[arg-type]
    return job, display


def interrupted(clock, *script, error):
    job, display = Waits(clock, script), Seen(clock)
    with pytest.raises(error) as caught:
        view.watch(job, display, clock=clock)  # type: ignore[arg-type]
    return job, display, caught.value


def test_a_job_that_ends_at_once_is_not_drawn(clock):
    _, display = watched(clock, (*STARTED, *SUCCEEDED))

    assert display.draws == []


def test_a_job_that_takes_longer_is_drawn_until_it_ends(clock):
    job, display = watched(clock, STARTED, [log("a\n")], SUCCEEDED)

    assert [drawn.phase.value for _, drawn in display.draws] == ["RUNNING", "RUNNING"]
    assert job.state.phase.terminal


def test_whatever_a_job_tells_it_is_drawn_at_most_four_times_a_second(clock):
    chatter = ([log("x", offset)] for offset in itertools.count())
    _, display = watched(clock, STARTED, *itertools.islice(chatter, 80), SUCCEEDED)

    times = [at for at, _ in display.draws]
    assert len(times) == 81
    assert min(b - a for a, b in itertools.pairwise(times)) >= 0.25


def test_a_job_that_tells_nothing_is_drawn_about_once_a_second_for_its_clock(clock):
    _, display = watched(clock, STARTED, *[()] * 80, SUCCEEDED)

    assert 15 <= len(display.draws) <= 25


@pytest.mark.parametrize("before", [(), (STARTED,), (STARTED, [log("a\n")])])
def test_the_first_interrupt_detaches_and_keeps_the_job(clock, capsys, before):
    job, display, error = interrupted(clock, *before, KeyboardInterrupt(), (), error=view.Detached)

    assert not job.cancelled
    assert str(error) == "Detached from swift-otter: %torchjob attach swift-otter"
    assert error._render_traceback_() == [str(error)]
    assert capsys.readouterr().out == (
        "Stopped waiting; swift-otter keeps running. Interrupt again within 5 s to cancel it.\n"
    )
    assert display.draws[-1][1] is job.state
    assert clock.now >= 1000 + view.CANCEL_WITHIN_S


def test_a_second_interrupt_cancels_and_shows_the_end(clock):
    script = (STARTED, KeyboardInterrupt(), KeyboardInterrupt(), CANCELLED)
    job, display, error = interrupted(clock, *script, error=JobCancelledError)

    assert job.cancelled
    assert display.closed == [job.state]
    assert error.__suppress_context__


def test_an_error_of_the_job_is_not_taken_for_an_interrupt(clock):
    job, display, _ = interrupted(clock, STARTED, ConnectionError("gone"), error=ConnectionError)

    assert not job.cancelled
    assert len(display.draws) == 1


def in_a_terminal(*states):
    texts: list[str] = []
    terminal = view.Terminal(texts.append)
    for earlier in states[:-1]:
        terminal.draw(earlier)
    terminal.close(states[-1])
    lines = "".join(texts).splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("torchjob "))


def told(*facts):
    """Return the state after each of ``facts``."""
    return [state(*STARTED, *facts[: n + 1]) for n in range(len(facts))]


def test_a_terminal_gets_the_log_once_and_in_order():
    states = told(log("one\n"), log("two\n", 4), log("three\n", 8))

    assert in_a_terminal(states[0], states[0], states[1], states[2], states[2]) == "one\ntwo\nthree\n"


def test_a_terminal_gets_every_restart_s_log():
    again = ev.WorkersStarted(4.0, 0, 1, 1, (0,), 1)
    states = told(log("one\n"), again, log("two\n", 0, 1), log("three\n", 4, 1), log("four\n", 0, 2))

    for shown in ([states[0], *states[2:]], [states[-1]] * 2, [states[1], states[-1]]):
        assert in_a_terminal(*shown) == "one\ntwo\nthree\nfour\n"


def test_a_terminal_gets_characters_whole_that_came_in_halves():
    euro = "€".encode()
    states = told(log(b"1 " + euro[:1]), log(euro[1:2], 3), log(euro[2:] + b"\n", 4))

    assert in_a_terminal(*states) == "1 €\n"


def test_a_terminal_says_where_a_log_was_too_fast_to_follow():
    states = told(log("one\n"), log("late\n", 100_000))

    assert in_a_terminal(*states) == "one\n\n[…]\nlate\n"


def test_a_terminal_says_how_the_job_stands_and_ends(capsys):
    terminal = view.Terminal()
    terminal.draw(state(*STARTED))
    terminal.draw(state(*STARTED))
    terminal.close(state(*STARTED, *SUCCEEDED), "0.5")

    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("torchjob swift-otter running for ")
    assert last.startswith("torchjob swift-otter succeeded in ")


def test_a_terminal_stays_quiet_about_a_job_that_ended_at_once():
    texts: list[str] = []
    view.Terminal(texts.append).close(state(*STARTED, *SUCCEEDED), "0.5")

    assert texts == []


def test_a_terminal_shows_what_a_job_printed_that_ended_at_once():
    texts: list[str] = []
    quick = state(*STARTED, log("hello"), log("a\nb\n", rank=1), *SUCCEEDED)
    view.Terminal(texts.append).close(quick)

    assert "".join(texts) == "hello\nrank 1 printed 2 lines: %torchjob logs swift-otter --rank 1\n"


class Output:
    """A fake for one output of a cell."""

    def __init__(self):
        self.bundles: list[dict[str, str]] = []

    def __call__(self, bundle, *, raw, display_id):
        assert (raw, display_id, self.bundles) == (True, True, [])
        self.bundles.append(bundle)
        return self

    def update(self, bundle, *, raw):
        assert raw
        self.bundles.append(bundle)


@pytest.fixture
def output(monkeypatch):
    output = Output()
    monkeypatch.setattr(IPython.display, "display", output)  # without a kernel it has no outputs
    return output


def test_a_card_is_one_output_that_ends_as_html_and_text(output):
    card = view.Card(OFFERS)
    card.draw(state(*STARTED))
    card.close(state(*STARTED, *SUCCEEDED), "{'loss': 0.5}")

    first, last = output.bundles
    assert set(first) == set(last) == {"text/html", "text/plain"}
    assert "<script" in first["text/html"]
    assert "<script" not in last["text/html"]
    assert last["text/plain"].startswith("torchjob swift-otter succeeded in ")
    assert last["text/plain"].endswith("value: {'loss': 0.5}")
    assert "{&#x27;loss&#x27;: 0.5}" in last["text/html"]


def test_a_card_that_the_cell_leaves_before_the_end_is_drawn_on_by_the_page(output):
    card = view.Card(OFFERS)
    card.draw(state(*STARTED))
    card.close(state(*STARTED))

    first, last = (bundle["text/html"] for bundle in output.bundles)
    assert "nbtorchjob-waited-for" in first.partition("<script>")[0]
    assert "nbtorchjob-waited-for" not in last.partition("<script>")[0]
    assert "<script>" in last


def test_a_card_that_was_never_drawn_is_only_closed_for_a_failure(output):
    view.Card(OFFERS, sending.Output()).close(state(*STARTED, *SUCCEEDED), "1")
    assert output.bundles == []

    view.Card(OFFERS, sending.Output()).close(state(*STARTED, *CANCELLED))
    assert len(output.bundles) == 1


def test_a_card_that_was_asked_for_by_name_shows_a_job_that_has_ended(output, capsys):
    reported = ev.Reported(3.0, 0, 0, 0, {"loss": 0.5}), ev.Reported(4.0, 0, 0, 1, {"loss": 0.25})
    view.Card(OFFERS).close(state(*STARTED, log("hello\n"), *reported, *SUCCEEDED), "1")

    (card,) = output.bundles
    assert card["text/plain"].startswith("torchjob swift-otter succeeded in ")
    assert "curves" in card["text/html"]
    assert capsys.readouterr().out == ""


def test_what_a_job_printed_that_ended_at_once_is_in_its_cell(output, capsys):
    quick = state(*STARTED, log("hello\n<b>warned</b>"), log("a\nb\n", rank=1), *SUCCEEDED)
    view.Card(OFFERS, sending.Output()).close(quick)

    text = "hello\n<b>warned</b>\nrank 1 printed 2 lines: %torchjob logs swift-otter --rank 1\n"
    assert (capsys.readouterr().out, output.bundles) == (text, [])


def test_nothing_points_to_a_job_that_is_gone(output, capsys):
    quick = state(*STARTED, log("hello\n"), log("a\nb\n", rank=1), *SUCCEEDED)
    texts: list[str] = []
    view.Terminal(texts.append).close(quick, deleted=True)
    view.Card(OFFERS, sending.Output()).close(quick, deleted=True)
    view.Card(OFFERS).close(quick, deleted=True)

    text = "hello\nrank 1 printed 2 lines:\n  a\n  b\n"
    assert ("".join(texts), capsys.readouterr().out) == (text, text)
    (card,) = output.bundles
    assert "nbtorchjob:" not in card["text/html"]
    assert "rank 1 · 2 lines" in card["text/html"]


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.mark.parametrize("trusted", [True, False])
def test_what_rank_0_displays_is_shown_once_below_the_card(monkeypatch, trusted):
    shown: list[dict[str, str]] = []

    class Handle:
        def update(self, bundle, *, raw):
            pass

    def show(bundle, *, raw, display_id):
        shown.append(bundle)
        return Handle()

    monkeypatch.setattr(IPython.display, "display", show)
    figure, table = {"image/png": PIXEL, "text/plain": "<Figure>"}, {"text/html": "<b>1</b>"}
    displayed = [ev.Displayed(3.0, 0, 0, seq, data) for seq, data in enumerate((figure, table))]
    card = view.Card(OFFERS, trusted=lambda: trusted)
    card.draw(state(*STARTED, displayed[0]))
    card.draw(state(*STARTED, *displayed))
    card.close(state(*STARTED, *displayed, *SUCCEEDED))

    assert shown[1:] == ([figure, table] if trusted else [figure])


@pytest.mark.parametrize(
    ("bundle", "kept"),
    [
        ({"text/html": "<script>", "text/markdown": "[x](javascript:1)", "image/svg+xml": "<svg/>"}, {}),
        ({"image/png": PIXEL, "application/javascript": "1"}, {"image/png": PIXEL}),
        ({"image/png": f"{PIXEL[:60]}\n{PIXEL[60:]}\n"}, {"image/png": f"{PIXEL[:60]}\n{PIXEL[60:]}\n"}),
        ({"image/png": f'x" onerror="alert(1)">{PIXEL}', "image/jpeg": PIXEL, "image/gif": "é"}, {}),
        ({"text/plain": "\x1b]52;c;YQ==\x07<b>"}, {"text/plain": "^[]52;c;YQ==^G<b>"}),
    ],
)
def test_of_what_a_stranger_displays_only_text_and_real_images_are_left(bundle, kept):
    assert view.inert(bundle) == kept


def test_of_a_long_log_of_a_quick_job_the_cell_says_where_the_rest_is(output, capsys):
    view.Card(OFFERS, sending.Output()).close(state(*STARTED, log("one\n" * 10_000), *SUCCEEDED))

    text = capsys.readouterr().out
    assert text.startswith("[… all of it: %torchjob logs swift-otter]\none\n")
    assert text.endswith("one\n")


def test_an_error_whose_card_is_there_is_told_in_a_line():
    error = JobFailedError("swift-otter failed\nrank 0: ValueError: no\nCell In[3], line 3")

    assert view.short(error, view.Silent())._render_traceback_() == [str(error)]
    assert view.short(error, view.Card({}))._render_traceback_() == [
        "swift-otter failed: rank 0: ValueError: no"
    ]


def test_silence_writes_nothing(output, capsys):
    silent = view.Silent()
    silent.draw(state(*STARTED))
    silent.close(state(*STARTED, *SUCCEEDED), "1")

    assert output.bundles == []
    assert capsys.readouterr() == ("", "")


def test_silence_says_once_what_a_job_waits_for_and_where_a_rank_is_stopped(capsys):
    silent = view.Silent()
    behind = ev.Waiting(1001.0, "waits for swift-otter: running for 3.0 s", holder="swift-otter")
    stops = ev.RankStops(1002.0, 0, 1, 0, 7, "step", "train.py", ev.BREAKPOINT)
    for _ in range(2):
        silent.draw(state(behind))
    for _ in range(2):
        silent.draw(state(*STARTED, stops))
    first, second = capsys.readouterr().out.splitlines()

    assert first.endswith(" waits for swift-otter: running for 3.0 s")
    assert "rank 1 stops at train.py, line 7, in `step`" in second
    assert "debug" in second


class OnLab(Waits):
    """A turn on a lab, which is interrupted rather than cancelled."""

    name = "lab#2"
    info = JobInfo("lab#2")

    def stacks(self, timeout):
        return "ranks 0-1 wait for each other"


def on_lab(clock, *script):
    return OnLab(clock, script)


@pytest.mark.parametrize("over", [SUCCEEDED, CANCELLED])
def test_an_interrupt_is_for_a_cells_ranks_on_a_lab_and_its_end_is_waited_for(clock, capsys, over):
    job = on_lab(clock, STARTED, KeyboardInterrupt(), over)
    view.watch(job, Seen(clock), clock=clock)

    assert job.cancelled
    assert capsys.readouterr().out == (
        "Interrupting lab#2 on its ranks, which stay. Interrupt again within 5 s to end the lab.\n"
    )


def test_a_cell_that_an_interrupt_does_not_end_shows_where_it_is_and_is_waited_for(clock, capsys):
    job = on_lab(clock, STARTED, KeyboardInterrupt(), (), (), SUCCEEDED)
    view.watch(job, Seen(clock), clock=clock)

    assert capsys.readouterr().out.endswith("lab#2 isn't over after 5 s:\nranks 0-1 wait for each other\n")


def test_an_interrupt_leaves_a_cell_of_a_lab_alone_that_stopped_in_the_debugger(clock, capsys):
    stop = ev.RankStops(1003.0, 0, 0, 0, 2, "<module>", "<cell>", ev.BREAKPOINT)
    job = on_lab(clock, STARTED, (stop,), KeyboardInterrupt())

    with pytest.raises(view.Detached, match="%torchjob debug lab#2 shows where it is stopped"):
        view.watch(job, Seen(clock), clock=clock)
    assert "Interrupting" not in capsys.readouterr().out


def test_a_second_interrupt_asks_before_it_ends_a_lab(clock):
    questions = []

    def no(question):
        questions.append(question)
        return False

    job = on_lab(clock, STARTED, KeyboardInterrupt(), KeyboardInterrupt(), SUCCEEDED)
    view.watch(job, Seen(clock), clock=clock, asks=no)

    assert questions == ["End the lab lab and discard all that its ranks hold?"]


def test_where_nothing_can_be_asked_a_second_interrupt_says_what_to_type(clock):
    job = on_lab(clock, STARTED, KeyboardInterrupt(), KeyboardInterrupt())

    with pytest.raises(view.Detached, match="%torchjob cancel lab ends the lab"):
        view.watch(job, Seen(clock), clock=clock)
