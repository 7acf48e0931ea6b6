"""``forward``: what a notebook keeps open, lists and closes."""

from types import SimpleNamespace
from typing import Any

import pytest

from nbtorchjob.commands import connecting
from nbtorchjob.commands.table import VERBS
from nbtorchjob.errors import LineError


class Opened:
    """A forwarded port."""

    name, connections, trouble, open = "train", 0, "", True

    def __init__(self, port, rank, local):
        self.port, self.rank, self.local, self.listens = port, rank, local or port, False
        self.url = f"http://127.0.0.1:{self.local}"

    def close(self):
        self.open = False


class Kernel:
    """A front that stays."""

    stays = True

    def __init__(self):
        self.texts: list[str] = []
        self.job = SimpleNamespace(
            name="train",
            info=SimpleNamespace(address="train"),
            check_rank=lambda rank: None,
            forward=lambda port, rank, local: Opened(port, rank, local),
        )

    def find(self, name):
        return self.job

    def show(self, answer):
        self.texts.append(answer.text)

    say = None


@pytest.fixture
def lines(monkeypatch):
    monkeypatch.setattr(connecting, "_forwards", {})
    front: Any = Kernel()
    front.say = front.texts.append

    def line(*words):
        front.texts.clear()
        VERBS["forward"].do(VERBS["forward"].parse(["train", *words]), front)
        return list(front.texts)

    return line


def test_a_port_stays_open_until_it_is_closed_by_word(lines):
    place = "http://127.0.0.1:6006 → port 6006 of rank 0 of train"
    first, note = lines("6006")
    assert first == place
    assert note == "Nothing listens at port 6006 of rank 0 yet: until then connections are closed at once."
    assert lines("6006:0") == [place]  # once
    assert lines("7000:1", "--local-port", "7")[0] == "http://127.0.0.1:7 → port 7000 of rank 1 of train"
    assert len(lines()) == 2
    assert lines("7000:1", "--end") == ["http://127.0.0.1:7 closed"]
    assert lines("--end") == ["http://127.0.0.1:6006 closed"]
    assert lines() == ["No port of train is forwarded here; %torchjob forward train PORT forwards one."]
    with pytest.raises(LineError, match="no such port of train is forwarded here"):
        lines("--end")


@pytest.mark.parametrize("wrong", ["x", "0", "65536", "6006:", "6006:x", ":1", "-1"])
def test_what_is_no_port_is_refused(lines, wrong):
    with pytest.raises(LineError):
        lines(wrong)
