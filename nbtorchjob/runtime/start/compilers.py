"""Where the compilers of a rank's code keep their output, which they load again without a check.

torch uses a folder with a predictable name in the machine's temporary folder, and unpickles what it finds
there: anybody who creates that folder first can have their code run. Environment variables select another
folder, except for precompiled headers and the memos of torch's own code, which always go there.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from contextlib import suppress
from typing import Dict, Mapping, MutableMapping

# By default Triton (3.5) uses a folder in the home, and in torch's processes one of torch's; the part of
# QuACK that torch bundles uses one in the temporary folder. matplotlib (3.11), numba (0.62) and transformers
# (5.3) keep nothing in shared places.
_FOLDERS = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "QUACK_CACHE_DIR": "quack"}
_TEMPORARY = ("TMPDIR", "TEMP", "TMP")
_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")


def variables(folder: str) -> Dict[str, str]:
    """Return the environment variables that make compilers use ``folder``."""
    return {name: os.path.join(folder, below) for name, below in _FOLDERS.items()}


def default(env: Mapping[str, str]) -> str:
    """Return the folder that torch uses by default in a process with this environment."""
    places = (env.get(name) for name in _TEMPORARY)
    temporary = next((os.path.abspath(place) for place in places if place and os.path.isdir(place)), "/tmp")
    name = next((env[name] for name in _NAMES if env.get(name)), "")
    if not name:
        try:
            name = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            name = "uid_%d" % os.getuid()
    return os.path.join(temporary, "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", name))


def chosen(env: Mapping[str, str]) -> Dict[str, str]:
    """Return an environment without the default folder that torch itself sets there once it needs one."""
    its_own = default(env)
    return {
        name: value
        for name, value in env.items()
        if not (name in _FOLDERS and (value + os.sep).startswith(its_own + os.sep))
    }


def lead(env: MutableMapping[str, str], folder: str) -> None:
    """Make compilers use ``folder``, which is the node's own, unless the environment says otherwise."""
    for name, path in variables(folder).items():
        env.setdefault(name, path)
    # Create torch's default folder, so that nobody else can. It is used only if others can't write to it.
    usual, safe = default(env), False
    with suppress(OSError):
        with suppress(FileExistsError):
            os.mkdir(usual, 0o700)
        status = os.lstat(usual)
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        safe = is_own and not status.st_mode & 0o022
    if not safe:
        env["TMPDIR"] = os.path.join(folder, "tmp")
        os.makedirs(env["TMPDIR"], 0o700, exist_ok=True)
