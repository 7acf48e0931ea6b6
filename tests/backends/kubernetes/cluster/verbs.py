"""Create, get, list, update, patch and delete; watches and logs are streams of their own."""

import base64
import json
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from tests.backends.kubernetes.cluster import patches
from tests.backends.kubernetes.cluster.admission import Admission
from tests.backends.kubernetes.cluster.deletion import delete
from tests.backends.kubernetes.cluster.refusals import Refusal, details, forbidden, not_found
from tests.backends.kubernetes.cluster.resources import NAMESPACES, PODS, Object
from tests.backends.kubernetes.cluster.selectors import both
from tests.backends.kubernetes.cluster.server import Call
from tests.backends.kubernetes.cluster.store import Store, key_of, now

Stream = Callable[[Call], Awaitable[web.StreamResponse]]
GONE = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted "
    "between the time the first chunk was returned and now may show up in the list."
)


EVICTED = "EvictionByEvictionAPI", "Eviction API: evicting"


class Verbs:
    """All calls that the store answers; `streams` handles watches and, by name, subresources."""

    def __init__(self, store: Store, admission: Admission, streams: Mapping[str, Stream]) -> None:
        self._store, self._admission, self._streams = store, admission, streams

    async def handle(self, call: Call) -> web.StreamResponse:
        """Carry out the call."""
        stream = self._streams.get("watch" if call.verb == "watch" else call.subresource)
        if stream is not None:
            return await stream(call)
        try:
            code, body = self.answer(call)
        except Refusal as refusal:
            refusal.headers |= _warned(call)
            raise
        # The warnings of a create are known only now.
        return web.json_response(body, status=code, headers=_warned(call))

    def answer(self, call: Call) -> tuple[int, Object]:
        """Return code and body for a call without a stream."""
        act = {
            "create": self._evict if call.subresource == "eviction" else self._create,
            "get": self._get,
            "list": self._list,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }.get(call.verb)
        if act is None:
            raise Refusal(405, "the server does not allow this method on the requested resource")
        return act(call)

    def _create(self, call: Call) -> tuple[int, Object]:
        _check_type(call)
        body = call.body
        meta = body.setdefault("metadata", {})
        if call.resource.namespaced:
            if meta.setdefault("namespace", call.namespace) != call.namespace:
                text = "the namespace of the provided object does not match the namespace sent on the request"
                raise Refusal(400, text)
            self._check_namespace(call, meta.get("name", ""))
        if not meta.get("name") and not meta.get("generateName"):
            raise Refusal(400, "name or generateName is required", reason="BadRequest")
        obj = self._admission.create(call, self._store.prepare(call.resource, body))
        if self._store.find(call.resource, *key_of(obj)) is not None or not call.dry:
            obj = self._store.create(call.resource, obj)
        return 201, obj

    def _check_namespace(self, call: Call, name: str) -> None:
        namespace = self._store.find(NAMESPACES, "", call.namespace)
        if namespace is None:
            raise not_found(NAMESPACES, call.namespace)
        if "deletionTimestamp" in namespace["metadata"]:
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {call.namespace} is being terminated",
                "field": "metadata.namespace",
            }
            why = f"unable to create new content in namespace {call.namespace} because it is being terminated"
            raise forbidden(call.resource, name, why, causes=[cause])

    def _get(self, call: Call) -> tuple[int, Object]:
        return 200, self._store.get(call.resource, call.namespace, call.name)

    def _list(self, call: Call) -> tuple[int, Object]:
        selector = both(
            call.resource, call.query.get("labelSelector", ""), call.query.get("fieldSelector", "")
        )
        items = [obj for obj in self._store.list(call.resource, call.namespace) if selector(obj)]
        start, revision = self._continue(call)
        limit = int(call.query.get("limit") or 0) or len(items)
        meta: Object = {"resourceVersion": str(revision)}
        left = len(items) - start - limit
        if left > 0:
            token = json.dumps({"rv": revision, "start": start + limit})
            meta |= {
                "continue": base64.urlsafe_b64encode(token.encode()).decode(),
                "remainingItemCount": left,
            }
        page = items[start : start + limit]
        if "as=PartialObjectMetadataList" in call.headers.get("Accept", ""):
            bare = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
            page = [bare | {"metadata": item["metadata"]} for item in page]
        listed = {"kind": f"{call.resource.kind}List", "apiVersion": call.resource.api_version}
        return 200, listed | {"metadata": meta, "items": page}

    def _continue(self, call: Call) -> tuple[int, int]:
        """Return the index at which the list continues, and its revision."""
        version = call.query.get("resourceVersion", "")
        if (
            call.query.get("resourceVersionMatch")
            and version.isdigit()
            and int(version) > self._store.revision
        ):
            text = f"Timeout: Too large resource version: {version}, current: {self._store.revision}"
            cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
            raise Refusal(504, text, details={"causes": [cause], "retryAfterSeconds": 1})
        old = version.isdigit() and int(version) < self._store.expired[call.resource]
        if old and call.query.get("resourceVersionMatch") == "Exact":
            raise Refusal(410, "The resourceVersion for the provided list is too old.")
        if "continue" not in call.query:
            return 0, self._store.revision
        token = json.loads(base64.urlsafe_b64decode(call.query["continue"] + "=="))
        if token["rv"] < self._store.expired[call.resource]:
            raise Refusal(410, GONE)
        return token["start"], token["rv"]

    def _update(self, call: Call) -> tuple[int, Object]:
        if not call.name:
            raise Refusal(400, "name must be provided")
        _check_type(call)
        return 200, self._write(call, call.body)

    def _patch(self, call: Call) -> tuple[int, Object]:
        before = self._store.get(call.resource, call.namespace, call.name)
        kind = call.headers.get("Content-Type", "")
        after = patches.apply(call.resource, before, call.body, kind)
        meta = call.body.get("metadata", {}) if isinstance(call.body, dict) else {}
        # A patch applies to the current object, unless it names a version.
        after["metadata"]["resourceVersion"] = meta.get("resourceVersion")
        return 200, self._write(call, after)

    def _write(self, call: Call, obj: Object) -> Object:
        before = self._store.get(call.resource, call.namespace, call.name)
        obj["metadata"] = obj.get("metadata", {}) | {"name": call.name}
        if call.resource.namespaced:
            obj["metadata"]["namespace"] = call.namespace
        status = call.subresource == "status"
        obj = self._admission.update(call, obj, before)
        return obj if call.dry else self._store.replace(call.resource, obj, status=status)

    def _delete(self, call: Call) -> tuple[int, Object]:
        obj = self._store.get(call.resource, call.namespace, call.name)
        if call.dry:
            return 200, obj
        kept = delete(self._store, call.resource, obj, self._options(call))
        if kept is not None:
            return 200, kept
        if call.resource == PODS:
            return 200, obj
        done = details(call.resource, call.name, uid=obj["metadata"]["uid"])
        return 200, {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": done,
        }

    def _options(self, call: Call) -> Object:
        """Return the DeleteOptions: from the body or, for old clients, from the query."""
        options: Object = {}
        if "propagationPolicy" in call.query:
            options["propagationPolicy"] = call.query["propagationPolicy"]
        if "gracePeriodSeconds" in call.query:
            options["gracePeriodSeconds"] = int(call.query["gracePeriodSeconds"])
        return {**options, **call.body}

    def _delete_collection(self, call: Call) -> tuple[int, Object]:
        code, listed = self._list(call)
        for obj in listed["items"]:
            delete(self._store, call.resource, obj, self._options(call))
        return code, listed

    def _evict(self, call: Call) -> tuple[int, Object]:
        pod = self._store.get(call.resource, call.namespace, call.name)
        evict(self._store, pod, *EVICTED)
        return 201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def evict(store: Store, pod: Object, reason: str, message: str) -> None:
    """Delete a pod with the condition that states why, as evictions, taints and preemptions do."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": now(),
        "reason": reason,
        "message": message,
    }
    status = dict(pod.get("status", {}))
    status["conditions"] = [*status.get("conditions", []), condition]
    marked = store.replace(PODS, pod | {"status": status}, status=True)
    delete(store, PODS, marked, {})


def _warned(call: Call) -> dict[str, str]:
    return {"Warning": ", ".join(call.warnings)} if call.warnings else {}


def _check_type(call: Call) -> None:
    body = call.body
    version, target = body.get("apiVersion", ""), call.resource.api_version
    if version != target:
        text = f"the API version in the data ({version}) does not match the expected API version ({target})"
        raise Refusal(400, text)
    if body.get("kind") != call.resource.kind:
        raise Refusal(400, f"the object provided is unrecognized (must be of type {call.resource.kind})")
