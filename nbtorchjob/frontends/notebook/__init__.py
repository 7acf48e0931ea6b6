"""``%load_ext nbtorchjob``: what it registers with a shell, and how that is undone.

Nothing heavy is imported here: the magics are loaded on first use, by then most likely imported in
the background.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from IPython.core import completer, magic

if TYPE_CHECKING:
    from nbtorchjob.frontends.notebook.magics import TorchJobMagics

_NAME = "torchjob"
_loaded: dict[int, Extension] = {}


class LateMagic:
    """``%torchjob`` and ``%%torchjob``, imported with the first line or the first request for help."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    @cached_property
    def _magics(self) -> TorchJobMagics:
        from nbtorchjob.frontends.notebook.magics import TorchJobMagics

        return TorchJobMagics(self._shell)

    def __call__(self, line: str, cell: str | None = None) -> Any:
        """Run the line, or the cell below it."""
        return self._magics.torchjob(line, cell)

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        """What ``%%torchjob?`` shows."""
        return self._magics.torchjob.__doc__


class Extension:
    """What is registered with one shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        # The magic itself expands {name}: after `run`, braces are Python.
        silenced = getattr(magic, "output_can_be_silenced", lambda function: function)  # IPython 8.3
        shell.register_magic_function(magic.no_var_expand(silenced(LateMagic(shell))), "line_cell", _NAME)
        self._matcher: Any = _matcher
        if not hasattr(completer, "CompletionContext"):

            def matcher(text: str) -> list[str]:
                from nbtorchjob.commands import completion

                return completion.of_line(shell.Completer.text_until_cursor)

            self._matcher = matcher
        shell.Completer.custom_matchers.append(self._matcher)

        def mimebundle(job: Any, **_options: Any) -> dict[str, str]:
            from nbtorchjob.commands.table import OFFERS
            from nbtorchjob.ui.card import view

            return view.following(job.state, OFFERS)

        formatter = shell.display_formatter.mimebundle_formatter
        formatter.for_type_by_name("nbtorchjob.job", "Job", mimebundle)

    def take_back(self) -> None:
        """Remove everything from the shell again."""
        for kind in ("line", "cell"):
            self._shell.magics_manager.magics[kind].pop(_NAME, None)
        with suppress(ValueError):
            self._shell.Completer.custom_matchers.remove(self._matcher)
        with suppress(KeyError):
            self._shell.display_formatter.mimebundle_formatter.pop("nbtorchjob.job.Job")


def load(shell: Any) -> None:
    """Register the magics, the completer and the display of jobs, once per shell."""
    if id(shell) not in _loaded:
        _loaded[id(shell)] = Extension(shell)

        def warm_up() -> None:
            from nbtorchjob import backends
            from nbtorchjob.errors import NBTorchJobError
            from nbtorchjob.spec import profiles

            with suppress(NBTorchJobError, OSError):  # the first job runs into it again, and reports it
                backends.warm_up(profiles.default().backend)

        threading.Thread(target=warm_up, name="nbtorchjob-warm-up", daemon=True).start()


def unload(shell: Any) -> None:
    """Undo what :func:`load` registered and what the session chose; jobs and the pool keep running."""
    extension = _loaded.pop(id(shell), None)
    if extension is not None:
        from nbtorchjob.commands import front

        extension.take_back()
        front.end()


def _matcher(context: Any) -> Any:
    from nbtorchjob.commands import completion

    return completion.matcher(context)


# IPython's second matcher API: a plain function is taken for one of the first, which gets only the text.
_matcher.matcher_api_version = 2  # type: ignore[attr-defined]
_matcher.matcher_identifier = "nbtorchjob"  # type: ignore[attr-defined]
