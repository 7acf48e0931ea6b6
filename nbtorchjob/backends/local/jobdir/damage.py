"""What a power cut, a full disk or somebody's hand has left of a job's files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nbtorchjob.errors import DamagedError, NBTorchJobError
from nbtorchjob.state.events import UNREADABLE
from nbtorchjob.state.info import why


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
        raise DamagedError("local", folder.name, what, why(exc)) from exc
