"""Refusals by the API server: one exception, and the Status object that it becomes."""

from typing import Any

from tests.backends.kubernetes.cluster.resources import Object, Resource

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class Refusal(Exception):
    """An answer other than 2xx. `details` None leaves the field out, as 401 and webhooks do."""

    def __init__(
        self, code: int, message: str, *, reason: str | None = None, details: Object | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = REASONS.get(code, "") if reason is None else reason
        self.message = message
        self.details = details
        self.headers = {"Retry-After": "1"} if code == 429 else {}

    def status(self) -> Object:
        """Return the Status object, its keys in the server's order."""
        body: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details
        return body | {"code": self.code}


def details(resource: Resource, name: str = "", *, kind: str = "", **more: Any) -> Object:
    """Return the details of a Status: name, group and kind, the empty ones left out."""
    fields = {"name": name, "group": resource.group, "kind": kind or resource.plural, **more}
    return {key: value for key, value in fields.items() if value}


def not_found(resource: Resource, name: str) -> Refusal:
    """Return the refusal for an object that doesn't exist."""
    return Refusal(404, f'{resource.qualified} "{name}" not found', details=details(resource, name))


def already_exists(resource: Resource, name: str) -> Refusal:
    """Return the refusal of a second object of that name."""
    message = f'{resource.qualified} "{name}" already exists'
    return Refusal(409, message, reason="AlreadyExists", details=details(resource, name))


def conflict(resource: Resource, name: str, why: str = "", *, kind: str = "") -> Refusal:
    """Return the refusal of a write based on an older object, or of a broken precondition."""
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    shown = f"{kind}.{resource.group}" if kind else resource.qualified
    message = f'Operation cannot be fulfilled on {shown} "{name}": {why}'
    return Refusal(409, message, details=details(resource, name, kind=kind))


def forbidden(resource: Resource, name: str, why: str, **more: Any) -> Refusal:
    """Return the refusal by a rule of the cluster: a quota, a terminating namespace."""
    shown = f'{resource.qualified} "{name}"' if name else resource.qualified
    return Refusal(403, f"{shown} is forbidden: {why}", details=details(resource, name, **more))


def webhook(name: str, why: str, code: int = 403) -> Refusal:
    """Return a webhook's refusal: 403 from validating ones, 400 without reason from others; no details."""
    reason = "Forbidden" if code == 403 else ""
    return Refusal(code, f'admission webhook "{name}" denied the request: {why}', reason=reason)


def invalid(resource: Resource, name: str, causes: list[tuple[str, str, str]]) -> Refusal:
    """Return the refusal of an object for its fields; each cause is (reason, message, field)."""
    shown = [f"{field}: {message}" for _, message, field in causes]
    text = shown[0] if len(shown) == 1 else f"[{', '.join(shown)}]"
    entries = [{"reason": reason, "message": message, "field": field} for reason, message, field in causes]
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    return Refusal(
        422,
        f'{kind} "{name}" is invalid: {text}',
        details=details(resource, name, kind=resource.kind, causes=entries),
    )
