"""A payload that asks for packages, and nothing else."""

from collections.abc import Sequence
from pathlib import Path

from nbtorchjob.runtime.install import packages
from nbtorchjob.runtime.store.payload import Payload


class Asking(Payload):
    """The part of a payload that a node reads to install packages."""

    def __init__(
        self,
        *asked: str,
        constraints: Sequence[str] = (),
        exactly: Sequence[str] = (),
        wheels: Sequence[Path] = (),
        kept: str | Path = "",
        stock: str = "",
        uv: dict[str, str] | None = None,
        retries: int = 0,
    ) -> None:
        self._wheels = {packages.WHEELS + path.name: path.read_bytes() for path in wheels}
        self.header = {
            "packages": {
                "requirements": asked,
                "constraints": constraints,
                "exactly": exactly,
                "wheels": {path.name: path.name for path in wheels},
                "kept": str(kept),
                "stock": stock,
                "uv": uv,
            },
            "retry": {"retries": retries},
        }

    def read(self, name: str) -> bytes:
        return self._wheels[name]
