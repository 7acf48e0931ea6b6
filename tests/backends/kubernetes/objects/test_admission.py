"""The admission policy of a tender's manifests, evaluated as an API server does: by its CEL expressions."""

import pytest

from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.objects import admission, labelling

celpy = pytest.importorskip("celpy")

# What only an API server can ask; ``may`` is its answer.
ASKS = admission._ASKS


def attempt(name, number="2", owner="train", user="ada"):
    labels = {labelling.JOB: "train", labelling.ATTEMPT: number, labelling.USER: user, labelling.RUN: "1"}
    owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": "a"}]
    return {"metadata": {"name": name, "labels": labels, "ownerReferences": owners}}


def admitted(obj, before=None, *, may=True):
    """Whether an object is created, or changed from what it was before; None where the policy isn't asked."""
    policy, _ = admission.policy("tender", ["ml"], [kind.api for kind in KINDS.values()])
    known = {"object": obj, "oldObject": before, "may": may}
    environment = celpy.Environment()

    def says(part):
        tree = environment.compile(part["expression"].replace(ASKS, "may"))
        return environment.program(tree).evaluate({k: celpy.json_to_cel(v) for k, v in known.items()})

    if not all(map(says, policy["spec"]["matchConditions"])):
        return None
    return all(map(says, policy["spec"]["validations"]))


ANOTHERS = {"metadata": {"name": "train-a2", "labels": {"app": "x"}}}


@pytest.mark.parametrize(
    ("obj", "before", "may", "expected"),
    [
        (attempt("train-a2"), None, True, True),
        (attempt("train-a2"), None, False, False),
        (attempt("evil"), None, True, False),
        (attempt("train-a3"), None, True, False),
        (attempt("train-a2", owner="other"), None, True, False),
        (attempt("train-a2"), ANOTHERS, False, False),
        (attempt("train-a2"), attempt("train-a2", user="eve"), False, False),
        (attempt("train-a2"), attempt("train-a2"), False, None),  # an operator adds something else
        (attempt("train", "1"), None, False, None),
        ({"metadata": {"name": "other"}}, None, False, None),
    ],
)
def test_a_later_attempt_is_admitted_from_whoever_may_change_its_job(obj, before, may, expected):
    assert admitted(obj, before, may=may) is expected


def test_the_policy_is_asked_of_every_kind_and_only_in_the_tenders_namespaces():
    policy, binding = admission.policy("tender", ["ml"], [kind.api for kind in KINDS.values()])
    rules = policy["spec"]["matchConstraints"]["resourceRules"]
    assert {(*rule["apiGroups"], *rule["resources"]) for rule in rules} == {
        (kind.api.group, kind.api.plural) for kind in KINDS.values()
    }
    (where,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert where["values"] == ["ml"]
