"""Label and field selectors as query strings."""

import re
from collections.abc import Callable

from tests.backends.kubernetes.cluster.refusals import Refusal
from tests.backends.kubernetes.cluster.resources import Object, Resource

Test = Callable[[Object], bool]

SET = re.compile(r"^(?P<name>\S+) (?P<how>in|notin) ?\((?P<values>[^)]*)\)$")
EQUAL = re.compile(r"^(?P<name>[^=! ]+) ?(?P<how>!=|==?) ?(?P<value>[^=! ]*)$")
NAME = re.compile(r"^!?[A-Za-z0-9_./-]+$")
FIELDS = {"metadata.name", "metadata.namespace"}
# Only these resources have further fields that a selector may name.
MORE_FIELDS = {
    "pods": {"status.phase", "spec.nodeName", "status.podIP", "spec.restartPolicy"},
    "events": {
        *("involvedObject." + key for key in ("kind", "name", "namespace", "uid")),
        *("reason", "type", "reportingComponent"),
    },
    "secrets": {"type"},
}


def by_labels(text: str) -> Test:
    """Return a test of an object's labels for `a=b,c in (d,e),!f`; 400 if it doesn't parse."""
    tests = [_label_test(part.strip()) for part in re.split(r",(?![^(]*\))", text) if part.strip()]
    return lambda obj: all(test(obj["metadata"].get("labels") or {}) for test in tests)


def _label_test(part: str) -> Test:
    if match := SET.match(part):
        name, values = match["name"], {value.strip() for value in match["values"].split(",")}
        if match["how"] == "in":
            return lambda labels: labels.get(name) in values
        return lambda labels: labels.get(name) not in values
    if match := EQUAL.match(part):
        name, value = match["name"], match["value"]
        if match["how"] == "!=":
            return lambda labels: labels.get(name) != value
        return lambda labels: labels.get(name) == value
    if NAME.match(part):
        return lambda labels: (part.lstrip("!") in labels) != part.startswith("!")
    raise Refusal(400, "unable to parse requirement: found '=', expected: identifier")


def by_fields(resource: Resource, text: str) -> Test:
    """Return a test of an object's fields for `metadata.name=x`; 400 for fields that aren't selectable."""
    tests = []
    for part in filter(None, text.split(",")):
        match = EQUAL.match(part)
        fields = FIELDS | (MORE_FIELDS.get(resource.plural, set()) if not resource.group else set())
        if match is None or match["name"] not in fields:
            raise Refusal(400, f"field label not supported: {match['name'] if match else part}")
        tests.append(_field_test(match["name"], match["value"], match["how"] != "!="))
    return lambda obj: all(test(obj) for test in tests)


def _field_test(path: str, value: str, equal: bool) -> Test:
    def test(obj: Object) -> bool:
        field: object = obj
        for name in path.split("."):
            field = field.get(name, "") if isinstance(field, dict) else ""
        return (field == value) == equal

    return test


def both(resource: Resource, labels: str, fields: str) -> Test:
    """Return the two selectors of a request as one test."""
    of_labels, of_fields = by_labels(labels), by_fields(resource, fields)
    return lambda obj: of_labels(obj) and of_fields(obj)
