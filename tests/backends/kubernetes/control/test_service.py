"""A tender as a process: its Lease, its namespaces and its health."""

import logging
import time
from functools import partial

import pytest
import yaml

from nbtorchjob.backends.kubernetes.control import service
from nbtorchjob.backends.kubernetes.control.service import Background, Service
from nbtorchjob.backends.kubernetes.namespaces import Scope
from nbtorchjob.errors import NBTorchJobError
from tests.backends.kubernetes.stage import until


def tends(tender):
    """Whether a service looks after jobs in a namespace."""
    return any(place["tending"] for place in tender.figures()["namespaces"].values())


@pytest.mark.parametrize(
    ("one", "other"), [("ann.lee", "ann_lee"), ("ann-lee", "Ann-Lee"), (50 * "e", 51 * "e"), ("李雷", "all")]
)
def test_users_with_names_that_look_alike_each_have_their_tender(stage, monkeypatch, one, other):
    running = []
    for name in (one, other):
        monkeypatch.setenv("JUPYTERHUB_USER", name)
        tender = Service(lambda: [Scope("", stage.namespace)], name, everyone=name == "all")
        running.append(Background(tender))
        until(partial(tends, tender))
    for background in running:
        background.stop()


def test_a_namespace_that_two_contexts_lead_to_is_looked_after_by_way_of_one(stage, monkeypatch, caplog):
    monkeypatch.setattr(service, "BEAT_S", 0.05)
    caplog.set_level(logging.INFO, "nbtorchjob.tending")
    context = yaml.safe_load(stage.cluster.kubeconfig.read_text())["current-context"]
    tender = Service(lambda: [Scope("", stage.namespace), Scope(context, stage.namespace)], "a test")
    background = Background(tender)
    until(partial(tends, tender))
    time.sleep(1.0)  # 20 beats
    places = [place["tending"] for place in tender.figures()["namespaces"].values()]
    log = caplog.text
    background.stop()

    assert sorted(places) == [False, True]
    assert log.count("looking after") == 1


def test_a_tender_that_can_look_for_no_new_namespace_keeps_those_it_has(stage, monkeypatch, caplog):
    monkeypatch.setattr(service, "_FIND_S", 0.05)
    answers = [[Scope("", stage.namespace)]]

    def scopes():
        if not answers:
            raise NBTorchJobError("the state folder belongs to somebody else")
        return answers.pop()

    tender = Service(scopes, "a test")
    background = Background(tender)
    until(lambda: "the state folder belongs to somebody else" in caplog.text)
    until(partial(tends, tender))
    background.stop()
    assert caplog.text.count("the state folder belongs") == 1


def test_a_tender_that_waits_for_another_is_well_once_its_trouble_is_over(stage, monkeypatch):
    monkeypatch.setattr(service, "BEAT_S", 0.05)
    monkeypatch.setattr(service, "_AGAIN_S", 0.5)
    active, waiting = (Service(lambda: [Scope("", stage.namespace)], who) for who in ("one", "another"))
    running = [Background(active)]
    until(partial(tends, active))
    stage.cluster.trouble(400, "leases", method="GET")
    running.append(Background(waiting))
    until(lambda: not waiting.well)
    until(lambda: waiting.well)
    for background in running:
        background.stop()
