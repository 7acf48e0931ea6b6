"""The scopes that jobs were sent to from this machine, and its records of these jobs."""

import contextlib
import os
import time

import pytest

from nbtorchjob.backends.kubernetes import namespaces
from nbtorchjob.backends.kubernetes.namespaces import Scope
from nbtorchjob.machine import folders

LAB, HOME = Scope("lab", "ml"), Scope("", "default")


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv(folders.STATE, str(tmp_path))


def test_the_newest_scope_comes_first_and_each_is_there_once():
    for scope in (LAB, HOME, LAB):
        namespaces.remember(scope)

    assert namespaces.recorded_scopes() == [LAB, HOME]


def test_kernels_that_submit_at_once_are_all_remembered():
    kernels = []
    for kernel in range(2):
        kernels.append(os.fork())
        if kernels[-1] == 0:
            code = 1
            with contextlib.suppress(Exception):
                for number in range(20):
                    namespaces.remember(Scope(f"kernel-{kernel}", f"ml-{number}"))
                code = 0
            os._exit(code)

    assert [os.waitpid(pid, 0)[1] for pid in kernels] == [0, 0]
    assert len(namespaces.recorded_scopes()) == 40


def test_a_broken_record_is_no_scopes():
    namespaces.remember(LAB)
    next(folders.state_dir().rglob("scopes.json")).write_text("{")

    assert namespaces.recorded_scopes() == []


def test_what_nobody_followed_for_months_is_forgotten():
    old, new = LAB.folder("train", "uid-1"), LAB.folder("train", "uid-2")
    for folder in (old, new):
        folder.mkdir(parents=True)
    os.utime(old, (0, time.time() - 200 * 24 * 3600))

    namespaces.remember(LAB)

    assert LAB.folders("train") == [new]


def test_what_looks_like_a_pattern_names_no_job():
    LAB.folder("train", "uid-1").mkdir(parents=True)
    namespaces.remember(LAB)

    assert LAB.folders("tr*") == LAB.folders("*") == LAB.folders("trai?") == []


def test_the_settings_say_where_a_name_is_looked_for(monkeypatch):
    namespaces.remember(LAB)
    namespaces.remember(HOME)
    assert namespaces.named_in() == [HOME, LAB]
    monkeypatch.setenv("NBTORCHJOB_NAMESPACE", "ml")

    assert namespaces.named_in() == [Scope("", "ml"), LAB]
    assert namespaces.looked_at() == [HOME, LAB]
    monkeypatch.setenv("NBTORCHJOB_CONTEXT", "lab")
    assert namespaces.named_in() == [LAB]


def test_in_a_working_folder_that_was_deleted_the_known_scopes_count(tmp_path, monkeypatch):
    namespaces.remember(LAB)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    (tmp_path / "project").rmdir()

    assert namespaces.looked_at() == namespaces.named_in() == [LAB]
