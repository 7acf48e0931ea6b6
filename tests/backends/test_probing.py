"""The doctor's findings about a job's data: what exists, how much would be fetched, whether that fits."""

import os
import threading
import time

import pytest

from nbtorchjob import JobSpec
from nbtorchjob.backends import backend, probing
from nbtorchjob.machine import folders
from nbtorchjob.runtime.data import cache, web
from nbtorchjob.spec.cluster import Cluster
from tests.runtime.data.test_sources import Server


@pytest.fixture
def server():
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_data_that_no_job_has_used_for_a_week_is_a_leftover(tmp_path, monkeypatch):
    monkeypatch.setenv(folders.STATE, str(tmp_path / "state"))
    kept = folders.cache_dir() / "data"
    kept.mkdir(parents=True)
    for where, days in (("hf://datasets/org/old", 8), ("hf://datasets/org/new", 6)):
        path = cache.place(str(kept), where, "1")
        with cache.alone(path, lambda: None) as lock:
            cache.describe(lock, where, 1500)
        os.mkdir(path)
        os.utime(f"{path}.lock", (time.time() - days * 24 * 3600,) * 2)

    (left,) = backend("local").leftovers()
    assert left.description == "1.5 kB of hf://datasets/org/old in this machine's cache of data"
    assert left.age > 7 * 24 * 3600
    backend("local").clear(left)

    assert backend("local").leftovers() == []
    assert [entry.where for entry in cache.entries(str(kept))] == ["hf://datasets/org/new"]


def test_each_piece_of_data_has_a_line_of_its_own(server, tmp_path, monkeypatch):
    monkeypatch.setenv(folders.STATE, str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "a.txt").write_text("a")
    places = {"web": server.url("blob.bin"), "here": "./here", "none": "./none", "gone": server.url("gone")}

    local = [(finding.good, finding.text) for finding in probing.data_findings(JobSpec(data=places))]
    assert local[:4] == [
        (True, "data web: 300 kB in 1 file, fetched once per node into this machine's cache"),
        (True, f"data here: ranks find it at {tmp_path}/here"),
        (False, f"--data none=./none: there is no such file or folder in {tmp_path}"),
        (False, f"data gone: nothing exists at {server.url('gone')} (404): check the name"),
    ]
    assert local[4][1].startswith("300 kB would be fetched into ")

    server.files["data/part-0.bin"] = bytes(6_000_000)
    monkeypatch.setenv("HF_ENDPOINT", server.url("").rstrip("/"))
    monkeypatch.setattr(web, "hub", web.Hub)
    places = {"web": "hf://datasets/org/squad/data", "here": "./here", "held": "pvc://corpus/en"}
    cluster = Cluster(storage="s3://bucket/jobs", limit={"ephemeral-storage": "5M"})
    findings = list(probing.data_findings(JobSpec(backend="kubernetes", cluster=cluster, data=places)))
    assert [(finding.good, finding.text) for finding in findings] == [
        (True, "data web: 6.0 MB in 2 files, fetched once per node into the pod's own disk"),
        (True, "data here: 1 B in 1 file, sent once to s3://bucket/jobs, by digest"),
        (True, "data held is read from the claim corpus, and isn't copied"),
        (False, "6.0 MB would be fetched to each pod's own disk, limited to 5M"),
    ]
