"""Authentication and authorization: bearer tokens, and the Roles and RoleBindings that tests create."""

from collections import defaultdict
from dataclasses import dataclass, field

from tests.backends.kubernetes.cluster.refusals import Refusal, details
from tests.backends.kubernetes.cluster.resources import BINDINGS, ROLES, Object, Resource
from tests.backends.kubernetes.cluster.store import Store

ADMIN = "admin"
ANONYMOUS = "system:anonymous"
# The operators. They use no connection, so their requests are neither counted nor hit by faults.
CONTROLLER = "system:controller"


@dataclass(frozen=True)
class Attempt:
    """A user's request, allowed or not; `resource` may be of a group that isn't served."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""


@dataclass
class Access:
    """The known tokens, and the rules bound to their users."""

    store: Store
    tokens: dict[str, str] = field(default_factory=dict)
    attempts: dict[str, list[Attempt]] = field(default_factory=lambda: defaultdict(list))

    def user(self, header: str) -> str:
        """Return the user of an Authorization header; refuse an unknown or expired token with 401."""
        if not header:
            return ANONYMOUS
        user = self.tokens.get(header.removeprefix("Bearer ").strip())
        if user is None:
            raise Refusal(401, "Unauthorized")
        return user

    def allows(self, user: str, attempt: Attempt) -> bool:
        """Return whether a RoleBinding of the namespace allows this to the user."""
        if user in (ADMIN, CONTROLLER):
            return True
        bindings = self.store.list(BINDINGS, attempt.namespace) if attempt.namespace else []
        return any(
            _covers(rule, attempt)
            for binding in bindings
            if any(_called(subject) == user for subject in binding.get("subjects", ()))
            for rule in self._rules(attempt.namespace, binding["roleRef"]["name"])
        )

    def _rules(self, namespace: str, role: str) -> list[Object]:
        obj = self.store.find(ROLES, namespace, role)
        return obj.get("rules", []) if obj else []

    def check(self, user: str, resource: Resource, attempt: Attempt) -> None:
        """Refuse what the user may not do, in the server's words, even if the resource isn't served."""
        self.attempts[user].append(attempt)
        if self.allows(user, attempt):
            return
        shown = f'{resource.qualified} "{attempt.name}"' if attempt.name else resource.qualified
        where = f' in the namespace "{attempt.namespace}"' if attempt.namespace else " at the cluster scope"
        why = (
            f'User "{user}" cannot {attempt.verb} resource "{attempt.resource}" '
            f'in API group "{attempt.group}"{where}'
        )
        raise Refusal(403, f"{shown} is forbidden: {why}", details=details(resource, attempt.name))


def _called(subject: Object) -> str:
    """Return the user name of a subject; for a ServiceAccount, the name that the API server gives it."""
    if subject.get("kind") == "ServiceAccount":
        return f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
    return str(subject.get("name"))


def _covers(rule: Object, attempt: Attempt) -> bool:
    def matches(key: str, value: str) -> bool:
        return bool({"*", value} & set(rule.get(key, ())))

    named = not rule.get("resourceNames") or attempt.name in rule["resourceNames"]
    return (
        named
        and matches("verbs", attempt.verb)
        and matches("apiGroups", attempt.group)
        and matches("resources", attempt.resource)
    )
