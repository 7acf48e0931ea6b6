"""Names, addresses and ports of pods that all run on this machine.

Each pod gets a loopback address of its own. As there is no DNS for the job's names, a name in a pod's
environment becomes the address of its pod, unless another Service has the name. As all pods share one
machine, rendezvous ports become free ones, a set for each job.
"""

import re
from collections.abc import Callable

from tests.backends.kubernetes.cluster.resources import Object
from tests.ports import free_port

# The name of a variable with a port as its whole value.
PORT_VARIABLE = re.compile(r"_PORT$")
HOST_AND_PORT = re.compile(r"(?P<host>127\.\d+\.\d+\.\d+):(?P<port>\d+)")

Find = Callable[[str], Object | None]


class Network:
    """The addresses and ports of pods, which stay the same as long as the cluster lives."""

    def __init__(self) -> None:
        self._addresses: dict[tuple[str, str], str] = {}
        self._ports: dict[tuple[str, str, int], int] = {}

    def address(self, pod: Object) -> str:
        """Return the pod's own address."""
        return self._address(pod["metadata"]["namespace"], hostname(pod))

    def rewriter(self, pod: Object, service: Find) -> Callable[[str, str], str]:
        """Return a function that rewrites an environment variable: name and value to value.

        ``service`` finds a Service by name: DNS knows the names of the pods that it selects. A Service
        that doesn't exist yet is assumed to come.
        """
        space, family = pod["metadata"]["namespace"], _family(pod)
        names = _peers(pod)

        def resolve(match: re.Match[str]) -> str:
            host = match["host"]
            target = service(pod["spec"].get("subdomain") or host)
            return self._address(space, host) if target is None or _selects(target, pod) else match[0]

        def rewrite(name: str, value: str) -> str:
            value = names.sub(resolve, value)
            if PORT_VARIABLE.search(name) and value.isdigit():
                return str(self._port(space, family, int(value)))
            return HOST_AND_PORT.sub(
                lambda match: f"{match['host']}:{self._port(space, family, int(match['port']))}", value
            )

        return rewrite

    def _address(self, space: str, host: str) -> str:
        count = len(self._addresses)
        # 127.0.0.1 is the machine's own.
        fresh = f"127.{10 + count // 62500}.{count // 250 % 250}.{count % 250 + 1}"
        return self._addresses.setdefault((space, host), fresh)

    def _port(self, space: str, family: str, port: int) -> int:
        if (space, family, port) not in self._ports:
            self._ports[space, family, port] = free_port()
        return self._ports[space, family, port]


def hostname(pod: Object) -> str:
    """Return the pod's hostname."""
    name: str = pod["spec"].get("hostname") or pod["metadata"]["name"]
    return name


def _family(pod: Object) -> str:
    """Return what a job's pods have in common: their subdomain, or their name without role and number."""
    return pod["spec"].get("subdomain") or re.sub(r"-[a-z]+-\d+$", "", pod["metadata"]["name"])


def _selects(service: Object, pod: Object) -> bool:
    """Return whether a Service is headless, and selects the pods of this pod's job."""
    spec, labels = service["spec"], pod["metadata"].get("labels") or {}
    selector = {key: value for key, value in (spec.get("selector") or {}).items() if "/replica-" not in key}
    return spec.get("clusterIP") == "None" and selector.items() <= labels.items()


def _peers(pod: Object) -> re.Pattern[str]:
    """Return a pattern for pods of the same job: HOST.SUBDOMAIN, or a PyTorchJob's NAME-ROLE-NUMBER."""
    if subdomain := pod["spec"].get("subdomain"):
        whole = rf"{re.escape(subdomain)}(\.{re.escape(pod['metadata']['namespace'])}(\.svc(\.cluster\.local)?)?)?"
        return re.compile(rf"\b(?P<host>[a-z0-9][-a-z0-9]*)\.{whole}(?![-.\w])")
    return re.compile(rf"\b(?P<host>{re.escape(_family(pod))}-(master|worker)-\d+)(?![-\w])")
