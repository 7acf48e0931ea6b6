"""What the extras of this distribution bring: what is missing or too old is told in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nbtorchjob.errors import NotInstalledError

_OURS = "nbtorchjob"


@contextmanager
def needed(extra: str, by: str) -> Iterator[None]:
    """Have imports of what an ``extra`` brings raise ``NotInstalledError`` where it isn't there.

    ``by`` is who needs it, for the message.
    """
    try:
        yield
    except ImportError as exc:
        # What of an extra isn't installed, or in another version than it asks for
        lacking: list[str] = []
        from importlib import metadata  # late: only whoever lacks something waits for it

        from packaging.requirements import Requirement

        for text in metadata.requires(_OURS) or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or marker.evaluate({"extra": ""}) or not marker.evaluate({"extra": extra}):
                continue
            asked = f"{requirement.name}{requirement.specifier}"
            try:
                version = metadata.version(requirement.name)
            except metadata.PackageNotFoundError:
                lacking.append(asked)
                continue
            if not requirement.specifier.contains(version, prereleases=True):
                lacking.append(f"{asked} (here: {version})")
        lacks = sorted(lacking) or [exc.name or str(exc)]
        text = f"{by} needs {' and '.join(lacks)}: pip install '{_OURS}[{extra}]'"
        raise NotInstalledError(text) from exc
