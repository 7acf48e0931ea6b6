"""The account, the server, and the namespace."""

from __future__ import annotations

import re

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes import discovery
from nbtorchjob.backends.kubernetes.client import Client
from nbtorchjob.backends.kubernetes.login import Login
from nbtorchjob.backends.kubernetes.paths import NAMESPACES, WHO, Target
from nbtorchjob.backends.kubernetes.refusals import Refusal


def login(context: str | None, found: Login) -> Finding:
    """Say where the credentials lead."""
    name = f"the context {context}" if context else "the current context"
    return Finding(True, f"{name} leads to {found.server}, namespace {found.namespace}")


async def version(client: Client) -> list[Finding]:
    """Say what release answers. Raises ``Refusal``, also for credentials that aren't accepted."""
    release = (await discovery.version(client))["gitVersion"]
    return [Finding(True, f"it answers and accepts the credentials: Kubernetes {release}")]


async def user(client: Client) -> str:
    """Give the name by which the server knows us; "" where it doesn't say."""
    review = {"apiVersion": WHO.group_version, "kind": WHO.kind}
    try:
        return str((await client.create(WHO, None, review))["status"]["userInfo"].get("username", ""))
    except Refusal:
        return await _refused_user(client)


async def _refused_user(client: Client) -> str:
    """Have the server refuse something harmless: before Kubernetes 1.28 only then it names the user."""
    try:
        await client.list(NAMESPACES, None)
    except Refusal as exc:
        found = re.search(r'User "([^"]*)"', exc.said)
        return found[1] if found else ""
    return ""


def account(name: str) -> Finding:
    """Say who we are."""
    return Finding(True, f"you are {name}" if name else "who you are isn't known: this server doesn't say")


async def namespace(client: Client, name: str) -> list[Finding]:
    """Say whether the namespace is there to stay. Raises ``Refusal``."""
    try:
        found = await client.get(Target(NAMESPACES, None, name))
    except Refusal as exc:
        if exc.status == 403:
            return [
                Finding(
                    True, f"namespace {name}: reading it isn't permitted, so whether it exists isn't known"
                )
            ]
        if exc.status == 404:
            text = f"the namespace {name} doesn't exist: choose one with --namespace, or have it created"
            return [Finding(False, text, f"kubectl create namespace {name}")]
        raise
    if (found.get("status") or {}).get("phase") == "Terminating":
        text = f"the namespace {name} is being deleted: wait for its end, or choose another --namespace"
        return [Finding(False, text)]
    return [Finding(True, f"the namespace {name} exists")]
