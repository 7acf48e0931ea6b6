"""The output of a cell while its job is prepared and sent."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from nbtorchjob import capture
from nbtorchjob.capture.model import ShippedFile
from nbtorchjob.machine.activity import activity
from nbtorchjob.ui.card import sending
from tests.patience import LIMIT

CALL = capture.from_cell("len(big)", {"big": b"x" * 12_000_000})


class Output(sending.Output):
    """An output that remembers all that it showed."""

    def __init__(self):
        self.texts = []
        self.first = threading.Event()

    @property
    def drawn(self):
        return bool(self.texts)

    def show(self, bundle):
        text, _, took = bundle["text/plain"].rpartition(" · ")
        assert f"{text.partition(' · ')[2]} · {took}" in bundle["text/html"]
        self.texts.append(text)
        self.first.set()


def test_what_takes_noticeable_time_is_shown_with_the_payloads_size():
    output = Output()
    with sending.drawn(sending.Sending(CALL, output)):
        output.first.wait(LIMIT)

    assert output.texts[0] == "torchjob cell submitting · packing and sending 12 MB"
    assert output.texts[-1] == "torchjob cell submitted · packed and sent 12 MB"


def interrupted(output):
    with sending.drawn(sending.Sending(CALL, output)):
        output.first.wait(LIMIT)
        raise KeyboardInterrupt


def test_a_submission_that_is_stopped_says_so():
    output = Output()
    with pytest.raises(KeyboardInterrupt):
        interrupted(output)

    assert output.texts[-1] == "torchjob cell not submitted · stopped packing and sending 12 MB"


def test_what_takes_no_time_shows_nothing():
    output = Output()
    both = sending.Sending(CALL, output)
    with sending.drawn(both), sending.announce(both, output.texts.append):
        pass

    assert output.texts == []


def test_where_nothing_can_be_drawn_again_it_is_said_once():
    lines, first = [], threading.Event()

    def say(text):
        lines.append(text)
        first.set()

    with sending.announce(sending.Sending(CALL, Output()), say):
        first.wait(LIMIT)

    assert lines == ["Packing and sending 12 MB: ships big (bytes, 12 MB)"]


def test_what_is_written_to_a_store_is_shown_with_how_much_of_it_is():
    output, texts = Output(), []
    spoken = threading.Event()

    def say(text):
        texts.append(text)
        if len(texts) == 2:
            spoken.set()

    big = ShippedFile("data/all.bin", Path("all.bin"), 3_000_000_000, False, 0, "", None)
    with activity(f"storing {big.path}", big.size) as storing:
        storing.done = 1_200_000_000
        sent = sending.Sending(CALL, output)
        sent.prepared(replace(CALL, shipped=(big,)))
        with sending.drawn(sent), sending.announce(sent, say):
            output.first.wait(LIMIT)
            spoken.wait(LIMIT)

    assert output.texts[0] == "torchjob cell submitting \u00b7 storing data/all.bin, 1.2 GB of 3.0 GB"
    assert texts == [
        "Packing and sending 3.0 GB: ships big (bytes, 12 MB)",
        "Storing data/all.bin, 1.2 GB of 3.0 GB",
    ]


def test_what_takes_long_before_anything_is_sent_is_shown_too():
    output, texts = Output(), []
    spoken = threading.Event()

    def say(text):
        texts.append(text)
        spoken.set()

    small = sending.Sending(capture.from_cell("1", {}), output)
    with sending.drawn(small), sending.announce(small, say), activity("building fruit"):
        output.first.wait(LIMIT)
        spoken.wait(LIMIT)

    assert output.texts[0] == "torchjob cell submitting \u00b7 building fruit"
    assert texts == ["Building fruit"]
