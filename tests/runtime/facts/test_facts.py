import json
import os
from pathlib import Path

import pytest

from nbtorchjob.runtime import facts


@pytest.fixture
def path(folder):
    (folder / "ballast").write_bytes(b"\0" * 100)
    return folder / "events.jsonl"


def test_an_event_is_one_line(path):
    facts.append(str(path), {"event": "Closed", "time": 1.0})
    facts.append(str(path), {"event": "Notice", "text": "two\nlines"})

    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["Closed", "Notice"]


@pytest.mark.parametrize("reused", [False, True], ids=["closed", "closed and its number reused"])
def test_an_event_reaches_its_file_after_the_users_code_has_closed_its_descriptor(reused, path):
    facts.append(str(path), {"event": "Reported", "step": 1})
    links = Path("/proc/self/fd").iterdir()
    fd = next(int(link.name) for link in links if link.resolve() == path.resolve())
    with (path.parent / "checkpoint").open("wb") as checkpoint:
        if reused:
            os.dup2(checkpoint.fileno(), fd)
        else:
            os.close(fd)

        facts.append(str(path), {"event": "Reported", "step": 2})

        if reused:
            os.close(fd)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]
    assert (path.parent / "checkpoint").read_bytes() == b""


def test_a_write_that_a_full_disk_cut_short_is_made_again_in_the_ballasts_room(path, monkeypatch):
    write, room = os.write, iter([10, 0])

    def cut(fd, data):
        return write(fd, data[: next(room) or len(data)])

    monkeypatch.setattr(os, "write", cut)  # no real disk is full to a byte
    facts.append(str(path), {"event": "RankFailed", "rank": 1})

    assert json.loads(path.read_text().splitlines()[-1]) == {"event": "RankFailed", "rank": 1}
    assert not (path.parent / "ballast").exists()
