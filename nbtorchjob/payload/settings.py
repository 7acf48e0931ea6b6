"""This process's settings: ranks are fresh processes, and don't inherit them."""

from __future__ import annotations

from collections.abc import Iterator

from nbtorchjob.runtime.rank import settings
from nbtorchjob.spec.jobspec import JobSpec


def cautions(spec: JobSpec) -> Iterator[str]:
    """Name settings and modes that change numbers, and aren't carried along under ``spec``."""
    changed = settings.words(settings.changed())
    if changed and not spec.carry_settings:
        them = "it" if len(changed) == 1 else "them"
        yield f"ranks don't get {', '.join(changed)}: --carry-settings takes {them} along"
    if entered := settings.modes():
        them = "it" if len(entered) == 1 else "them"
        yield f"ranks don't get {', '.join(entered)}, entered here: enter {them} in the cell"
