"""What a pod may not do: what no cell needs and the Pod Security standards forbid.

With ``--run-as`` a pod meets the standard "restricted" (Kubernetes 1.36), without it "baseline".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbtorchjob.spec.cluster.users import User

_PROFILE = {"seccompProfile": {"type": "RuntimeDefault"}}
_CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def of_pod(user: User | None) -> dict[str, Any]:
    """Return the pod's ``securityContext``; its volumes are readable and writable for the user's group."""
    if user is None:
        return dict(_PROFILE)
    ids = {"runAsUser": user.uid, "runAsGroup": user.gid, "fsGroup": user.gid}
    return {"runAsNonRoot": True, **ids, **_PROFILE}


def of_container(*, privileged: bool) -> dict[str, Any]:
    """Return the container's ``securityContext``."""
    return {"privileged": True} if privileged else dict(_CONFINED)


def home(user: User | None) -> dict[str, str]:
    """Return the variables that give a user id which the image doesn't know a home and a name.

    Else its home is /, where it may not write, and ``getpass.getuser`` fails, which torch.compile calls.
    """
    return {"HOME": "/tmp", "USER": str(user.uid)} if user else {}


def consistent(template: dict[str, Any], container: str) -> dict[str, Any]:
    """Return a patched template without our settings that contradict its patch.

    The API server refuses a container that may not gain privileges but has them (1.36).
    """
    spec = template["spec"]
    return {
        **template,
        "spec": {
            **spec,
            "containers": [_free(c) if c["name"] == container else c for c in spec["containers"]],
        },
    }


def _free(container: Mapping[str, Any]) -> dict[str, Any]:
    context = container.get("securityContext") or {}
    added = (context.get("capabilities") or {}).get("add") or ()
    if not context.get("privileged") and not {"SYS_ADMIN", "CAP_SYS_ADMIN"} & {*added}:
        return dict(container)
    rest = {key: value for key, value in context.items() if key != "allowPrivilegeEscalation"}
    return {**container, "securityContext": rest}
