"""A job's cache has one writer, even while others ask whether it has one."""

import json
import os
import resource
import signal
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.backends.kubernetes.cache import Fresh, JobCache, Pod, Reader, cached_logs
from nbtorchjob.backends.kubernetes.jobs.results import behind
from nbtorchjob.backends.kubernetes.podlog import Lines
from nbtorchjob.runtime.store import BY_LOG, frames
from nbtorchjob.state import JobInfo
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.facts import factlines


def test_a_writer_is_one_though_somebody_asks_who_follows(tmp_path):
    over = threading.Event()

    def ask():
        while not over.is_set():
            JobCache(tmp_path / "job").followed()

    def claim():
        cache = JobCache(tmp_path / "job")
        try:
            return cache.claim(JobInfo("job"))
        finally:
            cache.release()

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        try:
            claimed = [claim() for _ in range(300)]
        finally:
            over.set()
    assert all(future.result() is None for future in asking)
    assert all(claimed)


def test_of_two_writers_the_second_only_reads(tmp_path):
    first, second = JobCache(tmp_path / "job"), JobCache(tmp_path / "job")
    assert first.claim(JobInfo("job"))

    assert not second.claim(JobInfo("job"))
    assert second.followed() is not None

    first.release()
    assert second.followed() is None
    assert second.claim(JobInfo("job"))
    second.release()


def test_a_fork_that_outlives_its_writer_has_no_lock(tmp_path):
    first, second = JobCache(tmp_path / "job"), JobCache(tmp_path / "job")
    assert first.claim(JobInfo("job"))
    with forked():
        assert not second.claim(JobInfo("job"))  # the fork has closed its copy: the parent keeps the lock

        first.release()
        assert second.followed() is None
        assert second.claim(JobInfo("job"))
    second.release()


def test_a_kernel_that_ends_leaves_no_lock_with_its_forks(tmp_path):
    reader, writer = os.pipe()
    kernel = os.fork()
    if kernel == 0:
        try:
            assert JobCache(tmp_path / "job").claim(JobInfo("job"))
            worker = os.fork()
            if worker == 0:
                os.write(writer, b"%d" % os.getpid())
                signal.pause()
        finally:
            os._exit(0)
    os.waitpid(kernel, 0)
    worker = int(os.read(reader, 16))
    try:
        assert JobCache(tmp_path / "job").claim(JobInfo("job"))
    finally:
        os.kill(worker, signal.SIGKILL)
        os.close(reader)
        os.close(writer)


@contextmanager
def forked():
    """Keep a fork alive inside the block, like a worker of multiprocessing."""
    pid = os.fork()
    if pid == 0:
        try:
            signal.pause()
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextmanager
def full_disk(free):
    """Let no file grow beyond ``free`` bytes inside the block."""
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


LINES = [b"2026-01-01T00:00:0%dZ line %d\n" % (second, second) for second in range(3)]
NOTICES = [ev.Notice(float(time), f"notice {time}") for time in range(3)]


def test_what_a_full_disk_has_no_room_for_is_written_once_it_has(tmp_path):
    cache, pod = JobCache(tmp_path / "job"), Pod(0, "uid")
    assert cache.claim(JobInfo("job"))
    cache.note(NOTICES[0])
    cache.add(pod, Lines(LINES[0]))
    with full_disk(len(LINES[0]) + 10):
        cache.note(NOTICES[1])
        cache.add(pod, Lines(LINES[1]))
        assert cache.facts() == NOTICES[:1]
    cache.note(NOTICES[2])
    cache.add(pod, Lines(LINES[2]))

    assert cache.facts() == NOTICES
    assert cache.log(pod).read_bytes() == b"".join(LINES)
    cache.release()


def test_behind_half_a_line_of_a_killed_process_nothing_is_lost(tmp_path):
    cache, pod = JobCache(tmp_path / "job"), Pod(0, "uid")
    assert cache.claim(JobInfo("job"))
    for notice in NOTICES[:2]:
        cache.note(notice)
    cache.add(pod, Lines(b"".join(LINES[:2])))
    cache.release()
    for path in (tmp_path / "job" / "facts.jsonl", cache.log(pod)):
        os.truncate(path, path.stat().st_size - 5)

    assert cache.claim(JobInfo("job"))
    for notice in NOTICES:
        cache.note(notice)
    cache.add(pod, Lines(b"".join(LINES)))
    cache.release()

    assert cache.facts() == NOTICES
    assert cache.log(pod).read_bytes() == b"".join(LINES)


TEXT = bytes(range(64))
PARTS = st.lists(st.tuples(st.integers(0, 63), st.integers(1, 64)), max_size=12)


def new(fresh, chunks):
    """Return the chunks that are new."""
    return [part for chunk in chunks if (part := fresh.part(chunk)) is not None]


@given(cuts=st.sets(st.integers(1, 63)), known=st.integers(0, 70), again=PARTS)
def test_each_byte_comes_once_however_often_it_is_read(cuts, known, again):
    edges = [0, *sorted(cuts), 64]
    once = [ev.LogChunk(0, 0, at, TEXT[at:end]) for at, end in pairwise(edges)]
    more = [ev.LogChunk(0, 0, at, TEXT[at : at + size]) for at, size in again]

    chunks = new(Fresh({(0, 0): known}), [*once, *more, *once])

    assert b"".join(chunk.data for chunk in chunks) == TEXT[known:]
    assert all(chunk.data == TEXT[chunk.offset :][: len(chunk.data)] for chunk in chunks)


def test_ranks_and_rounds_are_logs_of_their_own():
    chunks = [ev.LogChunk(rank, round_, 0, b"ab") for rank in (0, 1) for round_ in (0, 1)]

    assert new(Fresh({(0, 1): 1, (1, 0): 2}), chunks) == [
        ev.LogChunk(0, 0, 0, b"ab"),
        ev.LogChunk(0, 1, 1, b"b"),
        ev.LogChunk(1, 1, 0, b"ab"),
    ]


def test_what_is_gone_stays_a_gap():
    chunks = [ev.LogChunk(0, 0, 0, b"ab"), ev.LogChunk(0, 0, 5, b"f")]

    assert new(Fresh({}), chunks) == chunks


def test_facts_pass():
    assert new(Fresh({}), [ev.Closed(1.0), ev.Closed(1.0)]) == [ev.Closed(1.0), ev.Closed(1.0)]


@given(pieces=st.lists(st.binary(max_size=5), max_size=6), offset=st.integers(0, 40))
def test_what_lies_behind_an_offset_is_a_slice(pieces, offset):
    rest = list(behind(offset, pieces))

    assert b"".join(rest) == b"".join(pieces)[offset:]
    assert all(rest)


def test_kept_logs_come_in_the_order_in_which_their_pods_began(tmp_path):
    cache = JobCache(tmp_path / "job")
    assert cache.claim(JobInfo("train"))
    for uid, stamp in (("ffff", b"2026-01-01T00:00:01Z"), ("aaaa", b"2026-01-01T00:00:02Z")):
        line = frames.log(0, int(stamp[18:19]), 0, uid.encode()).rstrip()
        cache.add(Pod(0, uid), Lines.of([(stamp, line)]))
    cache.release()

    assert [event.data for event in cached_logs(cache) if isinstance(event, ev.LogChunk)] == [
        b"ffff",
        b"aaaa",
    ]


def sent(rank, data, round_=0):
    """Return the log lines that carry a value."""
    lines = b"".join(frames.value(rank, round_, data)).splitlines()
    return [(b"2026-01-01T00:00:01Z", line) for line in lines]


def announced(rank, size, round_=0):
    event = ev.ValueReady(1.0, rank, round_, "log#ff", size)
    line = frames.fact(json.dumps(factlines.to_json(event)).encode()).rstrip()
    return [(b"2026-01-01T00:00:02Z", line)], event


def test_a_value_is_kept_once_all_that_was_announced_of_it_is_there(tmp_path):
    cache = JobCache(tmp_path / "job")
    reader = Reader(Pod(0, "ffff"), cache)
    whole = bytes(range(256)) * 100
    parts = sent(1, whole)

    for lines, size, valid in (
        (parts[:1] + parts[2:], len(whole), False),  # one part is missing
        (parts, len(whole) - 1, False),
        (parts[:2] + parts[1:], len(whole), True),  # one came twice
    ):
        announcement, value = announced(1, size)
        reader.events(Lines.of([*lines, *announcement]))
        assert cache.sent(value).exists() is valid
    assert cache.sent(value).read_bytes() == whole


def test_values_that_nobody_announces_take_little_memory(tmp_path):
    reader = Reader(Pod(0, "ffff"), JobCache(tmp_path / "job"))
    part = b"x" * 9000
    tracemalloc.start()
    for rank in range(200):
        reader.events(Lines.of(sent(rank, part * 40)))
    # And a value that never ends.
    text = sent(0, part)[0][1].partition(b" ")[2]
    for at in range(0, 30_000_000, 9000):
        reader.events(Lines.of([(b"2026-01-01T00:00:01Z", b"value.0.0.%d %s" % (at, text))]))
    memory, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert memory < 5 * BY_LOG


def test_lines_have_the_times_that_the_kubelet_gave_them(tmp_path):
    text = frames.log(0, 0, 0, b"one\ntwo\nthree\n").splitlines()
    stamps = [b"2026-01-01T00:00:01.101Z", b"2026-01-01T00:00:01.102Z", b"2026-01-01T00:00:02Z"]
    lines = Lines.of(zip(stamps, text, strict=True))
    facts = Reader(Pod(0, "ffff"), JobCache(tmp_path / "job")).events(lines)

    chunk = next(event for event in facts if isinstance(event, ev.LogChunk))
    first = 1767225601.0
    assert chunk.times == ((8, first + 0.102), (14, first + 1))
    assert [e.times for e in new(Fresh({(0, 0): 9}), [chunk])] == [((14, first + 1),)]


def test_what_was_written_to_stderr_is_told(tmp_path):
    pieces = [(b"one\nt", False), (b"wo\r\nthree\n", True), (b"four", False), (b"five", True)]
    text, at = b"", 0
    for data, stderr in pieces:
        text += frames.log(0, 0, at, data, stderr=stderr)
        at += len(data)
    lines = Lines.of((b"2026-01-01T00:00:01Z", line) for line in text.splitlines())
    facts = Reader(Pod(0, "ffff"), JobCache(tmp_path / "job")).events(lines)

    chunk = next(event for event in facts if isinstance(event, ev.LogChunk))
    assert chunk.data == b"".join(data for data, _ in pieces)
    assert chunk.stderr == ((5, 15), (19, 23))
    assert [e.stderr for e in new(Fresh({(0, 0): 8}), [chunk])] == [((8, 15), (19, 23))]


PRINTED = st.tuples(st.integers(0, 1), st.binary(max_size=9) | st.just(b"one\ntwo\n"))


@given(printed=st.lists(PRINTED, max_size=12), missing=st.integers(0, 40))
def test_many_lines_say_what_each_of_them_says(printed, missing):
    lines, size = [], {0: 0, 1: 0}
    for rank, data in printed:
        lines += frames.log(rank, 0, size[rank], data).split(b"\n")[:-1]
        size[rank] += len(data)
    batch = [(b"2026-01-01T00:00:01Z", line) for line in lines[:missing] + lines[missing + 1 :]]

    assert written(batch) == set().union(*(written([line]) for line in batch))


def written(lines):
    """Return each byte of the ranks' logs in the lines, with its position."""
    facts = Reader(Pod(0, "ffff"), JobCache(Path())).events(Lines.of(lines))
    chunks = (event for event in facts if isinstance(event, ev.LogChunk))
    return {(e.rank, e.round, e.offset + at, byte) for e in chunks for at, byte in enumerate(e.data)}


def events(*lines):
    """Return the events of lines that came one per second."""
    stamped = [(b"2026-01-01T00:00:%02dZ" % second, line) for second, line in enumerate(lines)]
    return Reader(Pod(0, "ffff"), JobCache(Path())).events(Lines.of(stamped))


def chunks_of(*lines):
    return [event for event in events(*lines) if isinstance(event, ev.LogChunk)]


def test_pieces_of_several_ranks_are_joined_each_to_its_own():
    began = 1767225600.0
    assert chunks_of(b"0.1.0 a", b"0.1.2+b", b"1.1.0 c", b"0.1.3 d") == [
        ev.LogChunk(0, 1, 0, b"a\nbd\n", ((2, began), (3, began + 1), (5, began + 3))),
        ev.LogChunk(1, 1, 0, b"c\n", ((2, began + 2),)),
    ]


def test_a_gap_or_a_repetition_begins_a_new_piece():
    chunks = chunks_of(b"0.1.0 a", b"0.1.9 b", b"0.1.9 b", b"0.1.11 c")

    assert [(chunk.offset, chunk.data) for chunk in chunks] == [(0, b"a\n"), (9, b"b\n"), (9, b"b\nc\n")]


def test_facts_stand_among_what_ranks_wrote_where_they_were_told():
    notice = frames.fact(json.dumps(factlines.to_json(ev.Notice(1.0, "x" * 9000))).encode()).splitlines()
    facts = events(b"Killed", b"0.1.0 a", *notice, b"1.1.0 b", b"0.1.2 c", b"2026-01-01T00:00:09Z 7.1.0 no")

    assert [type(event).__name__ for event in facts] == [
        *("NodeOutput", "LogChunk", "Notice", "LogChunk", "NodeOutput", "Wrote")
    ]
    assert facts[-1] == ev.Wrote(1767225606.0)


@pytest.mark.parametrize("line", [b"v 0.1.0 x", b"0.1.0", b"", b"0.1.0x", b"2026-01-01T00:00:09Z0.1.0 x"])
def test_what_a_node_prints_is_not_taken_for_a_ranks_log(line):
    assert chunks_of(line, b"0.1.0 a", line) == [ev.LogChunk(0, 1, 0, b"a\n", ((2, 1767225601.0),))]


def test_what_a_node_tells_by_itself_does_not_say_that_its_ranks_move(tmp_path):
    def line(second, event):
        frame = frames.fact(json.dumps(factlines.to_json(event)).encode()).rstrip()
        return (b"2026-01-01T00:00:0%dZ" % second, frame)

    used = ev.Used(1.0, 0, 0, 0, 2.0, 1, 2)
    reader = Reader(Pod(0, "ffff"), JobCache(tmp_path / "job"))
    quiet = ev.Sampled(1.0, 0, 0, "quiet", ())
    moved = reader.events(Lines.of([line(1, ev.Notice(1.0, "a")), line(2, used), line(3, quiet)]))

    assert [event.time for event in moved if isinstance(event, ev.Wrote)] == [1767225601.0]
    assert reader.events(Lines.of([line(4, used)])) == [used]


@pytest.mark.parametrize(
    "stamp",
    [b"2026-01-01T02:00:01.5+02:00", b"2025-12-31T19:00:01.500000000-05:00", b"2026-01-01T00:00:01.5Z"],
)
def test_lines_have_the_same_times_whatever_zone_their_host_is_in(tmp_path, stamp):
    (line,) = frames.log(0, 0, 0, b"one\n").splitlines()

    events = Reader(Pod(0, "ffff"), JobCache(tmp_path / "job")).events(Lines.of([(stamp, line)]))

    assert ev.Wrote(1767225601.5) in events
