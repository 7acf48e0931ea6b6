"""The emulator's watches leave nothing out, whenever a bookmark comes."""

import json

import pytest

from tests.backends.kubernetes.cluster.deletion import delete
from tests.backends.kubernetes.cluster.resources import PODS
from tests.backends.kubernetes.cluster.server import Call
from tests.backends.kubernetes.cluster.store import Store, age
from tests.backends.kubernetes.cluster.watches import Watch
from tests.patience import LIMIT


@pytest.fixture
def store():
    return Store()


def watching(store, **query):
    return Watch(store, Call("watch", PODS, "here", "", "", query, {}, "ada", {}))


def create(store, name):
    store.create(PODS, store.prepare(PODS, {"metadata": {"name": name, "namespace": "here"}}))


def told(lines):
    """Return the names of the objects in a watch's lines; a bookmark has none."""
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


# A real server computes the same times (recorded with 1.36), except for its rounding.
def test_a_pod_that_is_deleted_again_ends_sooner_and_at_once_is_now(store):
    create(store, "one")
    watch = watching(store, resourceVersion=str(store.revision))
    bound = {**store.find(PODS, "here", "one"), "spec": {"nodeName": "host"}}
    delete(store, PODS, store.replace(PODS, bound), {"gracePeriodSeconds": 1000})
    for grace in (2000, 600, 0):
        delete(store, PODS, store.find(PODS, "here", "one"), {"gracePeriodSeconds": grace})

    metas = [json.loads(line)["object"]["metadata"] for line in watch.news()]
    graces = [(meta["deletionGracePeriodSeconds"], -age(meta["deletionTimestamp"])) for meta in metas[1:]]
    assert [grace for grace, _ in graces] == [1000, 600, 0, 0]
    assert all(abs(left - grace) < LIMIT for grace, left in graces)
