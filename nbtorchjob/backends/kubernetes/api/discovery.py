"""What a cluster is and has, and what we may do there."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection

from nbtorchjob.backends.kubernetes.api import answers
from nbtorchjob.backends.kubernetes.api.client import Client, Object
from nbtorchjob.backends.kubernetes.objects.paths import REVIEWS

Served = tuple[str, str, str]

# One request for everything, since 1.26; older servers answer with the list of groups instead.
_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"
_ACCEPT = ",".join([_AGGREGATED.format("v2"), _AGGREGATED.format("v2beta1"), "application/json"])


async def version(client: Client) -> Object:
    """Return the server's release: "gitVersion" ("v1.36.2")."""
    return await client.document("/version", answers.VERSION)


async def served(client: Client, groups: Collection[str]) -> set[Served]:
    """Return (group, version, plural) of all that the cluster serves in those API groups.

    One request; before Kubernetes 1.26 one more for each version of an installed group.
    """
    found = await client.document("/apis", answers.SERVED, accept=_ACCEPT)
    if found.get("kind") == "APIGroupDiscoveryList":
        return {
            (group["metadata"]["name"], version["version"], resource["resource"])
            for group in found.get("items") or ()
            if group["metadata"]["name"] in groups
            for version in group["versions"]
            for resource in version.get("resources") or ()
        }
    installed = [group for group in found.get("groups") or () if group["name"] in groups]
    versions = [(group["name"], one["version"]) for group in installed for one in group["versions"]]
    return set(itertools.chain(*await asyncio.gather(*(_resources(client, *one) for one in versions))))


async def _resources(client: Client, group: str, version: str) -> list[Served]:
    found = await client.document(f"/apis/{group}/{version}", answers.SERVED)
    return [(group, version, one["name"]) for one in found.get("resources") or () if "/" not in one["name"]]


async def allowed(client: Client, verb: str, group: str, resource: str, namespace: str | None) -> bool:
    """Whether we may do ``verb`` on ``resource`` ("pods", "pods/log") in ``namespace`` (None: everywhere)."""
    plural, _, part = resource.partition("/")
    asked = {"verb": verb, "group": group, "resource": plural}
    asked |= {"subresource": part} if part else {}
    asked |= {"namespace": namespace} if namespace else {}
    review = {
        "apiVersion": REVIEWS.group_version,
        "kind": REVIEWS.kind,
        "spec": {"resourceAttributes": asked},
    }
    return bool((await client.create(REVIEWS, None, review))["status"].get("allowed"))
