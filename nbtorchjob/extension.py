"""``%load_ext nbtorchjob``: what it registers with a shell, and how that is taken back."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from nbtorchjob import profiles
from nbtorchjob.errors import NBTorchJobError
from nbtorchjob.job import Job
from nbtorchjob.magics import TorchJobMagics
from nbtorchjob.ui import complete, view

_loaded: dict[int, TorchJobMagics] = {}


def load(shell: Any) -> None:
    """Register the magics, the completer and the display of jobs; once a shell."""
    if id(shell) in _loaded:
        return
    magics = _loaded[id(shell)] = TorchJobMagics(shell)
    shell.register_magics(magics)
    shell.Completer.custom_matchers.append(complete.matcher)
    formatter = shell.display_formatter.mimebundle_formatter
    formatter.for_type(Job, lambda job, **_: view.mimebundle(job.state))
    # Off the cell's path: looking for torch and starting a process takes longer than loading us.
    threading.Thread(target=_warm_up, name="nbtorchjob-warm-up", daemon=True).start()


def _warm_up() -> None:
    with suppress(NBTorchJobError, OSError):  # the first job meets it again, and says it
        if profiles.default().backend == "local":
            from nbtorchjob.backends.local import pool

            pool.warm_up()


def unload(shell: Any) -> None:
    """Take back what :func:`load` registered; jobs and the pool go on."""
    magics = _loaded.pop(id(shell), None)
    if magics is None:
        return
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("torchjob", None)
    for registered, ours in (
        (shell.configurables, magics),
        (shell.Completer.custom_matchers, complete.matcher),
    ):
        with suppress(ValueError):
            registered.remove(ours)
    shell.display_formatter.mimebundle_formatter.pop(Job, None)
