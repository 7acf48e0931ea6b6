"""Copying a node's output to its log."""

import json
import os

import pytest

from nbtorchjob.runtime.store import frames, stream


@pytest.mark.parametrize(
    "sizes", [[300_000], [500_000], [100_000] * 5, [300_000, 10, 300_000, 9000, 500_000, 5]]
)
def test_events_longer_than_a_read_come_whole(sizes, tmp_path):
    events, output, log = (tmp_path / name for name in ("events", "output", "log"))
    lines = [json.dumps({"event": "Displayed", "data": {"image/png": "A" * size}}) for size in sizes]
    events.write_text("".join(f"{line}\n" for line in lines))
    output.touch()

    with log.open("wb") as out:
        pump = stream.Pump(str(tmp_path), str(events), str(output), out.fileno(), [])
        pump.start()
        pump.finish()

    parser = frames.Parser()
    facts = [parser.feed(line) for line in log.read_bytes().splitlines()]
    assert [fact.record for fact in facts if isinstance(fact, frames.Fact)] == [
        json.loads(line) for line in lines
    ]


def test_an_event_that_is_being_written_waits_for_its_end(tmp_path):
    path = tmp_path / "events"
    path.write_bytes(b"a" * 400_000)
    lines = stream.Lines(str(path), 1 << 20)

    assert lines.read(ended=False) == []
    with path.open("ab") as file:
        file.write(b"b\nc")
    assert lines.read(ended=False) == [b"a" * 400_000 + b"b"]
    assert lines.read(ended=True) == [b"c"]
    assert lines.read(ended=True) == []
    os.close(lines._tail._fd)
