"""Routes of a job's settings: the options, the profiles, and whether everything that they need is there.

Also the option table as JSON Schema (pure): what other programs' forms need to know about a profile.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias, cast

from jupyter_server.auth.decorator import authorized
from tornado import web

from nbtorchjob.backends import backend
from nbtorchjob.errors import MalformedError, NBTorchJobError, SpecError
from nbtorchjob.frontends.server.handlers import Api, lane
from nbtorchjob.spec import Option, options, profiles
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.options import GROUPS, KEYS, CellOptions
from nbtorchjob.spec.overlay import overlay, read, value_at
from nbtorchjob.spec.policies import Retry

Schema: TypeAlias = dict[str, Any]

_TYPES: dict[str, Schema] = {
    "text": {"type": "string"},
    "int": {"type": "integer"},
    "number": {"type": "number"},
    "switch": {"type": "boolean"},
    "pairs": {"type": "object", "additionalProperties": {"type": "string"}},
    "texts": {"type": "array", "items": {"type": "string"}},
}


@cache
def profile() -> Schema:
    """Return the schema (2020-12) of a profile: of the table ``[profiles.NAME]`` in ``nbtorchjob.toml``.

    It describes names and types; ``profiles.load`` checks the relations between options and the grammar of
    texts. Besides JSON Schema's own keywords an option has ``x-group``, ``x-unit`` and, if its texts aren't
    plain values, ``x-form``: how one is written.
    """
    described = {}
    for key, option in KEYS.items():
        notes: Schema = {"default": read(option, option.default, option.key)} if option.default else {}
        if value_at(option, _PLAIN) is False:  # a site may set others that aren't given
            notes["default"] = False
        notes["x-group"] = _TITLES[option.home]
        if option.unit:
            notes["x-unit"] = option.unit
        if option.metavar and not option.choices:
            notes["x-form"] = option.metavar
        kind: Schema
        if option.choices:
            kind = {"type": "string", "enum": list(option.choices)}
        else:
            other = next((name for name, value in _OTHERS if _takes(option, value)), None)
            if other is None:
                kind = _TYPES[option.takes]
            else:
                either: Schema = {"type": ["string", other]}
                kind = (
                    either
                    if option.takes == "text"
                    else {**_TYPES[option.takes], "additionalProperties": either}
                )
        described[key] = {**kind, "description": option.help, **notes}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A profile of nbtorchjob",
        "description": (
            "The options of a job, by their keys in a profile: [profiles.NAME] of nbtorchjob.toml. "
            "Each is the flag of that name on a %%torchjob line."
        ),
        "type": "object",
        "properties": described,
        "additionalProperties": False,
    }


_PLAIN = JobSpec(retry=Retry())
_TITLES = {home: title for title, home, _ in GROUPS}


# What may be written in place of a text, the widest first: an amount, a count, a patch.
_OTHERS: tuple[tuple[str, Any], ...] = (("number", 1.5e9), ("integer", 2), ("object", {"spec": {}}))


def _takes(o: Option, value: Any) -> bool:
    """Whether an option's text, or one of its mapping's texts, may be of that value's type."""
    if o.takes not in ("text", "pairs"):
        return False
    # Try it with the field itself, as the table doesn't know a text's grammar. The name is one that all
    # mappings accept: for a variable, a label or a resource.
    candidate = {"example.com/a": value} if o.takes == "pairs" else value
    try:
        overlay(JobSpec(), {o: candidate}, lambda option: option.key)
    except SpecError:
        return False
    return True


_MOST_SHOWN = 80


class OptionsHandler(Api):
    """Every option."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Return the JSON Schema of a profile: keys, types, defaults and what each option is for."""
        self.finish(profile())


class _AtNotebook(Api):
    """Requests about a notebook: profiles are searched in its folder and above, as its kernel does."""

    def folder(self) -> Path:
        """Return the folder that its kernel starts in, which need not be below the served folder.

        Raises ``MalformedError`` for a path outside the server's contents.
        """
        path = self.get_argument("path", "", strip=False)
        if ".." in PurePosixPath(path).parts:
            raise MalformedError(
                f"path: got {path[:_MOST_SHOWN]!r}, but it must be a notebook's path or folder, "
                "as the server's contents have it"
            )
        return Path(cast("Any", self.serverapp).kernel_manager.cwd_for_path(path))


class ProfilesHandler(_AtNotebook):
    """The profiles."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Return the profiles that the notebook at ``path`` finds, and the name of the default one or null.

        Each has the line that selects it and the whole spec that results. ``notes`` say which profiles can't
        be used, and why; 409 for a file that can't be read.
        """

        def find() -> dict[str, Any]:
            folder = self.folder()
            by_name: dict[str, Any] = {}
            notes = profiles.notes(cwd=folder)
            for name in profiles.names(cwd=folder):
                try:
                    line = options.magic_line(JobSpec(), CellOptions(profile=name))
                    spec = profiles.load(name, cwd=folder).to_json()
                    by_name[name] = {"line": f"%%torchjob {line}", "spec": spec}
                except NBTorchJobError as exc:  # the other profiles are still there
                    notes.append(str(exc))
            return {"default": profiles.default_name(cwd=folder), "profiles": by_name, "notes": notes}

        self.finish(await self.ask("profiles", find))


class DoctorHandler(_AtNotebook):
    """A check of what a job would need."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Check everything that a job of the profile would need, by default the notebook's default profile.

        That may take a while: it asks the cluster, and tries its stores with a small file, which is removed
        afterwards. So it is a POST: a link on somebody else's page can't trigger it.
        """
        name = self.get_argument("profile", "", strip=False)

        def find() -> JobSpec:
            folder = self.folder()
            try:
                profile = profiles.load(name, cwd=folder) if name else profiles.default(cwd=folder)
                return profiles.admitted(profile)
            except SpecError as exc:
                if exc.field == "profile":  # the request's mistake; any other is in a file
                    raise MalformedError(str(exc)) from None
                raise

        spec = await self.ask("profiles", find)
        lane_name = lane(spec.backend, spec.cluster.context)
        # In a lane of its own: it makes many requests, and mustn't take room from what is done to jobs.
        findings = await self.ask(f"{lane_name} (doctor)", lambda: backend(spec.backend).doctor(spec))
        self.finish({"findings": [asdict(finding) for finding in findings]})
