"""Container images as folders: programs for PATH, and a python that has torch but not nbtorchjob."""

import functools
import os
import shutil
import site
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.backends.kubernetes import warm
from tests.backends.kubernetes.cluster.resources import Object

TORCH = os.environ.get("NBTORCHJOB_TEST_IMAGE", "localhost/torch:1")
PYTHON, BUSYBOX = "localhost/python:3.11", "localhost/busybox:1"

# In a pod, the job's names are addresses already, so lookups succeed; the host's own name isn't the pod's.
# `gate` is a sleep that ends when the test opens it, however slow the machine is.
GATE = "gate"
STUBS = {
    "nslookup": "exit 0",
    "ping": "exit 0",
    "hostname": 'echo "$HOSTNAME"',
    "gate": f'mkfifo "$HOME/{GATE}" 2>/dev/null; read _ < "$HOME/{GATE}"; rm "$HOME/{GATE}"',
}


@dataclass(frozen=True)
class PullFailure(Exception):
    """An image that can't be pulled: the container's waiting reason and message, and the event's reason."""

    reason: str
    message: str
    event: str


class Images:
    """The images that the node can pull; others fail as if their registry were unknown."""

    def __init__(self) -> None:
        # Images that fail to be pulled, with the registry's message.
        self.failing: dict[str, str] = {}
        self.pulling: set[str] = set()  # images that aren't there yet: pulls of them go on

    def find(self, container: Object) -> str:
        """Return PATH inside the image, or raise PullFailure."""
        image = container["image"]
        if image != image.lower():
            base = image.partition(":")[0]
            text = (
                f'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}": invalid '
                f"reference format: repository name (library/{base}) must be lowercase"
            )
            raise PullFailure("InvalidImageName", text, "InspectFailed")
        if image in (TORCH, PYTHON, BUSYBOX) and image not in self.failing:
            return built(image)
        if container.get("imagePullPolicy") == "Never":
            text = f'Container image "{image}" is not present with pull policy of Never'
            raise PullFailure("ErrImageNeverPull", text, "ErrImageNeverPull")
        registry = image.partition("/")[0]
        unknown = f"failed to resolve image: dial tcp: lookup {registry}: no such host"
        why = self.failing.get(image, unknown)
        raise PullFailure("ErrImagePull", f'failed to pull and unpack image "{image}": {why}', "Failed")


@functools.cache
def built(image: str) -> str:
    """Return PATH inside the image, which is built once for all clusters of all pytest workers."""
    with warm.making() as shared:
        folder = shared / image.replace("/", "_").replace(":", "_")
        if not folder.exists():
            _programs(folder / "bin")
            if image != BUSYBOX:
                _interpreter(folder, packages=image == TORCH)
    return str(folder / "bin")


def _programs(folder: Path) -> None:
    """Link the system's programs except its Pythons, which an image without Python must not have."""
    folder.mkdir(parents=True)
    for directory in (Path("/usr/bin"), Path("/bin")):
        for program in directory.iterdir():
            link = folder / program.name
            if not program.name.startswith(("python", "pip")) and not link.is_symlink():
                link.symlink_to(program)
    for name, body in STUBS.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)


def _interpreter(folder: Path, *, packages: bool) -> None:
    """Create a virtual environment of links to this one's packages, except those installed in place.

    .pth files list the packages installed in place, so without them nbtorchjob is left out.
    """
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    for name in ("python", "python3", f"python3.{sys.version_info.minor}"):
        (folder / "bin" / name).symlink_to(base)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    target = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    target.mkdir(parents=True)
    # Debian's Python lists folders that don't exist.
    for source in filter(Path.is_dir, map(Path, site.getsitepackages())) if packages else ():
        for path in source.iterdir():
            if path.suffix != ".pth" and not path.name.startswith("nbtorchjob"):
                (target / path.name).symlink_to(path)


def program(argv: list[str], path: str) -> str:
    """Return the file that a command runs; raise FileNotFoundError or PermissionError if it can't run."""
    file = shutil.which(argv[0], path=path)
    if file:
        return file
    if "/" in argv[0] and Path(argv[0]).exists():
        raise PermissionError(f'exec: "{argv[0]}": permission denied')
    if "/" in argv[0]:
        raise FileNotFoundError(f'exec: "{argv[0]}": stat {argv[0]}: no such file or directory')
    raise FileNotFoundError(f'exec: "{argv[0]}": executable file not found in $PATH')
