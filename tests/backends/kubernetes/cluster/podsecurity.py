"""The Pod Security standards of the API server's built-in admission (1.36), as one table (pure).

The refusals of a pod without any securityContext and of one with a hostPath are recorded,
the other texts are those of k8s.io/pod-security-admission.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.backends.kubernetes.cluster.resources import Object

LABEL = "pod-security.kubernetes.io/enforce"
LEVELS = ("privileged", "baseline", "restricted")
_DEFAULT_CAPABILITIES = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
    *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}
_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
_SYSCTLS = {
    *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start"),
    *("net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports"),
    *("net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl"),
    *("net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"),
}
_PROFILES = ("RuntimeDefault", "Localhost")


@dataclass(frozen=True)
class Control:
    """A row: a forbidden setting, and the function that lists its violations in a pod's spec."""

    level: str
    title: str
    found: Callable[[Object], list[str]]
    replaces: str = ""  # the baseline control that this one tightens


def violations(spec: Object, level: str) -> list[str]:
    """Return the parts of a pod's spec that the level forbids, in the server's words."""
    controls = [control for control in TABLE if control.level in LEVELS[: LEVELS.index(level) + 1]]
    replaced = {("baseline", control.replaces) for control in controls}
    kept = [control for control in controls if (control.level, control.title) not in replaced]
    return [f"{control.title} ({'; '.join(details)})" for control in kept if (details := control.found(spec))]


def why(spec: Object, level: str) -> str:
    """Return why the server refuses a pod; "" if it doesn't."""
    breaches = violations(spec, level)
    return f'violates PodSecurity "{level}:latest": {", ".join(breaches)}' if breaches else ""


def _containers(spec: Object) -> list[Object]:
    return [*(spec.get("initContainers") or ()), *spec["containers"]]


def _context(of: Object) -> Object:
    return of.get("securityContext") or {}


def _named(bad: Callable[[Object], bool], rule: str, *, pod: bool = False) -> Callable[[Object], list[str]]:
    def found(spec: Object) -> list[str]:
        names = [f'"{container["name"]}"' for container in _containers(spec) if bad(container)]
        several = f"containers {', '.join(names)}" if len(names) > 1 else f"container {', '.join(names)}"
        return [f"{'pod or ' if pod else ''}{several} {rule}"] if names else []

    return found


def _unset(key: str, good: Callable[[Any], bool]) -> Callable[[Object], list[str]]:
    """Return a function that finds the containers without a good value for `key`, own or from the pod."""

    def found(spec: Object) -> list[str]:
        def bad(container: Object) -> bool:
            own = _context(container).get(key)
            return not good(own if own is not None else _context(spec).get(key))

        return _named(bad, _RULES[key], pod=True)(spec)

    return found


_RULES = {
    "runAsNonRoot": "must set securityContext.runAsNonRoot=true",
    "seccompProfile": 'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"',
}


def _capabilities(container: Object, side: str) -> set[str]:
    return {*((_context(container).get("capabilities") or {}).get(side) or ())}


def _type(profile: Any) -> str:
    return str((profile or {}).get("type", ""))


def _host_namespaces(spec: Object) -> list[str]:
    settings = [f"{name}=true" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    return [", ".join(settings)] if settings else []


def _host_paths(spec: Object) -> list[str]:
    return [f'volume "{volume["name"]}"' for volume in spec.get("volumes") or () if "hostPath" in volume]


def _volumes(spec: Object) -> list[str]:
    breaches = []
    for volume in spec.get("volumes") or ():
        kinds = sorted(volume.keys() - {"name"} - _VOLUMES)
        breaches += [f'volume "{volume["name"]}" uses restricted volume type "{kind}"' for kind in kinds]
    return breaches


def _root(spec: Object) -> list[str]:
    pod = ["pod must not set runAsUser=0"] if _context(spec).get("runAsUser") == 0 else []
    own = _named(lambda container: _context(container).get("runAsUser") == 0, "must not set runAsUser=0")
    return [*pod, *own(spec)]


def _unconfined(spec: Object) -> list[str]:
    pod = ["pod"] if _type(_context(spec).get("seccompProfile")) == "Unconfined" else []
    rule = 'must not set securityContext.seccompProfile.type to "Unconfined"'
    own = _named(lambda container: _type(_context(container).get("seccompProfile")) == "Unconfined", rule)
    return [*(f"{problem} {rule}" for problem in pod), *own(spec)]


def _sysctls(spec: Object) -> list[str]:
    names = [
        sysctl["name"] for sysctl in _context(spec).get("sysctls") or () if sysctl["name"] not in _SYSCTLS
    ]
    return [", ".join(names)] if names else []


def _ports(container: Object) -> bool:
    return any(port.get("hostPort") for port in container.get("ports") or ())


def _rows() -> Iterator[Control]:
    def own(key: str) -> Callable[[Object], Any]:
        return lambda container: _context(container).get(key)

    yield Control(
        "baseline",
        "non-default capabilities",
        _named(
            lambda container: not _capabilities(container, "add") <= _DEFAULT_CAPABILITIES,
            "must not add such to securityContext.capabilities",
        ),
    )
    yield Control("baseline", "host namespaces", _host_namespaces)
    yield Control("baseline", "hostPath volumes", _host_paths)
    yield Control("baseline", "hostPort", _named(_ports, "uses a hostPort"))
    yield Control(
        "baseline",
        "privileged",
        _named(
            lambda container: bool(own("privileged")(container)),
            "must not set securityContext.privileged=true",
        ),
    )
    yield Control(
        "baseline",
        "procMount",
        _named(
            lambda container: own("procMount")(container) not in (None, "Default"),
            "must not set securityContext.procMount",
        ),
    )
    yield Control("baseline", "seccompProfile", _unconfined)
    yield Control("baseline", "forbidden sysctls", _sysctls)
    yield Control(
        "restricted",
        "allowPrivilegeEscalation != false",
        _named(
            lambda container: own("allowPrivilegeEscalation")(container) is not False,
            "must set securityContext.allowPrivilegeEscalation=false",
        ),
    )
    yield Control(
        "restricted",
        "unrestricted capabilities",
        _named(
            lambda container: (
                "ALL" not in _capabilities(container, "drop")
                or not _capabilities(container, "add") <= {"NET_BIND_SERVICE"}
            ),
            'must set securityContext.capabilities.drop=["ALL"]',
        ),
        "non-default capabilities",
    )
    yield Control("restricted", "restricted volume types", _volumes, "hostPath volumes")
    yield Control("restricted", "runAsNonRoot != true", _unset("runAsNonRoot", lambda value: value is True))
    yield Control("restricted", "runAsUser=0", _root)
    yield Control(
        "restricted",
        "seccompProfile",
        _unset("seccompProfile", lambda value: _type(value) in _PROFILES),
        "seccompProfile",
    )


TABLE = tuple(_rows())
