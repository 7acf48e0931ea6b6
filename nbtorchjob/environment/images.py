"""What images are known to have, as their nodes told: kept in the user's folder, by the image's digest.

A reference (``team/train:latest``) leads to the digest that it last had, in a kubeconfig's context; by now it
may be another image's. What a job mounts, or sets for Python, may be imported, too: that is told apart.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from nbtorchjob.environment.here import Environment
from nbtorchjob.errors import NBTorchJobError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.machine.folders import own, record, state_dir
from nbtorchjob.spec.validation import built
from nbtorchjob.state.events import EnvironmentTold

_FORGET_S = 90 * 24 * 3600.0
# All that names and versions are made of (PEP 508, PEP 440), and what is left of a platform.
_plain = re.compile(r"[\w.+! -]{1,128}", re.ASCII).fullmatch


class Asked(NamedTuple):
    """An image as a job asks for it; ``beside`` is what else of the job may change what is imported."""

    context: str
    image: str
    beside: str = ""


class Contents(FrozenDataclass):
    """What an image has, that goes by ``image`` and is ``digest``; ``time`` is when a node reported it."""

    image: str
    digest: str
    time: float
    environment: Environment


def learn(asked: Asked, digest: str, fact: EnvironmentTold) -> None:
    """Write down what a node of that image told, by the image's digest."""
    known = Contents(asked.image, digest or asked.image, fact.time, of(fact))
    with suppress(OSError, NBTorchJobError):  # a full disk: the next job tells it again
        # Forget images that no job has run for a long time.
        for path in _folder().iterdir():
            if time.time() - path.stat().st_mtime > _FORGET_S:
                path.unlink(missing_ok=True)  # another kernel is as tidy
        _write(_contents(known.digest, asked), asdict(known))
        _write(_reference(asked), {"digest": known.digest})


def known(asked: Asked) -> Contents | None:
    """Return what the image is known to have that such a reference last led to."""
    with suppress(OSError, NBTorchJobError, ValueError, TypeError, KeyError):
        digest = str(json.loads(record(_reference(asked)))["digest"])
        return replace(built(Contents, json.loads(record(_contents(digest, asked)))), image=asked.image)
    return None


def of(fact: EnvironmentTold, *, installed: bool = False) -> Environment:
    """Return what a node's image has, and maybe what was ``installed`` for its job.

    What can't be the name of anything is left out, as the rest is shown in terminals.
    """
    distributions = {**fact.distributions, **fact.installed} if installed else fact.distributions
    versions = {name: version for name, version in distributions.items() if _plain(name) and _plain(version)}
    modules = tuple(filter(_plain, fact.modules))
    python, platform = (text if _plain(text) else "" for text in (fact.python, fact.platform))
    return Environment(python, platform, versions, modules)


def _contents(digest: str, asked: Asked) -> Path:
    return _folder() / f"{_hashed(digest, asked.beside)}.json"


def _reference(asked: Asked) -> Path:
    return _folder() / f"{_hashed(*asked)}.ref"


def _hashed(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:24]


def _folder() -> Path:
    return own(state_dir() / "images")


def _write(path: Path, data: dict[str, Any]) -> None:
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(data))
    partial.replace(path)
