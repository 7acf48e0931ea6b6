"""The emulator's watches leave nothing out, whenever a bookmark comes."""

import json

import pytest
from aiohttp.test_utils import make_mocked_request

from tests.kubernetes.cluster.resources import PODS
from tests.kubernetes.cluster.server import Call
from tests.kubernetes.cluster.store import Store
from tests.kubernetes.cluster.watches import Watch


@pytest.fixture
def store():
    return Store()


def watching(store, **query):
    http = make_mocked_request("GET", "/")
    return Watch(store, Call(http, "watch", PODS, "here", "", "", query, {}, "ada"))


def create(store, name):
    store.create(PODS, store.prepare(PODS, {"metadata": {"name": name, "namespace": "here"}}))


def told(lines):
    """Give the names of the objects that a watch tells of; a bookmark has none."""
    return [json.loads(line)["object"]["metadata"].get("name") for line in lines]


def test_a_change_just_before_a_bookmark_is_told_after_it(store):
    watch = watching(store, resourceVersion=str(store.revision), allowWatchBookmarks="true")
    assert told(watch.news()) == []
    create(store, "late")

    bookmark = json.loads(watch.bookmark())["object"]["metadata"]["resourceVersion"]

    assert int(bookmark) < store.revision
    assert told(watch.news()) == ["late"]


def test_a_bookmark_is_of_the_newest_revision_once_all_is_told(store):
    watch = watching(store, resourceVersion=str(store.revision), allowWatchBookmarks="true")
    create(store, "early")
    assert told(watch.news()) == ["early"]

    bookmark = json.loads(watch.bookmark())["object"]["metadata"]["resourceVersion"]

    assert int(bookmark) == store.revision


def test_a_change_while_the_first_objects_are_told_comes_after_them(store):
    create(store, "first")
    watch = watching(store, sendInitialEvents="true", allowWatchBookmarks="true")
    beginning = watch.beginning()
    first = next(beginning)
    create(store, "second")

    assert told([first, *beginning]) == ["first", None]
    assert told(watch.news()) == ["second"]
