"""What a job's image has of what the notebook imports, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbtorchjob import capture, submission
from nbtorchjob.environment.compare import Comparison
from nbtorchjob.errors import NBTorchJobError
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.text.hints import hint
from nbtorchjob.ui.elements import grid, told

_MOST = 60  # characters of a name


def table(spec: JobSpec, namespace: Mapping[str, Any]) -> str:
    """Return it as HTML; ``namespace`` holds the notebook's variables."""
    try:
        every = submission.images_of(spec, capture.of_notebook(namespace))
    except (NBTorchJobError, ImportError) as exc:
        return told(str(exc))
    if not every:
        return told("A job on this machine has what this notebook has.")
    return "".join(map(_table, every))


def _table(found: Comparison) -> str:
    if not found.rows:
        return told("This notebook has imported nothing yet that an image may lack.")
    said = found.summary
    if found.there is None:
        said += f": the first job of the image tells it, or {hint('doctor', '--probe')}"
    return told(f"{said[0].upper()}{said[1:]}.") + grid(found.table(), _MOST)
