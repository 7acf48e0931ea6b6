"""What the image must hold, which only a pod can find out."""

from __future__ import annotations

import sys

from nbtorchjob.backends.base import Finding
from nbtorchjob.payload.archive import torch_version
from nbtorchjob.spec.jobspec import JobSpec


def look(spec: JobSpec) -> Finding:
    """Report what Python and torch the image needs; a node with another Python fails with one line."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    here = torch_version()
    image = f"the image {spec.cluster.image}" if spec.cluster.image else "the image"
    text = (
        f"{image} needs Python {python}, as this kernel has, and torch (here: {here or 'none'}); it isn't "
        "started to check: a node with another Python, or without torch, ends at once with a one-line error"
    )
    return Finding(True, text)
