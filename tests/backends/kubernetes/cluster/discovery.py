"""/version, /api, /apis and the documents under them."""

from collections.abc import Iterable

from tests.backends.kubernetes.cluster.resources import Object, Resource

VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.2",
    "gitCommit": "emulated",
    "gitTreeState": "clean",
    "buildDate": "2026-06-16T00:00:00Z",
    "goVersion": "go1.26",
    "compiler": "gc",
    "platform": "linux/amd64",
}
VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
SUBRESOURCE_VERBS = {"status": ("get", "patch", "update"), "log": ("get",), "eviction": ("create",)}
# Served by code rather than from the store.
REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
WHO = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False)


def answer(path: str, resources: Iterable[Resource]) -> Object | None:
    """Return the document at a discovery path, None if there is none."""
    entries = [*resources, REVIEWS, WHO]
    parts = path.strip("/").split("/")
    if len(parts) > 3:  # like nearly all requests
        return None
    if parts == ["version"]:
        return dict(VERSION)
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if parts == ["api", "v1"]:
        return _resources("v1", [resource for resource in entries if not resource.group])
    groups = sorted({resource.group for resource in entries if resource.group})
    if parts == ["apis"]:
        listed = [_group(name, entries) for name in groups]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
    if len(parts) == 2 and parts[1] in groups:
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(parts[1], entries)}
    if len(parts) == 3:
        version = "/".join(parts[1:])
        listed_here = [resource for resource in entries if resource.group and resource.api_version == version]
        return _resources(version, listed_here) if listed_here else None
    return None


def _group(name: str, resources: list[Resource]) -> Object:
    versions = sorted({resource.version for resource in resources if resource.group == name})
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _resources(version: str, resources: list[Resource]) -> Object:
    listed = [entry for resource in resources for entry in _entries(resource)]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": listed}


def _entries(resource: Resource) -> Iterable[Object]:
    entry: Object = {
        "name": resource.plural,
        "singularName": resource.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(VERBS if resource != REVIEWS else ("create",)),
    }
    if resource.short:
        entry["shortNames"] = list(resource.short)
    yield entry
    for name in resource.subresources:
        yield {
            "name": f"{resource.plural}/{name}",
            "singularName": "",
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": list(SUBRESOURCE_VERBS.get(name, ("get",))),
        }
