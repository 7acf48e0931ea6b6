"""From a container's spec to a local process: its volumes as folders, its environment, its command line."""

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.backends.kubernetes.cluster import podtokens
from tests.backends.kubernetes.cluster.images import PYTHON, built, program
from tests.backends.kubernetes.cluster.kubeletcache import KubeletCache
from tests.backends.kubernetes.cluster.network import Network, hostname
from tests.backends.kubernetes.cluster.resources import CONFIGMAPS, SECRETS, SERVICES, Object, Resource

NODE = "localhost"
# Read by ``warm/interpreter.py``.
CLOCK = "WARM_CLOCK_AHEAD_S"
SHARED_MEMORY = "WARM_SHARED_MEMORY"


class MissingVolume(Exception):
    """Raised when a volume can't be set up yet, with (volume, why)."""


class MissingEnvironment(Exception):
    """Raised when the environment names an object that doesn't exist."""


@dataclass(frozen=True)
class Command:
    """The process to start."""

    python: str  # a warm interpreter, which starts it
    argv: list[str]
    environment: dict[str, str]
    folder: Path
    termination_log: Path
    localised: Callable[[str], str]  # replaces the container's paths with this machine's


class Sandbox:
    """A pod's folder and the environment of its containers."""

    def __init__(
        self, cache: KubeletCache, network: Network, pod: Object, folder: Path, ahead_s: float
    ) -> None:
        self._cache, self._pod, self.folder, self.ahead_s = cache, pod, folder, ahead_s
        self._space = pod["metadata"]["namespace"]
        self._rewrite = network.rewriter(pod, lambda name: cache.find(SERVICES, self._space, name))
        self.address = network.address(pod)
        self._volumes: dict[str, Path] = {}

    def mount(self) -> None:
        """Fill the volumes; raise MissingVolume if one has to wait."""
        for volume in self._pod["spec"].get("volumes") or ():
            self._volumes[volume["name"]] = self._volume(volume)

    def _volume(self, volume: Object) -> Path:
        folder: Path = self.folder / "volumes" / volume["name"]
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            folder = self.folder.parent / "claims" / self._space / str(claim)
        folder.mkdir(parents=True, exist_ok=True)
        sources = volume.get("projected", {}).get("sources") or [volume]
        for source in sources:
            if "secret" in source:
                name = source["secret"].get("secretName") or source["secret"].get("name")
                self._fill(folder, volume["name"], SECRETS, name, source["secret"])
            elif "serviceAccountToken" in source:
                projection = source["serviceAccountToken"]
                token = podtokens.issue(self._space, projection["audience"], projection["expirationSeconds"])
                (folder / projection["path"]).write_text(token)
            elif "configMap" in source:
                self._fill(
                    folder, volume["name"], CONFIGMAPS, source["configMap"]["name"], source["configMap"]
                )
        return folder

    def _fill(self, folder: Path, volume: str, resource: Resource, name: str, source: Object) -> None:
        obj = self._cache.find(resource, self._space, name)
        if obj is None:
            if source.get("optional"):
                return
            raise MissingVolume(volume, f'{resource.kind.lower()} "{name}" not found')
        paths = {item["key"]: item["path"] for item in source.get("items") or ()}
        for key, value in (obj.get("data") or {}).items():
            if paths and key not in paths:
                continue
            path = folder / paths.get(key, key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(base64.b64decode(value) if resource == SECRETS else value.encode())

    def command(self, container: Object, path: str) -> Command:
        """Return the command; raise MissingEnvironment, FileNotFoundError or PermissionError without one."""
        termination = self.folder / f"{container['name']}.termination"
        # Pods' addresses are loopback ones: gloo would look up the host's own name.
        wires = {"PET_LOCAL_ADDR": self.address, "GLOO_SOCKET_IFNAME": "lo"}
        if self.ahead_s:
            wires[CLOCK] = str(self.ahead_s)
        places = {container.get("terminationMessagePath", "/dev/termination-log"): termination}
        for mount in container.get("volumeMounts") or ():
            # Programs have this path built in, so no text contains it.
            if mount["mountPath"] == "/dev/shm":
                wires[SHARED_MEMORY] = str(self._volumes[mount["name"]])
            else:
                source = self._volumes[mount["name"]] / mount.get("subPath", "")
                places[mount["mountPath"].rstrip("/")] = source
        localised = _places(places)
        own = self._environment(container)
        environment = {name: localised(self._rewrite(name, value)) for name, value in own.items()}
        words = [*(container.get("command") or ()), *(container.get("args") or ())]
        argv = [localised(_expand(word, own)) for word in words]
        # A real image has an entry point; these images have none.
        argv = argv or ["sh", "-c", "true"]
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        termination.write_bytes(b"")
        basics = {"PATH": path, "HOME": str(home), "TMPDIR": str(self._temporary()), "LANG": "C.UTF-8"}
        environment = basics | wires | {"HOSTNAME": hostname(self._pod)} | environment
        argv[0] = program(argv, environment["PATH"])
        work = container.get("workingDir")
        python_folder = path if (Path(path) / "python").exists() else built(PYTHON)
        where = Path(localised(work)) if work else home
        return Command(f"{python_folder}/python", argv, environment, where, termination, localised)

    def _temporary(self) -> Path:
        folder = self.folder / "tmp"
        folder.mkdir(exist_ok=True)
        return folder

    def _environment(self, container: Object) -> dict[str, str]:
        environment: dict[str, str] = {}
        for source in container.get("envFrom") or ():
            key = "secretRef" if "secretRef" in source else "configMapRef"
            resource = SECRETS if key == "secretRef" else CONFIGMAPS
            environment |= self._data(resource, source[key]["name"])
        for variable in container.get("env") or ():
            if "valueFrom" in variable:
                environment[variable["name"]] = self._from(variable["valueFrom"], container)
            else:
                environment[variable["name"]] = _expand(variable.get("value") or "", environment)
        return environment

    def _from(self, source: Object, container: Object) -> str:
        if "fieldRef" in source:
            return self._field(source["fieldRef"]["fieldPath"])
        if "resourceFieldRef" in source:
            side, _, name = source["resourceFieldRef"]["resource"].partition(".")
            return str(container["resources"].get(side, {}).get(name, "0"))
        key = "secretKeyRef" if "secretKeyRef" in source else "configMapKeyRef"
        resource = SECRETS if key == "secretKeyRef" else CONFIGMAPS
        ref = source[key]
        return self._data(resource, ref["name"]).get(ref["key"], "")

    def _data(self, resource: Resource, name: str) -> dict[str, str]:
        obj = self._cache.find(resource, self._space, name)
        if obj is None:
            raise MissingEnvironment(f'{resource.kind.lower()} "{name}" not found')
        data = obj.get("data") or {}
        coded = resource == SECRETS
        return {
            key: base64.b64decode(text).decode(errors="surrogateescape") if coded else text
            for key, text in data.items()
        }

    def _field(self, path: str) -> str:
        if match := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
            return str((self._pod["metadata"].get(match[1]) or {}).get(match[2], ""))
        fields = {
            "status.podIP": self.address,
            "status.hostIP": "127.0.0.1",
            "spec.nodeName": NODE,
            "spec.serviceAccountName": self._pod["spec"].get("serviceAccountName", "default"),
        }
        return fields.get(path) or str(self._pod["metadata"].get(path.removeprefix("metadata."), ""))


def _expand(text: str, variables: Mapping[str, str]) -> str:
    """Expand `$(NAME)`; `$$` is a dollar, and an unknown name stays as it is."""

    def put(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([\w.-]+)\)", put, text)


class _places:
    """A rewriter that turns paths inside the container, in any text, into paths on this machine."""

    def __init__(self, places: Mapping[str, Path]) -> None:
        self._places = places
        listed = "|".join(re.escape(place) for place in sorted(places, key=len, reverse=True))
        self._pattern = re.compile(rf"(?<![\w./-])({listed})(?![\w.-])")

    def __call__(self, text: str) -> str:
        return self._pattern.sub(lambda match: str(self._places[match[1]]), text)
