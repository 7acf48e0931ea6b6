"""What is cached of a job has one writer, whoever asks meanwhile whether there is one."""

import threading
from concurrent.futures import ThreadPoolExecutor

from nbtorchjob.backends.kubernetes.logs.cache import JobCache
from nbtorchjob.state import JobInfo


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
    assert all(each.result() is None for each in asking)
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
