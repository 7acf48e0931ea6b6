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
    """A form for ``spec``, by default for the settings that a bare ``%%torchjob`` uses.

    From then on, the form's settings are the session's default: a bare ``%%torchjob`` uses them, and options
    on a magic's line override them. Invalid entries leave the default as it was. Raises ``NotInstalledError``
    if ipywidgets isn't installed, and ``SpecError`` if the default profile is invalid.
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
        # Without widgets, the reader of a saved notebook still sees the settings.
        return {**bundle, "text/plain": self._window.line.text}

    def __repr__(self) -> str:
        return f"<ConfigPanel {self.spec!r}>"
