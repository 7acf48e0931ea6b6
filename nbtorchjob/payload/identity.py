"""Whether a call that is submitted again is the same job, and whose it is: its settings are part of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from getpass import getuser
from hashlib import sha256
from typing import TYPE_CHECKING

from nbtorchjob.capture import digests
from nbtorchjob.runtime.rank import settings
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import Origin

if TYPE_CHECKING:
    from nbtorchjob.capture import Call


def digest(call: Call, spec: JobSpec) -> str:
    """Return a digest of what runs, how, and for whom: the same for a cell that is run again unchanged."""
    how = {**spec.to_json(), "name": None, "settings": settings.changed() if spec.carry_settings else {}}
    return sha256(f"{digests.of(call)} {how} {user()}".encode()).hexdigest()[:40]


def whose(call: Call, written: Origin) -> str:
    """Say whose a call is, to others who wait for it on a lab."""
    notebook = written.notebook.rpartition("/")[2]
    cell = written.labels.get(call.filename, "") if call.text else ""
    return ", ".join(filter(None, (user(), notebook, cell)))


def user() -> str:
    """Return who submits: on a hub all notebooks run as one account, so the hub's user name counts."""
    with suppress(OSError, KeyError):  # an account without a name
        return os.environ.get("JUPYTERHUB_USER") or getuser()
    return ""


def cautions(spec: JobSpec) -> Iterator[str]:
    """Name settings and modes that change numbers, and aren't carried along under ``spec``."""
    changed = settings.words(settings.changed())
    if changed and not spec.carry_settings:
        them = "it" if len(changed) == 1 else "them"
        yield f"ranks don't get {', '.join(changed)}: --carry-settings takes {them} along"
    if entered := settings.modes():
        them = "it" if len(entered) == 1 else "them"
        yield f"ranks don't get {', '.join(entered)}, entered here: enter {them} in the cell"
