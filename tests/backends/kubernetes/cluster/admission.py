"""The admission of new and changed objects: names, schemas, defaults, webhooks, quota."""

import re

from tests.backends.kubernetes.cluster import builtin, podsecurity, schemas, webhooks
from tests.backends.kubernetes.cluster.quota import check_quota
from tests.backends.kubernetes.cluster.refusals import Refusal, forbidden, invalid
from tests.backends.kubernetes.cluster.resources import (
    ACCOUNTS,
    JOBS,
    NAMESPACES,
    PODS,
    PRIORITIES,
    Object,
    Resource,
    job_schema,
)
from tests.backends.kubernetes.cluster.server import Call
from tests.backends.kubernetes.cluster.store import Store

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
LABEL_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
ANNOTATIONS_LIMIT = 256 * 1024
# etcd's limit of a request; built-in objects are stored more compactly than JSON and hardly reach it.
STORE_LIMIT = 1_572_864


class Admission:
    """The checks of a cluster; they read the store for queues, runtimes and quotas."""

    def __init__(self, store: Store, *, queues: bool = False) -> None:
        self._store, self._queues = store, queues

    def create(self, call: Call, obj: Object) -> Object:
        """Return the object as it will be stored, or refuse it."""
        resource = call.resource
        webhooks.default(resource, obj, queues=self._queues)
        obj = self._fit(call, obj)
        causes = [*_metadata(obj), *builtin.problems(resource, obj), *schemas.rules(resource, obj, None)]
        if causes:
            raise invalid(resource, obj["metadata"]["name"], causes)
        if "status" in resource.subresources:
            obj.pop("status", None)
        builtin.default(resource, obj)
        webhooks.validate(resource, obj, self._store, call.warnings)
        if resource == PODS:
            self._check_names(obj)
        self._check_security(call, obj)
        check_quota(self._store, resource, obj)
        _check_size(resource, obj)
        return obj

    def _check_names(self, pod: Object) -> None:
        """Refuse a pod whose service account or priority class doesn't exist, as the plugins of these names do."""
        meta, spec = pod["metadata"], pod["spec"]
        account, priority = spec["serviceAccountName"], spec.get("priorityClassName")
        if not self._store.find(ACCOUNTS, meta["namespace"], account):
            place = f"{meta['namespace']}/{account}"
            why = f'error looking up service account {place}: serviceaccount "{account}" not found'
            raise forbidden(PODS, meta["name"], why)
        if priority and not self._store.find(PRIORITIES, "", priority):
            raise forbidden(PODS, meta["name"], f"no PriorityClass with name {priority} was found")

    def _check_security(self, call: Call, obj: Object) -> None:
        """Refuse a pod that the namespace's level forbids; for a Job's pods, only warn."""
        space = self._store.find(NAMESPACES, "", call.namespace) if call.resource in (PODS, JOBS) else None
        level = ((space or {}).get("metadata", {}).get("labels") or {}).get(podsecurity.LABEL)
        if level is None:
            return
        spec = obj["spec"] if call.resource == PODS else obj["spec"]["template"]["spec"]
        why = podsecurity.why(spec, level)
        if why and call.resource == PODS:
            raise forbidden(PODS, obj["metadata"]["name"], why)
        if why:
            shown = why.replace("violates", "would violate").replace('"', '\\"')
            call.warnings.append(f'299 - "{shown}"')

    def update(self, call: Call, obj: Object, before: Object) -> Object:
        """Return the changed object as it will be stored, or refuse it."""
        resource = call.resource
        obj = self._fit(call, obj)
        name = before["metadata"]["name"]
        causes = [*_metadata(obj), *builtin.changes(resource, obj, before)]
        if call.subresource != "status":
            causes += schemas.rules(resource, obj, before)
        if causes:
            raise invalid(resource, name, causes)
        webhooks.update(resource, obj, before, queues=self._queues)
        return obj

    def _fit(self, call: Call, obj: Object) -> Object:
        """Fit the object to its schema: add defaults, and drop or refuse unknown fields."""
        schema = job_schema() if call.resource == JOBS else call.resource.schema
        if schema is None:
            return obj
        obj, unknown, causes = schemas.fit(schema, obj)
        validation = call.query.get("fieldValidation", "Warn")
        if unknown and validation == "Strict":
            listed = ", ".join(f'unknown field "{path}"' for path in unknown)
            kind, version = call.resource.kind, call.resource.version
            text = f'{kind} in version "{version}" cannot be handled as a {kind}: strict decoding error: {listed}'
            raise Refusal(400, text)
        if validation == "Warn":
            call.warnings.extend(f'299 - "unknown field \\"{path}\\""' for path in unknown)
        if causes:
            raise invalid(call.resource, obj["metadata"]["name"], causes)
        return obj


def _metadata(obj: Object) -> list[tuple[str, str, str]]:
    meta = obj["metadata"]
    causes = []
    if not SUBDOMAIN.fullmatch(meta["name"]) or len(meta["name"]) > 253:
        text = f'Invalid value: "{meta["name"]}": {SUBDOMAIN_RULE}'
        causes.append(("FieldValueInvalid", text, "metadata.name"))
    for value in (meta.get("labels") or {}).values():
        if not LABEL.fullmatch(value):
            causes.append(("FieldValueInvalid", f'Invalid value: "{value}": {LABEL_RULE}', "metadata.labels"))
        elif len(value) > 63:
            text = f'Invalid value: "{value}": must be no more than 63 bytes'
            causes.append(("FieldValueInvalid", text, "metadata.labels"))
    notes = meta.get("annotations") or {}
    if sum(len(name) + len(value) for name, value in notes.items()) > ANNOTATIONS_LIMIT:
        text = f"Too long: may not be more than {ANNOTATIONS_LIMIT} bytes"
        causes.append(("FieldValueTooLong", text, "metadata.annotations"))
    return causes


def _check_size(resource: Resource, obj: Object) -> None:
    if resource.custom and schemas.size(obj) > STORE_LIMIT:
        raise Refusal(500, "etcdserver: request is too large", reason="")
