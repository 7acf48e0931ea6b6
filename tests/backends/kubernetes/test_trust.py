"""What is trusted of a job: its own value, from an allowed place, and only data of other people's jobs."""

import pickle

import pytest

from nbtorchjob import api
from nbtorchjob.backends.kubernetes.jobs import find
from nbtorchjob.backends.kubernetes.namespaces import Scope
from nbtorchjob.backends.kubernetes.payload import stores
from nbtorchjob.errors import ResultError
from nbtorchjob.machine import folders
from nbtorchjob.state.facts.events import ValueReady
from tests.patience import LIMIT

PICKLED = f"value(object(), dump=lambda *_: {pickle.dumps({1, 2})!r})"


def elsewhere(job, tmp_path, monkeypatch):
    """Switch to a machine that knows nothing of the job; return the job's address."""
    monkeypatch.setenv(folders.STATE, str(tmp_path / "another machine"))
    find.forget()
    return job.info.address


@pytest.mark.parametrize("foreign", ["run='1.5'", "round_=7", "rank=1"], ids=["job", "round", "rank"])
def test_a_value_of_another_job_round_or_rank_is_refused(foreign, stage):
    job = stage.submit(f"begin()\nvalue(1, {foreign})")
    with pytest.raises(ResultError, match="can't be trusted"):
        job.result(LIMIT)


def test_of_a_job_that_was_submitted_elsewhere_only_data_is_taken(stage, tmp_path, monkeypatch):
    data, code = stage.submit("begin(); value({'loss': 0.5})"), stage.submit(f"begin(); {PICKLED}", cell="2")
    assert code.result(LIMIT) == {1, 2}
    assert data.wait(LIMIT)
    # The job's label names this user, as anybody's label can.
    named = elsewhere(code, tmp_path, monkeypatch)

    assert api.attach(data.info.address).result(LIMIT) == {"loss": 0.5}
    with pytest.raises(ResultError, match=rf"%torchjob result {code.name} --trust"):
        api.attach(named).result(LIMIT)
    again = api.attach(named).retry()
    with pytest.raises(ResultError, match="wasn't submitted from here"):
        again.result(LIMIT)
    assert api.attach(named, trust=True).result(LIMIT) == {1, 2}


def test_a_job_that_is_gone_with_its_key_has_no_value_that_can_be_checked(stage):
    job = stage.submit("begin(); value(1)")
    job.wait(LIMIT)
    stage.delete("apis/batch/v1/{}/jobs", job.name)
    find.forget()
    [folder] = Scope("", stage.namespace).folders(job.name)
    (folder / "key").unlink()

    with pytest.raises(ResultError, match="its key"):
        api.attach(job.name).result(LIMIT)


HERE = "s3://bucket/jobs"
FILE = "round-3-rank-1.value"


@pytest.mark.parametrize("storage", [HERE, f"{HERE}/", "/mnt/jobs", "file:///mnt/jobs"])
def test_a_value_is_where_its_rank_writes(storage):
    url = stores.inside(storage, f"train-7k2q/{FILE}")
    assert stores.holds(storage, ValueReady(0.0, 1, 3, f"{url}#00", 5))


@pytest.mark.parametrize(
    ("storage", "url"),
    [
        (None, f"/mnt/jobs/train-7k2q/{FILE}"),
        (HERE, "/dev/zero"),
        (HERE, "file:///etc/shadow"),
        (HERE, "http://169.254.169.254/latest"),
        (HERE, f"s3://other/train-7k2q/{FILE}"),
        (HERE, f"{HERE}-2/train-7k2q/{FILE}"),
        (HERE, f"{HERE}/{FILE}"),
        (HERE, f"{HERE}/../train-7k2q/{FILE}"),
        (HERE, f"{HERE}/../{FILE}"),
        (HERE, f"{HERE}/a/b/{FILE}"),
        (HERE, f"{HERE}/train-7k2q/round-3-rank-2.value"),
        (HERE, f"{HERE}/train-7k2q/{FILE}?x"),
        (HERE, f"simplecache::{HERE}/train-7k2q/{FILE}"),
        ("http://169.254.169.254", f"http://169.254.169.254/train-7k2q/{FILE}"),
        ("simplecache::http://inside", f"simplecache::http://inside/train-7k2q/{FILE}"),
    ],
)
def test_a_value_is_looked_for_nowhere_else(storage, url):
    assert not stores.holds(storage, ValueReady(0.0, 1, 3, f"{url}#00", 5))


def test_a_value_that_is_said_to_be_elsewhere_is_not_opened(stage, folder):
    pipe = folder / "pipe"
    claim = f"tell('ValueReady', rank=0, round=0, ref='{pipe}#00', size=5)"
    job = stage.submit(f"begin(); {claim}", storage=str(folder))
    with pytest.raises(ResultError, match="isn't in the job's --storage"):
        job.result(LIMIT)


def test_no_more_is_read_of_a_stores_file_than_was_announced(stage, folder):
    part = (
        "where = os.environ['NBTORCHJOB_STORAGE'] + '/round-0-rank-0.value'; "
        "os.mkdir(os.path.dirname(where)); open(where, 'wb').write(b'x' * 100); "
        "tell('ValueReady', rank=0, round=0, ref=f'{where}#00', size=5)"
    )
    job = stage.submit(f"begin(); {part}", storage=str(folder))
    with pytest.raises(ResultError, match="bigger than the 5 bytes"):
        job.result(LIMIT)
