"""The admission policy by which later attempts of a job are made only by whoever may change the job (pure).

A later attempt is told by its name, its labels and the uid of its owner, all of which whoever may create job
objects in a namespace may write. Kubernetes doesn't record who created an object, so only the API server can
ask that, at its creation: by a ValidatingAdmissionPolicy (admissionregistration.k8s.io/v1, Kubernetes 1.30).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.objects.paths import Api

_VERSION = "admissionregistration.k8s.io/v1"
_LABELS = "object.metadata.labels"
_BEFORE = "oldObject.metadata.labels"
_OWN = (labelling.JOB, labelling.RUN, labelling.USER, labelling.ATTEMPT)
_NUMBERED = f"has({_LABELS}) && '{labelling.ATTEMPT}' in {_LABELS} && {_LABELS}['{labelling.ATTEMPT}'] != '1'"
_JOB = f"{_LABELS}['{labelling.JOB}']"
_ASKS = (
    "authorizer.group(request.resource.group).resource(request.resource.resource)"
    f".namespace(request.namespace).name({_JOB}).check('patch').allowed()"
)


def policy(name: str, namespaces: Sequence[str], apis: Iterable[Api]) -> list[dict[str, Any]]:
    """Return the policy for job objects of these kinds, and what binds it to the namespaces."""
    rules = [
        {
            "apiGroups": [api.group],
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE"],
            "resources": [api.plural],
        }
        for api in apis
    ]
    named = f"object.metadata.name == {_JOB} + '-a' + {_LABELS}['{labelling.ATTEMPT}']"
    owned = (
        "has(object.metadata.ownerReferences) && "
        f"object.metadata.ownerReferences.exists(owner, owner.name == {_JOB})"
    )
    # Without the label of its job each of them is an error, which refuses the object, too.
    validations = [
        (named, "is named after its job"),
        (owned, "is owned by its job"),
        (_ASKS, "is made by whoever may patch its job"),
    ]
    return [
        {
            "apiVersion": _VERSION,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": rules},
                "matchConditions": [
                    {"name": "a-later-attempt", "expression": _NUMBERED},
                    {"name": "made-or-labelled-anew", "expression": _anew()},
                ],
                "validations": [
                    {
                        "expression": expression,
                        "message": f"a later attempt of a job of nbtorchjob {said}",
                        "reason": "Forbidden",
                    }
                    for expression, said in validations
                ],
            },
        },
        {
            "apiVersion": _VERSION,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {
                "policyName": name,
                "validationActions": ["Deny"],
                "matchResources": {
                    "namespaceSelector": {
                        "matchExpressions": [
                            {
                                "key": "kubernetes.io/metadata.name",
                                "operator": "In",
                                "values": [*namespaces],
                            }
                        ]
                    }
                },
            },
        },
    ]


def _anew() -> str:
    """Return whether an object is created, or gets other labels of ours: operators update the rest."""
    changed = (
        f"('{label}' in {_BEFORE} ? {_BEFORE}['{label}'] : '') != "
        f"('{label}' in {_LABELS} ? {_LABELS}['{label}'] : '')"
        for label in _OWN
    )
    return f"oldObject == null || !has({_BEFORE}) || {' || '.join(changed)}"
