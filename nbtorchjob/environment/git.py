"""What git says about a folder: which commit it has, and what was changed since.

Git may be missing, slow or another program: it runs in the background, with limits on its time and its
output, and changes nothing.

A repository's configuration names programs, and ``git status`` runs them: filters above all, but also file
watchers, hooks, and programs that fetch missing objects. Unpacking an archive is no consent to run them.
So git gets a folder of our own in place of ``.git``: links to the repository's index, objects and
references, and a configuration of our own, with only the settings for how its files are to be read. A file
that can't be compared without a filter counts as changed.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.machine.folders import plain

WITHIN_S = 5.0
PAUSE_S = 0.5
_LEAST = 19  # of priorities
_END_S = 1.0  # for a killed process to be gone
_MOST_BYTES = 1 << 20  # of an answer: the names of changed files
_MOST_NAMES = 20
_MOST_NAME = 200  # characters
_ASKED = (
    "--no-optional-locks",  # otherwise status would write the index
    *("status", "--porcelain=v2", "--branch", "-z", "--ignore-submodules=all"),
)
# What is linked of a repository, and of one worktree alone; the index may be in parts.
_SHARED = ("objects", "refs", "packed-refs", "reftable", "info", "shallow")
_OWN = ("index", "sharedindex.")
# Settings that say how files are stored, compared and left out, and name no program. Values are words, and a
# path for the last one.
_PLAIN = (
    *("extensions.objectformat", "extensions.refstorage"),
    *("core.filemode", "core.symlinks", "core.ignorecase", "core.precomposeunicode", "core.autocrlf"),
    *("core.eol", "core.safecrlf", "core.sparsecheckout", "core.sparsecheckoutcone", "core.checkstat"),
    *("core.trustctime", "core.excludesfile"),
)
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_FIELDS = {"1": 8, "2": 9, "u": 10, "?": 1}  # in front of a path


class Checkout(FrozenDataclass):
    """A commit, its branch ("" for none), some of the files that differ from it, and how many more do."""

    commit: str
    branch: str
    changed: tuple[str, ...] = ()
    more: int = 0


class Looker:
    """Looks at folders in a thread of its own, one after the other; one look serves all that wait for it.

    It waits for ``pause`` seconds first: a look would delay a job that starts meanwhile by some milliseconds.
    """

    def __init__(self, within: float = WITHIN_S, pause: float = PAUSE_S) -> None:
        self._within = within
        self._pause = pause
        self._lock = threading.Lock()
        self._waiting: dict[Path, list[Callable[[Checkout], object]]] = {}
        self._working = False
        self._slow: set[Path] = set()  # where git didn't answer: it would keep a process from ending

    def look(self, folder: Path, tell: Callable[[Checkout], object]) -> None:
        """Call ``tell`` with what is found, soon; not at all if nothing is found."""
        if folder in self._slow or _root(folder) is None:
            return
        with self._lock:
            self._waiting.setdefault(folder, []).append(tell)
            if self._working:
                return
            self._working = True
        threading.Thread(target=self._work, name="nbtorchjob-git").start()

    def _work(self) -> None:
        while True:
            threading.main_thread().join(self._pause)  # a process that ends needn't wait
            with self._lock:
                if not self._waiting:
                    self._working = False
                    return
                folder, waiting = self._waiting.popitem()
            began = time.monotonic()
            state = checkout(folder, self._within)
            if time.monotonic() - began >= self._within:
                self._slow.add(folder)
            if state is not None:
                for tell in waiting:
                    with suppress(Exception):  # a job that was deleted; the others are still told
                        tell(state)


looker = Looker()  # of this process


def _root(folder: Path) -> Path | None:
    """Return the folder of the checkout that a folder is in."""
    return next((parent for parent in (folder, *folder.parents) if os.path.lexists(parent / ".git")), None)


def checkout(folder: Path, within: float = WITHIN_S) -> Checkout | None:
    """Return what git says about a folder; None if it says nothing that makes sense, in time."""
    # Without relative folders on PATH: a program there might be the notebook's.
    path = os.pathsep.join(directory for directory in os.get_exec_path() if os.path.isabs(directory))
    program, root, until = shutil.which("git", path=path), _root(folder), time.monotonic() + within
    if program is None or root is None:
        return None
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    env |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "PATH": path}
    with suppress(OSError, ValueError), tempfile.TemporaryDirectory(prefix="nbtorchjob-git-") as repository:
        own, shared = _state_folders(root)
        settings: list[tuple[str, str]] = []  # the plain ones: the user's own, then the repository's
        # A file's includes are followed only if requested, and listing settings runs nothing.
        for options in (("--global", "--includes"), ("--file", str((shared / "config").absolute()))):
            listed = _output([program, "config", *options, "--null", "--list"], Path("/"), env, until) or b""
            entries = (entry.partition("\n") for entry in listed.decode(errors="surrogateescape").split("\0"))
            settings += ((name, value) for name, _, value in entries if name in _PLAIN)
        env |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_ATTR_NOSYSTEM": "1"}
        _imitate(Path(repository), own, shared, settings)
        env |= {"GIT_DIR": repository, "GIT_WORK_TREE": str(root)}
        answer = _output([program, *_ASKED], folder, env, until)
        return None if answer is None else parsed(answer)
    return None


def _state_folders(root: Path) -> tuple[Path, Path]:
    """Return the folder of a checkout's own state, and that of the state shared with other worktrees.

    Raises ``OSError`` or ``ValueError``.
    """

    def read(path: Path) -> str:
        with open(path, "rb", opener=plain) as file:
            return os.fsdecode(file.read(_MOST_NAME * 32)).strip()

    own = root / ".git"
    if own.is_file():
        kind, _, where = read(own).partition(": ")
        if kind != "gitdir":
            raise ValueError(f"{own} names no folder")
        own = root / where
    common = own / "commondir"
    return own, own / read(common) if common.is_file() else own


def _imitate(repository: Path, own: Path, shared: Path, settings: Iterable[tuple[str, str]]) -> None:
    """Make a folder that git takes for the repository, without its configuration and its hooks."""
    for name in _SHARED:
        if (shared / name).exists():
            (repository / name).symlink_to((shared / name).absolute())
    for name in os.listdir(own):
        if name == _OWN[0] or name.startswith(_OWN[1]):
            (repository / name).symlink_to((own / name).absolute())
    with open(own / "HEAD", "rb", opener=plain) as head:
        (repository / "HEAD").write_bytes(head.read(_MOST_NAME * 32))
    extended = any(name.startswith("extensions.") for name, _ in settings)
    lines = [f"[core]\n\trepositoryformatversion = {int(extended)}\n\tbare = false\n\tfsmonitor = false\n"]
    for name, value in settings:
        section, _, key = name.partition(".")
        quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines.append(f'[{section}]\n\t{key} = "{quoted}"\n')
    (repository / "config").write_text("".join(lines), errors="surrogateescape")


def _output(words: Sequence[str], folder: Path, env: dict[str, str], until: float) -> bytes | None:
    """Return the output of a git command; None if it fails, is late, or is too long."""
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None
    with suppress(OSError):  # the start of a job, which goes on meanwhile, has priority
        os.setpriority(os.PRIO_PROCESS, process.pid, _LEAST)
    with process.stdout as stdout, suppress(subprocess.TimeoutExpired):
        data = _read(stdout, until)
        if data is not None and process.wait(max(0.0, until - time.monotonic())) == 0:
            return data
    with suppress(OSError, subprocess.TimeoutExpired):  # with all that it has started
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(_END_S)
    return None


def _read(pipe: IO[bytes], until: float) -> bytes | None:
    """Return everything that a pipe delivers; None if its end is too late, or it is too much."""
    data, poll = bytearray(), select.poll()
    poll.register(pipe, select.POLLIN)
    while len(data) <= _MOST_BYTES:
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            return None
        part = os.read(pipe.fileno(), 1 << 16)
        if not part:
            return bytes(data)
        data += part
    return None


def parsed(answer: bytes) -> Checkout | None:
    """Parse git's answer (``git status --porcelain=v2 -z``); return None for anything else."""
    head: dict[str, str] = {}
    changed: list[str] = []
    lines = iter(answer.decode(errors="replace").split("\0"))
    for line in lines:
        kind, _, rest = line.partition(" ")
        if kind == "#":
            name, _, value = rest.partition(" ")
            head[name] = value
        elif kind in _FIELDS:
            changed.append(rest.split(" ", _FIELDS[kind] - 1)[-1])
            if kind == "2":  # its former name follows
                next(lines, None)
        elif line:
            return None
    commit, branch = head.get("branch.oid", ""), head.get("branch.head", "")
    if not _COMMIT.fullmatch(commit):  # without any commit there is nothing to go back to
        return None
    shown = tuple(name[:_MOST_NAME] for name in sorted(changed)[:_MOST_NAMES])
    branch = "" if branch == "(detached)" else branch[:_MOST_NAME]
    return Checkout(commit, branch, shown, len(changed) - len(shown))
