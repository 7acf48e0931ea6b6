"""A value that is too big for the log: the store holds it whole, or a message states why not."""

import pytest

from nbtorchjob.runtime import store
from nbtorchjob.runtime.objects import wire
from nbtorchjob.runtime.objects.wire import WireError, Withheld, read_value
from nbtorchjob.runtime.store.payload import PayloadError

KEY = b"k" * 32


@pytest.fixture
def value(folder):
    """Return the path of a file that is too big for the log."""
    path = folder / "rank-0.value"
    path.write_bytes(b"x" * (store.BY_LOG + 1))
    return str(path)


def test_a_small_value_stays_where_it_is(folder):
    path = folder / "rank-0.value"
    path.write_bytes(b"small")
    assert store.put(str(path), "r0", KEY) == ("log#" + wire.sign(b"small", KEY).hex(), 5)


@pytest.mark.parametrize(
    "form", ["{0}/shelf", "file://{0}/shelf", "file://{0}/a%20shelf", "local://{0}/shelf"]
)
def test_what_was_stored_is_fetched(form, value, folder, monkeypatch):
    monkeypatch.setenv(store.STORAGE, form.format(folder))
    if form.startswith("local"):
        pytest.importorskip("fsspec")
        (folder / "shelf").mkdir()
    store.check()
    ref, size = store.put(value, "r0", KEY)
    assert size == store.BY_LOG + 1
    store.fetch(ref, str(folder / "back"), KEY, size)
    assert (folder / "back").stat().st_size == size
    assert not list(folder.rglob("*.partial"))


def test_what_was_changed_in_the_store_is_refused(value, folder, monkeypatch):
    monkeypatch.setenv(store.STORAGE, str(folder / "shelf"))
    store.check()
    ref, size = store.put(value, "r0", KEY)
    (folder / "shelf" / "r0").write_bytes(b"y" * (store.BY_LOG + 1))
    with pytest.raises(WireError, match="isn't what this job's rank stored"):
        store.fetch(ref, str(folder / "back"), KEY, size)


@pytest.mark.parametrize(("url", "says"), [("", "set --storage"), ("/proc/nosuch", "refused it")])
def test_a_value_that_can_not_be_stored_says_so_in_its_place(url, says, value, monkeypatch):
    monkeypatch.setenv(store.STORAGE, url)
    ref, size = store.put(value, "r0", KEY)
    assert ref.startswith("log#")
    assert size < 1000
    got = read_value(value, lambda *_: 1 / 0, KEY)
    assert isinstance(got, Withheld)
    assert got.size == store.BY_LOG + 1
    assert says in got.reason


@pytest.mark.parametrize("url", ["/proc/nosuch", "nosuch://bucket"])
def test_a_store_that_can_not_be_written_to_is_found_before_the_work(url, monkeypatch):
    monkeypatch.setenv(store.STORAGE, url)
    with pytest.raises(PayloadError, match=f"--storage {url} from this image"):
        store.check()
