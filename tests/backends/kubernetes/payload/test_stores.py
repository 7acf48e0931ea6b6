"""A job's own folders in its stores: their paths, and their removal with the job."""

import hashlib
from dataclasses import replace

import pytest

from nbtorchjob.backends.kubernetes.payload import shared, stores
from nbtorchjob.errors import SubmitError
from nbtorchjob.machine import folders
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import JobInfo
from tests.runtime.buckets import Buckets


def job(created=12.5, **options):
    """Return the spec of a job with these options, and its JobInfo."""
    spec = JobSpec(backend="kubernetes", cluster=Cluster(**options))
    return spec, JobInfo("train-7k2q", "kubernetes", created, spec=spec.to_json())


def filled(*folders):
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "file").write_text("x")


def test_checkpoints_are_the_jobs_own_though_its_name_is_used_again():
    store = "s3://bucket/checkpoints/"

    first, same, again = (stores.checkpoints(*job(created, checkpoints=store)) for created in (1.5, 1.5, 2.5))

    assert first == same == "s3://bucket/checkpoints/train-7k2q-1.500000"
    assert again == "s3://bucket/checkpoints/train-7k2q-2.500000"
    assert stores.checkpoints(*job()) == ""


def test_all_of_an_ended_job_is_removed_from_its_stores_and_nothing_else(folder):
    spec, info = job(storage=f"{folder}/jobs", checkpoints=f"file://{folder}/kept")
    later = stores.checkpoints(spec, job(99.0)[1]).removeprefix("file://")
    filled(folder / "jobs/train-7k2q.12.500000", folder / "jobs/other", folder / "kept/train-7k2q-12.500000")
    filled(folder / "jobs/train-7k2q.99.000000", folder / later)

    stores.clear(info)
    stores.clear(info)

    assert {path.name for path in folder.glob("*/*")} == {
        "other",
        "train-7k2q.99.000000",
        "train-7k2q-99.000000",
    }


@pytest.mark.parametrize("scheme", ["file", "buckets"])
def test_a_job_is_removed_from_a_store_whose_name_looks_like_a_pattern(folder, scheme):
    places = [f"{scheme}://{folder}/jobs{end}/train-7k2q.12.500000" for end in ("[1]", "1")]
    for place in places:
        stores.put(memoryview(b"x"), f"{place}/file[1]")

    stores.clear(job(storage=places[0].rpartition("/")[0])[1])

    files, _ = stores.reached(places[0])
    assert [files.exists(stores.reached(place)[1]) for place in places] == [False, True]


def test_checkpoints_at_a_path_of_the_pods_stay(folder):
    mount = f"type=volume,src=claim,dst={folder}"
    spec, info = job(mount=[mount], checkpoints=f"{folder}/kept")
    filled(folder / "kept/train-7k2q-12.500000")

    stores.clear(info)

    assert stores.checkpoints(spec, info) == f"{folder}/kept/train-7k2q-12.500000"
    assert (folder / "kept/train-7k2q-12.500000/file").exists()


def test_a_job_that_resumes_another_has_a_copy_in_a_store_and_shares_a_path_of_the_pods(folder):
    spec, old = job(checkpoints=f"file://{folder}/kept")
    new = old.sent_again("train-7k2q-2")
    with pytest.raises(SubmitError, match="train-7k2q left no checkpoint at file://"):
        stores.resumed(spec, old, new)
    (folder / "kept/train-7k2q-12.500000/deep").mkdir(parents=True)
    (folder / "kept/train-7k2q-12.500000/deep/step-1.pt").write_text("weights")
    # A node keeps swaps there for the job's later attempts, and may have been killed while it sent a file.
    filled(folder / "kept/train-7k2q-12.500000/.nbtorchjob-swaps-12.500000")
    (folder / "kept/train-7k2q-12.500000/deep/step-2.pt.nbtorchjob-partial").write_text("wei")

    new = stores.resumed(spec, old, new)
    own = stores.checkpoints(spec, new).removeprefix("file://")
    files = [path for path in (folder / own).rglob("*") if path.is_file()]
    assert [(path.name, path.read_text()) for path in files] == [("step-1.pt", "weights")]
    stores.clear(old)
    assert (folder / own / "deep/step-1.pt").exists()
    third = stores.resumed(spec, new, new.sent_again("other"))
    stores.clear(new)
    assert [path.name for path in (folder / "kept").iterdir()] == [third.checkpoints]
    stores.clear(replace(third, created=1.0))  # a record that names another job's folder
    assert (folder / "kept" / third.checkpoints).exists()

    spec, old = job(mount=["type=volume,src=claim,dst=/work"], checkpoints="/work/kept")
    new = stores.resumed(spec, old, old.sent_again("train-7k2q-2"))
    assert stores.checkpoints(spec, new) == stores.checkpoints(spec, old)
    assert stores.checkpoints(spec, replace(new, checkpoints="../../x")).endswith(
        f"kept/{new.name}-{new.run}"
    )
    with pytest.raises(SubmitError, match="no --checkpoints that outlive its pods"):
        stores.resumed(job()[0], old, old)


@pytest.mark.parametrize("option", ["storage", "checkpoints"])
def test_a_store_that_can_not_be_used_is_named(option):
    with pytest.raises(SubmitError, match=r"^nosuch://bucket/train-7k2q.* can't be used from here"):
        stores.clear(job(**{option: "nosuch://bucket"})[1])


def test_no_bucket_is_made_by_the_way(folder, monkeypatch):
    monkeypatch.setenv(folders.STATE, str(folder))
    stores.put(memoryview(b"x"), "buckets://mine/job/file")
    shared.use("buckets://mine/jobs", "run", ["digest"])

    assert Buckets().cat_file("mine/job/file") == b"x"
    assert b"digest" in Buckets().cat_file("mine/jobs/_shipped/uses/run")


@pytest.mark.parametrize(
    "url",
    [
        "/home/me/.ssh/id_rsa",
        "{storage}/job.1/../../id_rsa",
        "{storage}/../job-0123456789ab.pyz",
        "{storage}/job.1/deeper/job-0123456789ab.pyz",
        "{storage}/job.1/job-ffffffffffff.pyz",
        "simplecache::{storage}/job.1/job-0123456789ab.pyz",
        "http://elsewhere/job.1/job-0123456789ab.pyz",
        "",
    ],
)
@pytest.mark.parametrize("storage", ["/jobs", "memory://jobs/"])
def test_a_payload_is_read_from_where_a_job_has_it_alone(storage, url):
    digest = "0123456789ab" + "0" * 52
    assert stores.holds_payload(storage, f"{storage.rstrip('/')}/job.1/job-0123456789ab.pyz", digest)
    assert not stores.holds_payload(storage, url.format(storage=storage.rstrip("/")), digest)
    assert not stores.holds_payload(None, url, digest)


def test_a_payload_that_somebody_has_put_a_link_in_the_place_of_is_not_copied(folder):
    (folder / "mine").write_bytes(b"private")
    (folder / "payload").symlink_to(folder / "mine")
    digest = hashlib.sha256(b"private").hexdigest()
    with pytest.raises(SubmitError):
        stores.copy(f"{folder}/payload", f"{folder}/copied", digest)
    assert not (folder / "copied").exists()
