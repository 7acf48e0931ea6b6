"""The account, the server, and the namespace."""

from __future__ import annotations

import re

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes.api import discovery
from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.api.login import Login
from nbtorchjob.backends.kubernetes.objects.paths import NAMESPACES, WHO, Target
from nbtorchjob.errors import ApiError, ClusterError, ForbiddenError, NotFoundError


def login(context: str | None, found: Login) -> Finding:
    """Report where the credentials lead."""
    name = f"the context {context}" if context else "the current context"
    return Finding(True, f"{name} points to {found.server}, namespace {found.namespace}")


async def version(client: Client) -> list[Finding]:
    """Report which release answers. Raises ``ClusterError``, also for credentials that aren't accepted."""
    release = (await discovery.version(client))["gitVersion"]
    return [Finding(True, f"it responds and accepts the credentials: Kubernetes {release}")]


async def user(client: Client) -> str:
    """Return the name by which the server knows us; "" where it doesn't report it."""
    review = {"apiVersion": WHO.group_version, "kind": WHO.kind}
    try:
        return str((await client.create(WHO, None, review))["status"]["userInfo"].get("username", ""))
    except ClusterError:
        return await _refused_user(client)


async def _refused_user(client: Client) -> str:
    """Make the server refuse something harmless: before Kubernetes 1.28 only a refusal names the user."""
    try:
        await client.list(NAMESPACES, None)
    except ClusterError as exc:
        found = re.search(r'User "([^"]*)"', exc.said if isinstance(exc, ApiError) else "")
        return found[1] if found else ""
    return ""


def account(name: str) -> Finding:
    """Report who we are."""
    return Finding(
        True, f"you are {name}" if name else "your user name is unknown: this server doesn't report it"
    )


async def namespace(client: Client, name: str) -> list[Finding]:
    """Report whether the namespace exists and isn't being deleted. Raises ``ClusterError``."""
    try:
        found = await client.get(Target(NAMESPACES, None, name))
    except ForbiddenError:
        text = f"namespace {name}: can't check whether it exists, because reading it isn't permitted"
        return [Finding(True, text)]
    except NotFoundError:
        text = f"the namespace {name} doesn't exist: choose one with --namespace, or have it created"
        return [Finding(False, text, f"kubectl create namespace {name}")]
    if (found.get("status") or {}).get("phase") == "Terminating":
        text = f"the namespace {name} is being deleted: wait until it is gone, or choose another --namespace"
        return [Finding(False, text)]
    return [Finding(True, f"the namespace {name} exists")]
