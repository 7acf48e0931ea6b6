"""Logs of several ranks: lines of a running job, lines of one node, and an archive of all logs."""

import io
import random
import zipfile
from typing import Any

import pytest

from nbtorchjob import SpecError, attach
from nbtorchjob.backends import downloads
from nbtorchjob.state import JobInfo, JobState
from tests.backends.full import Logs
from tests.backends.local.acted import Acted


@pytest.fixture
def job():
    """Yield a job with two nodes and a folder that the test writes."""
    job = Acted(nodes=2)
    yield job
    job.remove()


def texts(lines):
    return [(line.rank, line.text) for line in lines]


def unzipped(pieces):
    with zipfile.ZipFile(io.BytesIO(b"".join(pieces))) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_a_line_that_has_no_end_yet_comes_once_it_has_or_the_job_is_over(job):
    job.begin()
    job.log(b"one\ntw")
    assert texts(attach(job.name).lines()) == [(0, "one")]

    job.log(b"o\nlast")
    assert texts(attach(job.name).lines()) == [(0, "one"), (0, "two")]

    job.end()
    assert texts(attach(job.name).lines()) == [(0, "one"), (0, "two"), (0, "last")]


def test_a_node_s_lines_are_those_that_were_written_on_it(job):
    for round_, (first, second) in enumerate(((0, 1), (1, 0))):
        for node, rank in enumerate((first, second)):
            job.begin(round_, (rank,), node)
            job.log(b"round %d\n" % round_, rank, round_, at=10.0 + round_, node=node)
    job.end()

    assert texts(attach(job.name).lines(node=1)) == [(1, "round 0"), (0, "round 1")]


def test_a_stream_is_what_was_written_to_it(job):
    job.begin()
    job.log(b"out ")
    job.log(b"err ", stderr=True)
    job.log(b"put\n10%\r")
    job.log(b"or\n", stderr=True)
    handle = attach(job.name)

    assert texts(handle.lines(stream="stdout")) == [(0, "out put")]
    assert texts(handle.lines(0, stream="stderr")) == [(0, "err or")]
    assert (handle.logs(stream="stdout"), handle.logs(stream="stderr")) == ("out put\n10%\r", "err or\n")
    assert handle.logs() == "out err put\n10%\ror\n"
    nothing: Any = "stdin"
    for method in (handle.lines, handle.logs):
        with pytest.raises(SpecError, match="stream: got 'stdin', but it must be stdout or stderr"):
            method(stream=nothing)


def test_a_rank_or_node_that_the_job_can_not_have_is_refused(job):
    handle = attach(job.name)
    handle.info = JobInfo(job.name, nodes=(2, 2), spec={"name": job.name})
    for call in (lambda: handle.lines(2), lambda: handle.lines(node=2)):
        with pytest.raises(SpecError, match="got 2, but it must be 0 to 1"):
            call()


def test_an_archive_has_a_file_for_each_rank_that_wrote(job):
    job.begin(0, (0,))
    job.begin(0, (1,), node=1)
    job.log(b"\xff as it is\r\nhalf", rank=1, at=0.25, node=1)
    handle = attach(job.name)

    assert unzipped(handle.archive()) == {f"{job.name}/rank-1.log": b"\xff as it is\r\nhalf"}
    (stamped,) = unzipped(handle.archive(times=True)).values()
    assert stamped.endswith(b".250+00:00 \xff as it is\r\n")


class Long(Logs):
    """A backend with one job, which has an incompressible log of 16 MiB."""

    read = 0

    def log(self, name, rank):
        piece = random.Random(0).randbytes(1 << 20)
        for _ in range(16):
            self.read += len(piece)
            yield piece


def test_of_an_archive_little_waits():
    backend: Any = Long()
    size = 0
    for piece in downloads.zip_logs(backend, JobState(JobInfo("long"))):
        size += len(piece)
        assert backend.read - size < 2 << 20
    assert size > 16 << 20
