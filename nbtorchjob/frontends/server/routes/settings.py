"""What a job can be given here: the options, the profiles, and whether all that they need is there."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any

from jupyter_server.auth.decorator import authorized
from tornado import web

from nbtorchjob.backends import backend
from nbtorchjob.errors import MalformedError, NBTorchJobError, SpecError
from nbtorchjob.frontends.server.handlers import Api
from nbtorchjob.frontends.server.ids import lane
from nbtorchjob.frontends.server.routes import schema
from nbtorchjob.spec import options, profiles, site
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.options import CellOptions

_MOST_SHOWN = 80


class OptionsHandler(Api):
    """Every option."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Return the JSON Schema of a profile: keys, types, defaults and what each option is for."""
        self.finish(schema.profile())


class _AtNotebook(Api):
    """Requests about a notebook: profiles are searched in its folder and above, as its kernel does."""

    def folder(self) -> Path:
        """Return where to search from; raises ``MalformedError`` for what isn't below the server's root."""
        path = self.get_argument("path", "", strip=False)
        parts = PurePosixPath(path.strip("/")).parts
        if ".." in parts:
            raise MalformedError(
                f"path: got {path[:_MOST_SHOWN]!r}, but it must be a notebook's path or folder, "
                "as the server's contents have it"
            )
        return Path(self.serverapp.root_dir, *parts)


class ProfilesHandler(_AtNotebook):
    """The profiles."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Return the profiles that the notebook at ``path`` finds, and the name of its default or null.

        Each has the line that selects it and the whole spec that results. ``notes`` name those that can't
        be used, and why; 409 for a file that can't be read.
        """
        folder = self.folder()
        self.finish(await self.ask("profiles", lambda: _profiles(folder)))


def _profiles(cwd: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    notes = profiles.notes(cwd=cwd)
    for name in profiles.names(cwd=cwd):
        try:
            line = options.magic_line(JobSpec(), CellOptions(profile=name))
            found[name] = {"line": f"%%torchjob {line}", "spec": profiles.load(name, cwd=cwd).to_json()}
        except NBTorchJobError as exc:  # the others are still there
            notes.append(str(exc))
    return {"default": profiles.default_name(cwd=cwd), "profiles": found, "notes": notes}


class DoctorHandler(_AtNotebook):
    """What a job would need."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Check everything that a job of the profile would need, by default the notebook's default profile.

        That may take a while: it asks the cluster, and tries its stores with a small file, which is removed
        afterwards. So it is a POST: a link on somebody else's page can't trigger it.
        """
        folder, name = self.folder(), self.get_argument("profile", "", strip=False)
        spec = await self.ask("profiles", lambda: _spec(name, folder))
        there = lane(spec.backend, spec.cluster.context)
        # It has a lane of its own: it asks much, and mustn't take room from what is done to jobs.
        found = await self.ask(f"{there} (doctor)", lambda: backend(spec.backend).doctor(spec))
        self.finish({"findings": [asdict(finding) for finding in found]})


def _spec(name: str, cwd: Path) -> JobSpec:
    try:
        return site.admitted(profiles.load(name, cwd=cwd) if name else profiles.default(cwd=cwd))
    except SpecError as exc:
        if exc.field == "profile":  # the request's mistake; any other is in a file
            raise MalformedError(str(exc)) from None
        raise
