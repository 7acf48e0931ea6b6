"""The panel as widgets: entries go to ``frontends/panel/form.py``, and its verdict comes back."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from html import escape
from typing import Any

import ipywidgets as widgets

from nbtorchjob import capture, submission
from nbtorchjob.backends import backend
from nbtorchjob.backends.base import Choice, Images
from nbtorchjob.commands import front
from nbtorchjob.errors import NBTorchJobError, SpecError
from nbtorchjob.frontends.panel import controls, form
from nbtorchjob.frontends.panel.actions import Actions, Latest
from nbtorchjob.frontends.panel.controls import Copyable, Field, Fold, help_text, show, style
from nbtorchjob.spec import profiles
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.jobspec import PLACES, JobSpec
from nbtorchjob.spec.options import KEYS, magic_line
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint
from nbtorchjob.ui.elements import grid, inserting, text_line


class Profiles:
    """A name, and the buttons that load its profile or save it.

    ``default`` is the default profile, which a magic's line overrides in a new session.
    """

    def __init__(self, get_spec: Callable[[], JobSpec | None], put: Callable[[JobSpec], None]) -> None:
        self._get_spec, self._put = get_spec, put
        self.name = widgets.Combobox(description="profile", placeholder="NAME")
        self.load = widgets.Button(description="Load", tooltip="Load this profile into the form")
        self.save = widgets.Button(description="Save", tooltip="Save the form as this profile")
        self.status = widgets.HTML()
        self.load.on_click(lambda _: self._tell(self._load))
        self.save.on_click(lambda _: self._tell(self._save))
        row = widgets.HBox([self.name, self.load, self.save]).add_class("nbtorchjob-actions")
        self.box = widgets.VBox([row, self.status])
        self.default = JobSpec()
        self._read()

    def _read(self) -> None:
        with suppress(SpecError):  # a broken file is reported when a profile is loaded
            self.name.options = profiles.names()
            self.default = profiles.default()

    def _load(self) -> str:
        name = self.name.value.strip()
        self._put(profiles.load(name))
        return f"Loaded {name}."

    def _save(self) -> str:
        spec, name = self._get_spec(), self.name.value.strip()
        if spec is None:
            return "Not saved: fix the invalid settings first."
        path = profiles.save(name, spec)
        self._read()
        self._put(spec)
        return f"Saved in {path}: %%torchjob -p {name}"

    def _tell(self, act: Callable[[], str]) -> None:
        try:
            text = act()
        except NBTorchJobError as exc:
            text = str(exc)
        self.status.value = f'<div role="status">{escape(text)}</div>'


_MOST = 60  # characters of a name


def table(spec: JobSpec, namespace: Mapping[str, Any]) -> str:
    """Return, as HTML, how the packages in the images compare with those of the notebook's ``namespace``."""
    try:
        every = submission.images_of(spec, capture.of_notebook(namespace))
    except (NBTorchJobError, ImportError) as exc:
        return text_line(str(exc))
    if not every:
        return text_line("A job on this machine uses this notebook's packages.")
    parts = []
    for comparison in every:
        if not comparison.rows:
            parts.append(text_line("This notebook hasn't imported any package yet."))
            continue
        text = comparison.summary
        if comparison.target is None:
            text += f": run a job with the image, or {hint('doctor', '--probe')}"
        parts += [text_line(f"{text[0].upper()}{text[1:]}."), grid(comparison.table(), _MOST)]
    return "".join(parts)


_LAUNCH_HELP = "Elastic: nodes as in torchrun; PyTorch: a master and workers with one rank each"


class Window:
    """All that a panel shows. ``verdict`` is the result of its current entries."""

    def __init__(self, spec: JobSpec) -> None:
        self.verdict = form.Verdict(None)
        self.line = Copyable("the magic line", partial(inserting, "Insert into a cell"))
        self.python = Copyable("the Python call")
        self.manifests = Copyable("the manifests")
        self.profiles = Profiles(lambda: self.verdict.spec, self.put)
        self.actions = Actions(lambda: self.verdict.spec)
        self._status = widgets.HTML().add_class("nbtorchjob-status")
        self._lookup, self._dry_run = Latest(), Latest()
        self._target: tuple[str, ...] = ()
        self._offered: Mapping[str, Sequence[Choice]] = {}
        # Choices arrive in another thread, maybe while a section is built; each field must get the newest.
        self._offering = threading.Lock()
        self._fields: dict[str, Field] = {}  # of the sections that have been opened
        self._filling = False
        self._base, self._entries = spec, form.entries(spec)
        self._sections = [
            (section, Fold(section.title, partial(self._build, section))) for section in form.advanced()
        ]
        self._advanced = Fold("Advanced", lambda: [fold.box for _, fold in self._sections])
        self._image = widgets.HTML().add_class("nbtorchjob-image")
        self._imports = Fold("This notebook's imports in the image", self._preview_imports)
        self._starts = Fold("Manifests, or local processes", self._preview_manifests)
        parts = [
            style(),
            self.profiles.box,
            widgets.Box(self._build(form.common())).add_class("nbtorchjob-body"),
            self._advanced.box,
            self._status,
            self.line.widget,
            Fold("Python", lambda: [self.python.widget], opened=True).box,
            self._imports.box,
            self._starts.box,
            self.actions.box,
        ]
        self.box = widgets.VBox(parts).add_class("nbtorchjob-panel")
        self.put(spec)

    def put(self, spec: JobSpec) -> None:
        """Show ``spec`` in place of the current settings."""
        self._base, self._entries = spec, form.entries(spec)
        self._filling = True
        for key, field in self._fields.items():
            field.control.put(self._entries[key])
        self._filling = False
        self._changed()

    def _build(self, section: form.Section) -> list[Any]:
        fields = {o.key: Field(controls.control(o), help_text(o)) for o in section.options}
        if section.launches:
            fields = {form.LAUNCH: Field(controls.launches(), _LAUNCH_HELP), **fields}
        with self._offering:
            self._fields |= fields
            for key, field in fields.items():
                field.control.offer(self._offered.get(key, ()))
        for key, field in fields.items():
            field.control.put(self._entries[key])
            field.control.watch(self._changed)
        self._judge_fields()
        return [field.box for field in fields.values()]

    def _changed(self) -> None:
        if self._filling:
            return
        self._entries |= {key: field.control.entry for key, field in self._fields.items()}
        self.verdict = form.judge(self._entries, self._base)
        self._judge_fields()
        usual = form.entries(JobSpec())
        all_wrong = all_filled = 0
        for section, fold in self._sections:
            shown = [o.key for o in section.options if form.shows(o, self._entries)]
            wrong = sum(key in self.verdict.errors for key in shown)
            filled = sum(self._entries[key] not in (usual[key], "") for key in shown)
            filled += section.launches and self._entries[form.LAUNCH] != usual[form.LAUNCH]
            fold.note(_noted(wrong, filled))
            show(fold.box, shown=bool(shown) or section.launches)
            all_wrong, all_filled = all_wrong + wrong, all_filled + filled
        self._advanced.note(_noted(all_wrong, all_filled))
        self._status.value = _status(self.verdict)
        self.actions.enable(enabled=self.verdict.spec is not None)
        if self.verdict.spec is not None:
            front.use(self.verdict.spec)
            spec = self.verdict.spec
            base = self.profiles.default
            self.line.show(f"%%torchjob {magic_line(spec, base=base)}".rstrip(), form.unsaid(spec, base))
            self.python.show(form.python(spec))
            if self._starts.body.children:
                self._preview_manifests()
            if self._imports.body.children:
                self._preview_imports()
        # Ask the cluster for choices, once for each context and namespace.
        target = tuple(str(self._entries[key]) for key in ("backend", "context", "namespace"))
        wrong_place = {"context", "namespace"} & self.verdict.errors.keys()
        # A half-typed context doesn't exist.
        contexts = ("", *(choice.value for choice in self._offered.get("context", ())))
        looked_up = target == self._target
        if not PLACES[target[0]].has_pods or looked_up or wrong_place or target[1] not in contexts:
            return
        self._target = target
        cluster = Cluster(context=target[1] or None, namespace=target[2] or None)
        bare = JobSpec(backend=target[0], cluster=cluster)

        def choices() -> Mapping[str, Sequence[Choice]]:
            try:
                chosen = backend(bare.backend)
                return chosen.choices(bare) if isinstance(chosen, Images) else {}
            except (NBTorchJobError, ImportError):  # the doctor reports these
                return {}

        self._lookup.ask(choices, self._offer)

    def _judge_fields(self) -> None:
        for key, field in self._fields.items():
            field.judge(self.verdict.errors.get(key, ""))
            show(field.box, shown=key not in KEYS or form.shows(KEYS[key], self._entries))

    def _preview_imports(self) -> list[Any]:
        """Look up the imports, and return the widgets that show them."""
        spec = self.verdict.spec
        if spec is not None:
            self._image.value = table(spec, vars(sys.modules["__main__"]))
        return [self._image]

    def _preview_manifests(self) -> list[Any]:
        """Start making the manifests, and return the widgets that show them."""
        spec = self.verdict.spec

        def manifests(spec: JobSpec) -> str:
            # For an empty cell: what the function takes along is only known when it is sent.
            try:
                return submission.dry_run(capture.from_cell("None", {}), spec)
            except (NBTorchJobError, ImportError) as exc:
                return f"# {exc}"

        if spec is not None:
            self._dry_run.ask(lambda: manifests(spec), self.manifests.show)
        return [self.manifests.widget]

    def _offer(self, choices: Mapping[str, Sequence[Choice]]) -> None:
        with self._offering:
            self._offered = choices
            for key, field in self._fields.items():
                field.control.offer(choices.get(key, ()))


def _noted(wrong: int, filled: int) -> str:
    """Say how many fields of a section are wrong, or if none is, how many are set."""
    return f"{wrong} wrong" if wrong else f"{filled} set" if filled else ""


def _status(verdict: form.Verdict) -> str:
    if verdict.spec is not None:
        lines = ["A bare %%torchjob in this notebook uses these settings.", *verdict.notes]
    else:
        wrong = ", ".join(filter(None, verdict.errors))
        lines = [
            f"{words.count(len(verdict.errors), 'invalid setting')}{f': {wrong}' if wrong else ''}. "
            "Until fixed, a bare %%torchjob and the previews below use the last valid settings."
        ]
        lines += [verdict.errors[""]] if "" in verdict.errors else []
    return f'<div role="status">{"".join(f"<div>{escape(text)}</div>" for text in lines)}</div>'
