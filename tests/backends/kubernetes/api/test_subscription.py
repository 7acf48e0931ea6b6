"""A slow subscriber's queue: the newest state of each object, and when the object was first deleted."""

import asyncio

import pytest

from nbtorchjob.backends.kubernetes.api.reflector import ADDED, DELETED, MODIFIED, Change, Subscription


def pod(name, version, **meta):
    return {"metadata": {"name": name, "uid": f"u-{name}", "resourceVersion": str(version), **meta}}


def deleted(until, grace):
    return {"deletionTimestamp": f"2026-01-01T00:00:{until}Z", "deletionGracePeriodSeconds": grace}


@pytest.fixture
def slow():
    return Subscription(lambda obj: True)


def taken(slow, *changes):
    for type_, obj in changes:
        slow.put(Change(type_, obj))
    return asyncio.run(slow.take())


def test_only_the_newest_state_waits_and_an_object_that_is_new_stays_new(slow):
    changes = taken(slow, (ADDED, pod("a", 1)), (ADDED, pod("b", 2)), (MODIFIED, pod("a", 3)))

    assert changes == [Change(ADDED, pod("b", 2)), Change(ADDED, pod("a", 3))]


# Recorded with Kubernetes 1.36: 5 s until :26, then, once its containers had ended, 0 s until :25.
def test_a_pod_that_was_deleted_and_has_ended_was_deleted_first(slow):
    first, last = pod("a", 2, **deleted(26, 5)), pod("a", 4, **deleted(25, 0))
    changes = taken(slow, (MODIFIED, first), (MODIFIED, last), (DELETED, last))

    assert changes == [Change(DELETED, pod("a", 4, **deleted(26, 5)))]


# A Volcano Job that is suspended, resumed and suspended again shows only the newest of its suspensions.
def test_whoever_wants_every_state_gets_them_in_order_up_to_a_bound():
    slow = Subscription(lambda obj: True, every=True)
    turns = [(ADDED, pod("a", 1)), (MODIFIED, pod("a", 2)), (MODIFIED, pod("a", 3)), (DELETED, pod("a", 3))]

    assert taken(slow, *turns) == [Change(*turns[0]), Change(*turns[1]), Change(*turns[3])]
    many = taken(slow, *((MODIFIED, pod("a", n)) for n in range(100_000)))
    assert len(many) < 1000
    assert many[-1].object == pod("a", 99_999)
