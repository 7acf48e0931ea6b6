"""Defaults and checks of Kubernetes' own resources: Secrets, Pods, Jobs, Services."""

import base64
import re
from collections.abc import Iterable
from typing import Any

from tests.backends.kubernetes.cluster.resources import (
    JOBS,
    NAMESPACES,
    PODS,
    SECRETS,
    SERVICES,
    Object,
    Resource,
)
from tests.backends.kubernetes.cluster.schemas import Cause

SECRET_LIMIT = 1024 * 1024
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an "
    "alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
JOB_NAME, JOB_UID = "batch.kubernetes.io/job-name", "batch.kubernetes.io/controller-uid"


def _wrong(field: str, value: Any, text: str) -> Cause:
    shown = f'"{value}"' if isinstance(value, str) else value
    return "FieldValueInvalid", f"Invalid value: {shown}: {text}", field


def problems(resource: Resource, obj: Object) -> Iterable[Cause]:
    """Return what is wrong with a new object."""
    if resource == SECRETS:
        return _secret(obj)
    if resource == PODS:
        return _pod_spec(obj.get("spec", {}), "spec")
    if resource == JOBS:
        return [*_job(obj), *_failure_policy(obj["spec"])]
    if resource == SERVICES and len(obj["metadata"]["name"]) > 63:
        return [_wrong("metadata.name", obj["metadata"]["name"], "must be no more than 63 characters")]
    return ()


def _secret(obj: Object) -> Iterable[Cause]:
    size = sum(len(base64.b64decode(encoded)) for encoded in (obj.get("data") or {}).values())
    size += sum(len(text.encode()) for text in (obj.get("stringData") or {}).values())
    if size > SECRET_LIMIT:
        yield "FieldValueTooLong", f"Too long: may not be more than {SECRET_LIMIT} bytes", "data"


def _pod_spec(spec: Object, path: str) -> Iterable[Cause]:
    for name in ("hostname", "subdomain"):
        value = spec.get(name)
        if value and (not LABEL.fullmatch(value) or len(value) > 63):
            yield _wrong(f"{path}.{name}", value, LABEL_RULE)
    if not spec.get("containers"):
        yield "FieldValueRequired", "Required value", f"{path}.containers"
    for index, container in enumerate(spec.get("containers", ())):
        if not container.get("image"):
            yield "FieldValueRequired", "Required value", f"{path}.containers[{index}].image"
        context = container.get("securityContext") or {}
        if context.get("privileged") and context.get("allowPrivilegeEscalation") is False:
            text = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
            yield _wrong(f"{path}.containers[{index}].securityContext", "", text)
    volumes = {volume["name"] for volume in spec.get("volumes") or ()}
    for index, container in enumerate(spec.get("containers", ())):
        for place, mount in enumerate(container.get("volumeMounts") or ()):
            if mount["name"] not in volumes:
                field = f"{path}.containers[{index}].volumeMounts[{place}].name"
                yield "FieldValueNotFound", f'Not found: "{mount["name"]}"', field


def _job(obj: Object) -> Iterable[Cause]:
    spec = obj["spec"]
    pod = spec["template"]["spec"]
    yield from _pod_spec(pod, "spec.template.spec")
    if pod.get("restartPolicy", "Always") == "Always":
        text = 'Required value: valid values: "OnFailure", "Never"'
        yield "FieldValueRequired", text, "spec.template.spec.restartPolicy"
    for name in ("activeDeadlineSeconds", "backoffLimit", "ttlSecondsAfterFinished", "completions"):
        if (spec.get(name) or 0) < 0:
            yield _wrong(f"spec.{name}", spec[name], "must be greater than or equal to 0")
    last = f"{obj['metadata']['name']}-{(spec.get('completions') or 1) - 1}"
    if spec.get("completionMode") == "Indexed" and len(last) > 63:
        text = (
            f"will not able to create pod with invalid DNS label: {last}: must be no more than 63 characters"
        )
        yield _wrong("metadata.name", last, text)


def _failure_policy(spec: Object) -> Iterable[Cause]:
    policy = spec.get("podFailurePolicy")
    if not policy:
        return
    restart = spec["template"]["spec"].get("restartPolicy")
    if restart != "Never":
        text = 'only "Never" is supported when podFailurePolicy is specified'
        yield _wrong("spec.template.spec.restartPolicy", restart, text)
    replacement = spec.get("podReplacementPolicy", "Failed")
    if replacement != "Failed":
        text = f'Unsupported value: "{replacement}": supported values: "Failed"'
        yield "FieldValueNotSupported", text, "spec.podReplacementPolicy"
    for index, rule in enumerate(policy["rules"]):
        path = f"spec.podFailurePolicy.rules[{index}]"
        if rule["action"] == "FailIndex" and "backoffLimitPerIndex" not in spec:
            yield _wrong(f"{path}.action", "FailIndex", "requires the backoffLimitPerIndex to be set")
        codes = rule.get("onExitCodes") or {}
        if codes.get("operator") == "In" and 0 in codes["values"]:
            place = f"{path}.onExitCodes.values[{codes['values'].index(0)}]"
            yield _wrong(place, 0, "must not be 0 for the In operator")


def changes(resource: Resource, obj: Object, before: Object) -> Iterable[Cause]:
    """Yield a cause for each changed field that is immutable."""
    if resource == SECRETS and before.get("immutable"):
        changed = any(obj.get(name) != before.get(name) for name in ("data", "stringData"))
        if changed or not obj.get("immutable"):
            yield "FieldValueForbidden", "Forbidden: field is immutable when `immutable` is set", "data"
    if resource == JOBS:
        fixed = ("completionMode", "podFailurePolicy", "successPolicy", "backoffLimitPerIndex", "selector")
        for name in fixed:
            if obj["spec"].get(name) != before["spec"].get(name):
                yield _wrong(f"spec.{name}", obj["spec"].get(name), "field is immutable")


def default(resource: Resource, obj: Object) -> None:
    """Fill in the server's defaults."""
    if resource == PODS:
        _default_pod(obj)
    elif resource == JOBS:
        _default_job(obj)
    elif resource == SECRETS:
        _default_secret(obj)
    elif resource == SERVICES:
        obj["spec"].setdefault("type", "ClusterIP")
        obj["status"] = {"loadBalancer": {}}
    elif resource == NAMESPACES:
        obj["spec"] = {"finalizers": ["kubernetes"]}
        obj["status"] = {"phase": "Active"}


def _default_secret(obj: Object) -> None:
    obj.setdefault("type", "Opaque")
    plain = obj.pop("stringData", {})
    if plain:
        coded = {name: base64.b64encode(text.encode()).decode() for name, text in plain.items()}
        obj["data"] = {**obj.get("data", {}), **coded}


def _default_pod(obj: Object) -> None:
    spec = obj["spec"]
    _default_pod_spec(spec)
    spec.setdefault("serviceAccountName", "default")
    obj["status"] = {"phase": "Pending", "qosClass": "BestEffort"}


def _default_pod_spec(spec: Object) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("schedulerName", "default-scheduler")
    for container in [*spec.get("initContainers", ()), *spec["containers"]]:
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        container.setdefault("imagePullPolicy", "IfNotPresent")
        container.setdefault("resources", {})
        # A limit is also the request, unless the container has one.
        if limits := container["resources"].get("limits"):
            container["resources"]["requests"] = {**limits, **container["resources"].get("requests", {})}


def _default_job(obj: Object) -> None:
    spec, meta = obj["spec"], obj["metadata"]
    spec.setdefault("parallelism", spec.get("completions", 1))
    spec.setdefault("completions", spec["parallelism"])
    spec.setdefault("backoffLimit", 6 if "backoffLimitPerIndex" not in spec else 2**31 - 1)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    policy = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
    spec.setdefault("podReplacementPolicy", policy)
    spec["selector"] = {"matchLabels": {JOB_UID: meta["uid"]}}
    own = {
        JOB_UID: meta["uid"],
        JOB_NAME: meta["name"],
        "controller-uid": meta["uid"],
        "job-name": meta["name"],
    }
    template = spec["template"].setdefault("metadata", {})
    template["labels"] = {**(template.get("labels") or {}), **own}
    meta["labels"] = {**(meta.get("labels") or {}), **own}
    _default_pod_spec(spec["template"]["spec"])
    obj["status"] = {}
