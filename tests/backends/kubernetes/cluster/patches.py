"""The three kinds of PATCH that clients send."""

from collections.abc import Callable
from typing import Any

from tests.backends.kubernetes.cluster.refusals import Refusal
from tests.backends.kubernetes.cluster.resources import Object, Resource, copied

# Keys by which a strategic merge joins lists of objects, by the list's name; it replaces others whole.
MERGE_KEYS = {
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "replicatedJobs": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
}
# Lists of plain values that a strategic merge extends.
MERGE_SETS = ("finalizers",)


def merge(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value)
    return result


def strategic(target: Any, patch: Any) -> Any:
    """Apply a strategic merge patch, as far as lists of MERGE_KEYS and `$patch: delete` go."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif name in MERGE_KEYS and isinstance(value, list):
            result[name] = _join(result.get(name) or [], value, MERGE_KEYS[name])
        elif name in MERGE_SETS and isinstance(value, list):
            result[name] = [
                *result.get(name, []),
                *(entry for entry in value if entry not in result.get(name, [])),
            ]
        elif not name.startswith("$"):
            result[name] = strategic(result.get(name), value)
    return result


def _join(old: list[Object], new: list[Object], key: str) -> list[Object]:
    joined = {entry.get(key): entry for entry in old}
    for entry in new:
        if entry.get("$patch") == "delete":
            joined.pop(entry.get(key), None)
        else:
            joined[entry.get(key)] = strategic(joined.get(entry.get(key)), entry)
    return list(joined.values())


def _json(target: Any, patch: Any) -> Any:
    """Apply a JSON patch (RFC 6902) of add, replace, remove and test."""
    for step in patch:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
        holder = target
        try:
            for part in parents:
                holder = holder[int(part)] if isinstance(holder, list) else holder[part]
            _step(holder, last, step)
        except (KeyError, IndexError, ValueError) as error:
            text = f"the server rejected our request due to an error in our request: {step['path']}"
            raise Refusal(422, text) from error
    return target


def _step(holder: Any, last: str, step: Object) -> None:
    if isinstance(holder, list) and step["op"] == "add":
        holder.insert(len(holder) if last == "-" else int(last), step["value"])
        return
    place: Any = int(last) if isinstance(holder, list) else last
    if step["op"] != "add":
        value = holder[place]
        if step["op"] == "test" and value != step["value"]:
            raise ValueError(step["path"])
    if step["op"] == "remove":
        del holder[place]
    elif step["op"] in ("add", "replace"):
        holder[place] = step["value"]


MERGE, STRATEGIC, JSON = (
    f"application/{name}+json" for name in ("merge-patch", "strategic-merge-patch", "json-patch")
)
KINDS: dict[str, Callable[[Any, Any], Any]] = {MERGE: merge, STRATEGIC: strategic, JSON: _json}


def apply(resource: Resource, target: Object, patch: Any, content_type: str) -> Object:
    """Apply a patch of that content type; refuse a type that the resource doesn't accept, with 415."""
    kind = content_type.split(";")[0].strip()
    if kind not in KINDS or (kind == STRATEGIC and resource.custom):
        accepted = [JSON, MERGE, *(() if resource.custom else (STRATEGIC,)), "application/apply-patch+yaml"]
        raise Refusal(
            415,
            "the body of the request was in an unknown format - accepted media types include: "
            + ", ".join(accepted),
        )
    result: Object = KINDS[kind](copied(target), patch)
    return result
