"""The configuration panel: a form for a ``JobSpec``, in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbtorchjob import errors
from nbtorchjob.commands import front
from nbtorchjob.spec.config import Launch
from nbtorchjob.spec.jobspec import JobSpec

if TYPE_CHECKING:
    from nbtorchjob.job import Job


class ConfigPanel:
    """A form for ``spec``; without one, for what a bare ``%%torchjob`` uses.

    What it shows is the session's default from then on: a bare ``%%torchjob`` uses it, and options on a
    magic's line override it. Invalid entries leave the default as it was. Raises ``NotInstalledError``
    where ipywidgets isn't, ``SpecError`` where the default profile is wrong.
    """

    def __init__(self, spec: JobSpec | Launch | None = None) -> None:
        with errors.needs_extra("jupyter", "the panel"):
            from nbtorchjob.frontends.panel.window import Window

        self._window = Window(front.default() if spec is None else JobSpec.of(spec))

    @property
    def spec(self) -> JobSpec | None:
        """The form's settings as they are now; None while one of them is invalid."""
        return self._window.verdict.spec

    @property
    def job(self) -> Job[Any] | None:
        """The job that *Run* submitted last."""
        return self._window.actions.job

    @property
    def widget(self) -> Any:
        """The panel as one ipywidget, to put into a layout of your own."""
        return self._window.box

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = self._window.box._repr_mimebundle_(**options)
        # Where no widget shows, the reader of a saved notebook sees what was set.
        return {**bundle, "text/plain": self._window.line.text}

    def __repr__(self) -> str:
        return f"<ConfigPanel {self.spec!r}>"
