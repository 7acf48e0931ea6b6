"""The folder that is kept between kernels."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from nbtorchjob.errors import NBTorchJobError

STATE = "NBTORCHJOB_STATE_DIR"


def state_dir() -> Path:
    """Give the user's state directory, made if need be, for this user only."""
    named = os.environ.get(STATE)
    path = Path(named).expanduser() if named else platformdirs.user_state_path("nbtorchjob")
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as exc:
        raise NBTorchJobError(
            f"jobs can't be kept in {path} ({exc.strerror}): set {STATE} to a folder that you can write to"
        ) from exc
    return path.absolute()
