"""What the image must hold, which only a pod can find out."""

from __future__ import annotations

import time

from nbtorchjob.backends.base import Finding
from nbtorchjob.backends.kubernetes.pod.template import asked_images
from nbtorchjob.capture import PYTHON as _PYTHON
from nbtorchjob.environment import images
from nbtorchjob.environment.images import Asked, Contents
from nbtorchjob.payload.archive import torch_version
from nbtorchjob.runtime import torch_versions
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.text import words

_TORCH = "{}.{}".format(*torch_versions.OLDEST)


def look(spec: JobSpec) -> list[Finding]:
    """Report what each image is known to have, or else what it needs."""
    return [
        _look(asked, named=image is not None)
        for asked, image in zip(asked_images(spec), spec.images, strict=True)
    ]


def _look(asked: Asked, *, named: bool) -> Finding:
    known = images.known(asked)
    image = f"the image {asked.image}" if named or known is not None else "the image"
    if known is not None:
        return _told(image, known)
    here = torch_version() or "none"
    text = (
        f"{image} needs Python and torch {_TORCH} or later (here: {_PYTHON}, {here}); it isn't started to "
        "check, but with --probe: its first job tells what it has, and a node without "
        "torch ends at once with a line"
    )
    return Finding(True, text)


def _told(image: str, known: Contents) -> Finding:
    there = known.environment
    torch = there.distributions.get("torch")
    has = f"Python {there.python}, {f'torch {torch}' if torch else 'no torch'}"
    others = words.count(len(there.distributions.keys() - {"torch"}), "other package")
    ago = words.about(max(0.0, time.time() - known.told))
    good = torch is not None and not torch_versions.too_old(torch)
    needs = "" if good else f": a job needs torch {_TORCH} or later"
    return Finding(good, f"{image} has {has} and {others} on {there.platform}, as it told {ago} ago{needs}")
