"""What an account is permitted, as rules of a Role, and as the YAML to give to an administrator (pure)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nbtorchjob.backends.kubernetes.objects.paths import Api


class Right(NamedTuple):
    """A verb on a resource, as a Role has it."""

    verb: str
    group: str
    resource: str

    @property
    def what(self) -> str:
        """The resource's full name."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


class Use(NamedTuple):
    """Verbs on a resource, and what they are for; ``part`` is a subresource."""

    verbs: str
    api: Api
    why: str
    part: str = ""

    @property
    def rights(self) -> Iterator[Right]:
        """Each verb by itself."""
        resource = f"{self.api.plural}/{self.part}" if self.part else self.api.plural
        return (Right(verb, self.api.group, resource) for verb in self.verbs.split())


_ACCOUNT = "system:serviceaccount:"
_SECRETS = "# Who may read Secrets of a namespace can read all of them: best one that has only jobs in it.\n"


def grant(
    user: str, namespace: str | None, rules: Iterable[tuple[str, str, str]], name: str = "nbtorchjob"
) -> str:
    """Return the YAML that lets ``user`` do all ``rules``: (verb, API group, resource such as "pods/log").

    It is a Role of that ``name``, without a namespace a ClusterRole.
    """
    rules = list(rules)
    scope = "" if namespace else "Cluster"
    inside = f"\n  namespace: {namespace}" if namespace else ""
    verbs: dict[tuple[str, str], list[str]] = {}
    for verb, group, resource in rules:
        verbs.setdefault((group, resource), []).append(verb)
    lines = "".join(
        f'\n- apiGroups: ["{group}"]\n  resources: ["{resource}"]\n  verbs: {json.dumps(allowed)}'
        for (group, resource), allowed in verbs.items()
    )
    reads = {(verb, "", "secrets") for verb in ("get", "list")}
    caution = _SECRETS if reads & set(rules) else ""
    return f"""\
{caution}apiVersion: rbac.authorization.k8s.io/v1
kind: {scope}Role
metadata:
  name: {name}{inside}
rules:{lines}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {scope}RoleBinding
metadata:
  name: {name}{inside}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {scope}Role
  name: {name}
subjects:
{_subject(user)}
"""


def _subject(user: str) -> str:
    if user.startswith(_ACCOUNT):
        namespace, _, name = user[len(_ACCOUNT) :].partition(":")
        return f"- kind: ServiceAccount\n  name: {name}\n  namespace: {namespace}"
    return f"- apiGroup: rbac.authorization.k8s.io\n  kind: User\n  name: {json.dumps(user)}"
