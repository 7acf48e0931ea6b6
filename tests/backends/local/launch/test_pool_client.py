"""What a job takes over from the kernel that submits it."""

import os
import resource
import sys

import cloudpickle
import pytest

import nbtorchjob
from nbtorchjob import api
from nbtorchjob.backends.local import directory
from nbtorchjob.backends.local.launch import pool
from nbtorchjob.errors import NBTorchJobError
from nbtorchjob.machine import processes
from tests.patience import LIMIT

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def with_fewer_files():
    """Yield a function that lets this process open fewer files than its pool may."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = min(before[0], 1000) - 100

    def set_():
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
        return few

    yield set_
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.torch
def test_a_rank_has_the_limits_of_its_kernel_not_those_of_the_one_that_started_the_pool(with_fewer_files):
    pool.warm_up()
    few = with_fewer_files()

    assert nbtorchjob.submit(resource.getrlimit, resource.RLIMIT_NOFILE).result(LIMIT)[0] == few


def test_a_limit_that_may_not_be_had_is_as_near_as_can_be(monkeypatch):
    limits = {}

    def set_(number, pair):
        if pair[1] > 4096 or pair[1] == resource.RLIM_INFINITY:
            raise ValueError("not allowed to raise maximum limit")
        limits[number] = pair

    monkeypatch.setattr(resource, "getrlimit", lambda number: (10, 4096))
    monkeypatch.setattr(resource, "setrlimit", set_)
    processes.take({"RLIMIT_NOFILE": (8192, resource.RLIM_INFINITY), "RLIMIT_CORE": (0, 10)})

    assert limits == {resource.RLIMIT_NOFILE: (4096, 4096), resource.RLIMIT_CORE: (0, 10)}


def test_who_has_another_most_gets_a_pool_of_its_own(monkeypatch):
    pool_dir = directory.pool_dir()
    monkeypatch.setattr(processes, "of_this_process", lambda: {"RLIMIT_NOFILE": (1, 2)})
    directory.environment.cache_clear()
    try:
        assert directory.pool_dir() != pool_dir
    finally:
        directory.environment.cache_clear()


def test_a_deleted_working_folder_is_told_in_one_line(folder):
    os.chdir(folder)
    folder.rmdir()

    with pytest.raises(NBTorchJobError, match="working folder was deleted"):
        nbtorchjob.submit(len, "four")
    with pytest.raises(NBTorchJobError, match="working folder was deleted"):
        api.profile("any")
