"""Profiles in the panel: loaded by name, and saved."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from html import escape

import ipywidgets as widgets

from nbtorchjob.errors import NBTorchJobError, SpecError
from nbtorchjob.spec import profiles, saving
from nbtorchjob.spec.jobspec import JobSpec


class Profiles:
    """A name, and the buttons that load its profile or save it.

    ``default`` is the default profile, which a magic's line overrides in a new session.
    """

    def __init__(self, wanted: Callable[[], JobSpec | None], put: Callable[[JobSpec], None]) -> None:
        self._wanted, self._put = wanted, put
        self.name = widgets.Combobox(description="profile", placeholder="NAME")
        self.load = widgets.Button(description="Load", tooltip="Load this profile into the form")
        self.save = widgets.Button(description="Save", tooltip="Save the form as this profile")
        self.told = widgets.HTML()
        self.load.on_click(lambda _: self._tell(self._load))
        self.save.on_click(lambda _: self._tell(self._save))
        row = widgets.HBox([self.name, self.load, self.save]).add_class("nbtorchjob-actions")
        self.box = widgets.VBox([row, self.told])
        self.default = JobSpec()
        self._read()

    def _read(self) -> None:
        with suppress(SpecError):  # a broken file is reported when a profile is loaded
            self.name.options = profiles.names()
            self.default = profiles.default()

    def _load(self) -> str:
        name = self.name.value.strip()
        self._put(profiles.load(name))
        return f"The form shows {name}."

    def _save(self) -> str:
        spec, name = self._wanted(), self.name.value.strip()
        if spec is None:
            return "Not saved: fix the invalid settings first."
        path = saving.save(name, spec)
        self._read()
        self._put(spec)
        return f"Saved in {path}: %%torchjob -p {name}"

    def _tell(self, act: Callable[[], str]) -> None:
        try:
            said = act()
        except NBTorchJobError as exc:
            said = str(exc)
        self.told.value = f'<div role="status">{escape(said)}</div>'
