"""The admission policy of a tender's manifests, evaluated as an API server does: by its CEL expressions."""

import sys

import pytest

from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.objects import admission, labelling

celpy = pytest.importorskip("celpy")

# What only an API server can ask; ``may`` is its answer.
ASKS = admission._ASKS


def attempt(name, number="2", owner="train", **labels):
    known = {labelling.JOB: "train", labelling.ATTEMPT: number, labelling.USER: "ada", labelling.RUN: "1"}
    owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": "a"}] if owner else []
    labels = {label: value for label, value in {**known, **labels}.items() if value}
    meta = {"name": name, "labels": labels, **({"ownerReferences": owners} if owners else {})}
    return {"metadata": meta}


def admitted(obj, before=None, *, may=True, without=None):
    """Whether an object is created, or changed from what it was before; None where the policy isn't asked.

    Without the rule of that number, if one is given: conditions first, then validations.
    """
    policy, _ = admission.policy("tender", ["ml"], [kind.api for kind in KINDS.values()])
    known = {"object": obj, "oldObject": before, "may": may}
    limit = sys.getrecursionlimit()
    environment = celpy.Environment()
    sys.setrecursionlimit(limit)  # which celpy has raised for good: other tests carry it to ranks

    def says(part):
        tree = environment.compile(part["expression"].replace(ASKS, "may"))
        try:
            return environment.program(tree).evaluate({k: celpy.json_to_cel(v) for k, v in known.items()})
        except celpy.CELEvalError:
            return False  # so says failurePolicy

    parts = [(key, part) for key in ("matchConditions", "validations") for part in policy["spec"][key]]
    rules = [rule for number, rule in enumerate(parts) if number != without]
    assert len(rules) == len(parts) - (without is not None)
    assert policy["spec"]["failurePolicy"] == "Fail"
    if not all(says(part) for key, part in rules if key == "matchConditions"):
        return None
    return all(says(part) for key, part in rules if key == "validations")


OURS = (labelling.JOB, labelling.RUN, labelling.USER, labelling.ATTEMPT)
ANOTHERS = {"metadata": {"name": "train-a2", "labels": {"app": "x"}}}
# What is made, what it was before, whether its author may patch its job, and what becomes of it.
ASKED = [
    (attempt("train-a2"), None, True, True),
    (attempt("train-a2"), None, False, False),
    (attempt("evil"), None, True, False),
    (attempt("train-a3"), None, True, False),
    (attempt("train-a2", owner="other"), None, True, False),
    (attempt("train-a2", owner=""), None, True, False),
    (attempt("train-a2", **{labelling.JOB: ""}), None, True, False),
    (attempt("train-a2"), ANOTHERS, False, False),
    (attempt("train-a2"), {"metadata": {"name": "train-a2"}}, False, False),
    *((attempt("train-a2"), attempt("train-a2", **{label: "9"}), False, False) for label in OURS),
    *((attempt("train-a2"), attempt("train-a2", **{label: ""}), False, False) for label in OURS),
    (attempt("train-a2"), attempt("train-a2"), False, None),  # an operator adds something else
    (attempt("train", "1"), None, False, None),
    (attempt("train", ""), None, False, None),
    ({"metadata": {"name": "other"}}, None, False, None),
]


@pytest.mark.parametrize(("obj", "before", "may", "expected"), ASKED)
def test_a_later_attempt_is_admitted_from_whoever_may_change_its_job(obj, before, may, expected):
    assert admitted(obj, before, may=may) is expected


@pytest.mark.parametrize("number", range(5))
def test_each_rule_of_the_policy_decides_something(number):
    decided = [
        (obj, before)
        for obj, before, may, expected in ASKED
        if admitted(obj, before, may=may, without=number) is not expected
    ]
    assert decided


def test_the_policy_is_asked_of_every_kind_and_only_in_the_tenders_namespaces():
    policy, binding = admission.policy("tender", ["ml"], [kind.api for kind in KINDS.values()])
    rules = policy["spec"]["matchConstraints"]["resourceRules"]
    assert all(rule["operations"] == ["CREATE", "UPDATE"] for rule in rules)
    assert {(*rule["apiGroups"], *rule["resources"]) for rule in rules} == {
        (kind.api.group, kind.api.plural) for kind in KINDS.values()
    }
    (where,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert where["values"] == ["ml"]
