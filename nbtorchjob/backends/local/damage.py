"""What a power cut, a full disk or somebody's hand has left of a job's files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nbtorchjob.errors import DamagedError, NBTorchJobError
from nbtorchjob.events import UNREADABLE


@contextmanager
def reading(folder: Path, what: str = "record") -> Iterator[None]:
    """Raise ``DamagedError`` for what can't be read; of a job that is gone ``FileNotFoundError`` stays."""
    try:
        yield
    except NBTorchJobError:
        raise
    except (OSError, *UNREADABLE) as exc:
        if isinstance(exc, FileNotFoundError) and not (folder / "events.jsonl").exists():
            raise
        raise DamagedError("local", folder.name, what, _why(exc)) from exc


def _why(exc: Exception) -> str:
    if isinstance(exc, KeyError):
        return f"{exc} is missing"
    said = exc.strerror if isinstance(exc, OSError) else str(exc)
    return " ".join(f"{said or type(exc).__name__}".split())
