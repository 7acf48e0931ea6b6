"""The server's knowledge of all jobs, updated look by look."""

import asyncio
import json
import threading
from typing import Any

import pytest

from nbtorchjob.backends.kubernetes.backend import KubernetesBackend
from nbtorchjob.backends.local.backend import LocalBackend
from nbtorchjob.errors import NBTorchJobError
from nbtorchjob.frontends.server.handlers import JobId, Lanes
from nbtorchjob.frontends.server.watch import Watch
from nbtorchjob.state import JobInfo, JobState
from nbtorchjob.ui.record import record
from tests.backends.local.acted import Acted
from tests.frontends.server.conftest import error, jobs

FOREVER = 3600.0  # so that only the test's own actions cause another look at a scope
LATER = 151.0


class Page:
    """A watch and the changes that it reports."""

    def __init__(self, **how):
        self.now, self.told, self.news = 0.0, [], asyncio.Event()
        every = {"local": FOREVER, "kubernetes": FOREVER}
        self.watch = Watch(Lanes(60.0, 4), every, self.tell, clock=lambda: self.now, **how)

    def tell(self, changes):
        self.told.append(changes)
        self.news.set()

    async def ids(self):
        """Return the ids of all jobs."""
        return [job["id"] for job in (await self.watch.jobs())[0]]

    async def all(self):
        """Return the records of all jobs, and notes on why some may be missing."""
        records, notes = await self.watch.jobs()
        return records, [note.text for note in notes]

    async def look(self, job):
        """Look again at a job's scope; return the changes reported meanwhile."""
        self.told.clear()
        self.watch.again(JobId.parse(id_of(job)))
        await self.watch.jobs()
        return self.told


def id_of(job):
    return f"local:{job.name}"


@pytest.fixture
def act(tmp_path, monkeypatch):
    """Return the class that makes a job, in a state folder of the test's own."""
    monkeypatch.setenv("NBTORCHJOB_STATE_DIR", str(tmp_path / "state"))
    return Acted


@pytest.fixture
def page(act, jp_asyncio_loop):
    """Yield a page that has received no changes yet."""
    page = Page(roots=("/home/ada", "/data/ada"))
    yield page
    jp_asyncio_loop.run_until_complete(page.watch.stop())


@pytest.fixture
def impatient(act, jp_asyncio_loop):
    """Yield a page with a watch that waits only 0.1 s for clusters."""
    page = Page(patience=0.1)
    yield page
    jp_asyncio_loop.run_until_complete(page.watch.stop())


@pytest.fixture
def looks(monkeypatch):
    """Return the scopes of all looks at this machine, which leave no other trace."""
    scopes, plain = [], LocalBackend.summaries

    def counted(self, make, **options):
        scopes.append(options["scope"])
        return plain(self, make, **options)

    monkeypatch.setattr(LocalBackend, "summaries", counted)
    return scopes


class Far:
    """Namespaces of clusters: the jobs in each, or the error that it answers with.

    Patches the backend that the watch asks, so that several clusters refuse, hang and recover on demand.
    """

    def __init__(self, monkeypatch):
        self.scopes, self.hang = dict[str, Any](), threading.Event()
        monkeypatch.setattr(KubernetesBackend, "scopes", lambda _: [*self.scopes])
        monkeypatch.setattr(KubernetesBackend, "jobs", lambda _, *, scope, **_all: self.jobs(scope))

    def jobs(self, scope):
        answer = self.scopes[scope]
        if answer is None:
            self.hang.wait()
            return []
        if isinstance(answer, Exception):
            raise answer
        return [self.state(scope, name) for name in answer]

    def state(self, scope, name):
        context, namespace = scope.split("/")
        where = {"context": context, "namespace": namespace, "kind": "indexedjob"}
        return JobState(JobInfo(name, "kubernetes", 1.0, cluster=where))


@pytest.fixture
def far(monkeypatch):
    """Yield clusters that the test controls."""
    clusters = Far(monkeypatch)
    yield clusters
    clusters.hang.set()


async def test_what_is_known_is_given_without_another_look(act, page, looks):
    job = act()

    assert await page.ids() == await page.ids() == [id_of(job)]
    assert looks == [""]
    assert page.told == []  # the first answer isn't a change


async def test_changes_are_told_once(act, page):
    job, other = act(), act()
    await page.ids()
    job.begin()
    other.remove()

    [changes] = await page.look(job)
    assert [(record["id"], record["phase"]) for record in changes.changed] == [(id_of(job), "RUNNING")]
    assert changes.removed == [id_of(other)]
    assert await page.look(job) == []


async def test_time_that_passes_is_no_change(act, page, monkeypatch):
    job = act()
    job.begin()
    for seq in range(3):
        job.folder.emit("Reported", rank=0, round=0, seq=seq, metrics={"step": seq, "steps": 9})
    [first], _ = await page.watch.jobs()
    assert await page.look(job) == []
    [second], _ = await page.watch.jobs()

    assert second["elapsed"] > first["elapsed"]
    assert first["progress"]["done"] == 3


async def test_nobody_asks_and_nothing_is_looked_at(act, page, looks):
    job = act()
    await page.ids()
    page.now = LATER
    page.watch.again(JobId.parse(id_of(job)))
    other = act()

    for _ in range(20):  # enough for all that the loop has to do: no thread takes part
        await asyncio.sleep(0)
    assert looks == [""]
    assert await page.ids() == [id_of(job), id_of(other)]
    assert looks == ["", ""]
    [changes] = page.told  # another page may have seen the earlier list
    assert [record["id"] for record in changes.changed] == [id_of(other)]


async def test_one_job_is_given_from_the_last_look(act, page):
    job = act()
    id = JobId.parse(id_of(job))
    assert page.watch.job(id) is None
    await page.ids()

    assert page.watch.job(id)["name"] == job.name
    assert page.watch.job(JobId.parse("local:other")) is None
    page.watch.again(id)
    assert page.watch.job(id) is None


async def test_a_cluster_that_refuses_is_a_note_until_it_answers(act, page, far):
    job = act()
    far.scopes = {"big/ml": NBTorchJobError("it is closed"), "big/dev": ["train"]}
    records, notes = await page.all()

    assert [record["id"] for record in records] == ["kubernetes:big/dev/train", id_of(job)]
    assert notes == ["jobs in big/ml can't be listed: it is closed"]
    assert page.watch.job(JobId("kubernetes", "big/ml/train")) is None

    far.scopes["big/ml"] = ["other"]
    page.watch.again(JobId("kubernetes", "big/ml/other"))
    records, notes = await page.all()
    assert (len(records), notes) == (3, [])


async def test_what_a_cluster_had_stays_known_while_it_refuses(page, far):
    far.scopes = {"big/ml": ["train"]}
    await page.ids()
    far.scopes = {"big/ml": NBTorchJobError("it is closed")}
    page.watch.again(JobId("kubernetes", "big/ml/train"))
    records, notes = await page.all()

    assert [record["id"] for record in records] == ["kubernetes:big/ml/train"]
    assert notes == ["jobs in big/ml can't be listed: it is closed"]
    assert page.watch.job(JobId("kubernetes", "big/ml/train")) is None  # the server asks its cluster instead


async def test_an_error_that_nobody_foresaw_is_logged_and_noted(page, far, caplog):
    far.scopes = {"big/ml": RuntimeError("oops")}
    _, notes = await page.all()

    assert notes == ["jobs in big/ml can't be listed: see the Jupyter server's log"]
    assert "oops" in caplog.text


async def test_the_log_tells_the_same_error_once(page, far, caplog):
    far.scopes = {"big/ml": RuntimeError("oops")}
    counts = []
    for message in ("oops", "oops", "other"):
        far.scopes = {"big/ml": RuntimeError(message)}
        page.watch.again(JobId("kubernetes", "big/ml/train"))
        await page.watch.jobs()
        counts.append(len(caplog.records))

    assert counts == [1, 1, 2]


async def test_a_job_of_which_no_record_can_be_made_hides_no_other(act, page, monkeypatch, caplog):
    good, bad = act(), act()

    def made(state, *more):
        if state.info.name == bad.name:
            raise ZeroDivisionError
        return record(state, *more)

    # Stands for a folder of an unknown kind: a state can be read from it, but no record can be made.
    monkeypatch.setattr("nbtorchjob.frontends.server.watch.record", made)
    assert await page.ids() == [id_of(good)]
    await page.look(good)
    assert len(caplog.records) == 1


async def test_a_damaged_job_is_told_of_in_a_line_and_can_be_deleted(act, server):
    job, other = act(), act()
    job.lose()
    (job.folder.path / "job.json").write_text("")
    listed = json.loads((await server.get(jobs())).body)

    assert [record["id"] for record in listed["jobs"]] == [id_of(other)]
    code, message = error(await server.get(jobs(id_of(job))))
    assert code == 409
    assert f"the record of {job.name} can't be read" in message
    assert (await server.post(jobs(id_of(job), "cancel"))).code == 204
    assert (await server.ask("DELETE", jobs(id_of(job)))).code == 204
    assert not job.folder.path.exists()


async def test_a_cluster_that_hangs_delays_nobody(act, impatient, far):
    job = act()
    far.scopes = {"big/ml": None, "big/dev": ["train"]}
    records, notes = await impatient.all()

    assert [record["id"] for record in records] == ["kubernetes:big/dev/train", id_of(job)]
    assert notes == ["jobs in big/ml aren't listed yet: it hasn't answered"]


async def test_which_jobs_may_be_missing_is_told_by_how_their_ids_begin(impatient, far):
    far.scopes = {"big/ml": None, "big/dev": NBTorchJobError("it is closed"), "far/ml": ["train"]}
    _, notes = await impatient.watch.jobs()

    assert sorted(note.ids for note in notes) == ["kubernetes:big/dev/", "kubernetes:big/ml/"]


async def test_where_jobs_are_that_nobody_has_found_yet_any_may_be_missing(impatient, monkeypatch, far):
    monkeypatch.setattr(KubernetesBackend, "scopes", lambda _: far.hang.wait() and [])
    _, [note] = await impatient.watch.jobs()

    assert (note.ids, note.text) == ("kubernetes:", "jobs (kubernetes) aren't listed yet")


async def test_what_was_seen_long_ago_may_have_changed(impatient, far):
    far.scopes = {"big/ml": ["train"]}
    _, notes = await impatient.all()
    assert notes == []
    await impatient.watch.stop()  # as when nobody asks
    impatient.now += LATER
    far.scopes = {"big/ml": None}
    records, notes = await impatient.all()

    assert [record["id"] for record in records] == ["kubernetes:big/ml/train"]
    assert notes == ["jobs in big/ml may have changed: it hasn't answered"]


async def test_what_came_too_late_for_the_answer_is_told(impatient, far):
    far.scopes = {"big/ml": None}
    assert await impatient.ids() == []
    far.scopes = {"big/ml": ["train"]}
    far.hang.set()
    impatient.watch.again(JobId("kubernetes", "big/ml/train"))
    await impatient.news.wait()

    [changes] = impatient.told
    assert [record["id"] for record in changes.changed] == ["kubernetes:big/ml/train"]


async def test_a_watch_is_stopped_while_a_cluster_hangs(impatient, far):
    far.scopes = {"big/ml": None}
    await impatient.ids()
    await impatient.watch.stop()

    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_scopes_come_and_go(page, far):
    far.scopes = {"big/ml": ["train"]}
    assert await page.ids() == ["kubernetes:big/ml/train"]
    await page.watch.stop()
    far.scopes = {"big/dev": ["other"]}

    assert await page.ids() == ["kubernetes:big/dev/other"]
    assert ["kubernetes:big/ml/train"] in [changes.removed for changes in page.told]


class TestSeldom:
    """A server that looks at jobs once an hour, unless something causes a look."""

    @pytest.fixture
    def jp_server_config(self, jp_server_config):
        """Set the intervals as an administrator would."""
        jp_server_config["TorchJobApp"] |= {"here_s": FOREVER, "clusters_s": FOREVER}
        return jp_server_config

    async def test_what_is_done_through_the_server_is_seen_at_once(self, act, server):
        job, other = act(), act()
        job.lose()
        before = json.loads((await server.get(jobs())).body)["jobs"]
        assert (await server.ask("DELETE", jobs(id_of(job)))).code == 204
        after = json.loads((await server.get(jobs())).body)["jobs"]

        assert [record["id"] for record in before] == [id_of(job), id_of(other)]
        assert [record["id"] for record in after] == [id_of(other)]

    async def test_one_job_is_not_read_again_for_each_who_asks(self, act, server):
        job = act()
        await server.get(jobs())
        (job.folder.path / "job.json").write_text("")
        answer = json.loads((await server.get(jobs(id_of(job)))).body)

        assert answer["name"] == job.name


@pytest.mark.parametrize(
    ("path", "served"),
    [
        ("/home/ada/a/b.ipynb", "a/b.ipynb"),
        ("/data/ada/c.ipynb", "c.ipynb"),
        ("/home/adam/d.ipynb", ""),
        ("/home/ada/../eve/e.ipynb", ""),
        ("", ""),
    ],
)
async def test_a_notebook_is_where_the_server_has_it(act, page, path, served):
    job = act()
    document = json.loads((job.folder.path / "job.json").read_text())
    document["info"]["notebook"] = path
    (job.folder.path / "job.json").write_text(json.dumps(document))
    [entry], _ = await page.watch.jobs()

    assert entry["notebook"] == served


async def test_a_forged_fact_stops_no_answer(server, act):
    job = act()
    job.begin()
    job.folder.emit("NodeStarted", node=0, host="h", run=2_000_000_000, attempt=2_000_000_000)
    job.folder.emit("Reported", rank=0, round=0, seq=0, metrics={"epoch": float("nan"), "epochs": 1e308})
    job.folder.emit("Closed", time=1e308)
    id_ = f"local:{job.name}"

    listed = json.loads((await server.get(jobs())).body)["jobs"]
    answers = [await server.get(jobs(id_, *parts)) for parts in ((), ("describe",), ("logs", "0"))]

    assert [record["phase"] for record in listed if record["id"] == id_] == ["RUNNING"]
    assert [answer.code for answer in answers] == [200, 200, 200]
