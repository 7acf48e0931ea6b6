"""Which clusters this user has submitted to, so that a new kernel knows where to look for jobs.

Only a hint: the truth about a job lies with its objects on the cluster.
"""

from __future__ import annotations

import glob
import hashlib
import json
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from nbtorchjob.errors import NBTorchJobError
from nbtorchjob.machine.folders import own, record, state_dir
from nbtorchjob.machine.processes import locked
from nbtorchjob.spec import profiles

_FORGET_S = 90 * 24 * 3600.0  # longer than clusters keep ended jobs


@dataclass(frozen=True, order=True)
class Scope:
    """A namespace of the cluster that a kubeconfig's ``context`` leads to."""

    context: str
    namespace: str

    @classmethod
    def parse(cls, text: str) -> Scope:
        """Parse the output of ``str``, ``CONTEXT/NAMESPACE`` or ``NAMESPACE``; contexts may have slashes."""
        context, _, namespace = text.rpartition("/")
        return cls(context, namespace)

    def __str__(self) -> str:
        return "/".join(part for part in (self.context, self.namespace) if part)

    def folder(self, job: str, uid: str) -> Path:
        """Return the folder for this machine's cache of a job there; only its parent is sure to exist.

        ``uid`` is the job object's: a later job with the same name has another one.
        """
        return self._caches() / f"{job}.{uid}"

    def folders(self, job: str) -> list[Path]:
        """Return the folders of jobs with that name, the newest first."""
        return sorted(
            self._caches().glob(f"{glob.escape(job)}.*"), key=lambda path: path.stat().st_mtime, reverse=True
        )

    def _caches(self) -> Path:
        named = hashlib.sha256(f"{self.context}\n{self.namespace}".encode()).hexdigest()[:12]
        return own(_root() / named)


def recorded_scopes() -> list[Scope]:
    """Return the scopes that jobs were sent to from this machine, the newest first."""
    with suppress(OSError, ValueError, TypeError):
        return [Scope(**entry) for entry in json.loads(record(_file()))]
    return []


def looked_at() -> list[Scope]:
    """Return where to look for jobs: where this user has sent some, and where the profile sends them."""
    scopes = dict.fromkeys(recorded_scopes())
    with suppress(NBTorchJobError):  # a faulty profile, or a working folder that was deleted
        spec = profiles.default()
        if spec.backend == "kubernetes" and spec.cluster.namespace is not None:
            scopes[Scope(spec.cluster.context or "", spec.cluster.namespace)] = None
    return list(scopes)


def named_in() -> list[Scope]:
    """Return where to look for a job by its name alone: where the settings say, else wherever there are jobs.

    Several namespaces may each have a job with that name.
    """
    with suppress(NBTorchJobError):
        cluster = profiles.default().cluster
        if cluster.namespace is not None:
            settled = Scope(cluster.context or "", cluster.namespace)
            others = [scope for scope in looked_at() if scope.namespace == settled.namespace]
            return list(dict.fromkeys([settled, *(others if not settled.context else ())]))
    return looked_at()


def remember(scope: Scope) -> None:
    """Record that a job was sent to ``scope``; raises ``OSError``."""
    with locked(_root() / "lock"):  # else, if two kernels submit at once, the entry of one is lost
        others = [other for other in recorded_scopes() if other != scope]
        partial = _file().with_suffix(".partial")
        partial.write_text(json.dumps([asdict(entry) for entry in (scope, *others)]))
        partial.replace(_file())
    # Remove the caches of jobs that no process here has followed for a long time.
    for path in _root().glob("*/*.*"):
        with suppress(OSError):  # another kernel does the same
            if path.is_dir() and time.time() - path.stat().st_mtime > _FORGET_S:
                shutil.rmtree(path)


def _root() -> Path:
    return own(state_dir() / "kubernetes")


def _file() -> Path:
    return _root() / "scopes.json"
