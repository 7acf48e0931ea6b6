"""The verbs that keep a connection to a running job: ``forward`` (a rank's port) and ``tensorboard``."""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtorchjob.commands.front import Answer, Front, ParsedArgs
from nbtorchjob.errors import LineError, NBTorchJobError, NotInstalledError
from nbtorchjob.machine import folders, interrupts
from nbtorchjob.spec.validation import digits
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint

if TYPE_CHECKING:
    from nbtorchjob.backends.forward import Forward
    from nbtorchjob.backends.sync import Sync
    from nbtorchjob.job import Job

_LOOK_S = 1.0

_forwards: dict[tuple[str, int, int], Forward] = {}  # open in this process, by job, rank and port


def forward(args: ParsedArgs, front: Front) -> None:
    """Forward a rank's port, list a job's forwarded ports, or end them."""
    job, spelled = front.find(args.words[0]), "".join(args.words[1:])
    for key, known in list(_forwards.items()):
        if not known.open:
            del _forwards[key]
    own = {key: known for key, known in _forwards.items() if key[0] == job.info.address}
    if spelled:
        port, rank = _place(spelled)
        job.check_rank(rank)
        own = {key: known for key, known in own.items() if key[1:] == (rank, port)}
    if "end" in args.options:
        if not own:
            raise LineError(f"{hint('forward')}: no such port of {job.name} is forwarded here")
        for key, known in own.items():
            known.close()
            del _forwards[key]
            front.show(Answer(f"{known.url} closed", _data(known)))
    elif not spelled or own:
        for known in own.values():
            front.show(Answer(_line(known), _data(known)))
        if not own:
            front.say(
                f"No port of {job.name} is forwarded here; {hint('forward', job.name, 'PORT')} forwards one."
            )
    else:
        _open(job, port, rank, args.options.get("local-port"), front)


def _open(job: Job[Any], port: int, rank: int, local: int | None, front: Front) -> None:
    opened = job.forward(port, rank, local=local)
    _forwards[job.info.address, rank, port] = opened
    front.show(Answer(_line(opened), _data(opened)))
    if opened.listens is False:
        front.say(
            f"Nothing listens at port {port} of rank {rank} yet: until then connections are closed at once."
        )
    if front.stays:
        return
    front.say("Ctrl-C ends it.")
    with interrupts.message(f"{opened.url} closed."):
        trouble = ""
        while opened.open and not job.done():
            time.sleep(_LOOK_S)
            if opened.trouble != trouble:
                trouble = opened.trouble
                front.say(trouble)
    opened.close()
    front.say(f"{job.name} has ended: {opened.url} closed.")


def _place(spelled: str) -> tuple[int, int]:
    """Read ``PORT`` or ``PORT:RANK``."""
    from nbtorchjob.backends.forward import PORTS  # late: most lines forward nothing

    port, colon, rank = spelled.partition(":")
    number, of = digits(port), digits(rank) if colon else 0
    if number not in PORTS or number is None or of is None:
        raise LineError(f"{hint('forward')} expects PORT or PORT:RANK, such as 6006:0, got {spelled!r}")
    return number, of


def _line(opened: Forward) -> str:
    count = words.count(opened.connections, "connection") if opened.connections else ""
    text = f"{opened.url} → port {opened.port} of rank {opened.rank} of {opened.name}"
    return ", ".join(filter(None, (text, count, opened.trouble)))


def _data(opened: Forward) -> dict[str, Any]:
    return {
        "name": opened.name,
        "rank": opened.rank,
        "port": opened.port,
        "local": opened.local,
        "url": opened.url,
        "listens": opened.listens,
    }


_START_S = 60.0
_SERVES = re.compile(r"http://[^\s:]+:(\d+)")
# It ends with this process, however that does: nobody else would end it.
_PROGRAM = """
import runpy
from nbtorchjob.runtime.facts.death import die_with_parent
die_with_parent()
runpy.run_module("tensorboard.main", run_name="__main__", alter_sys=True)
"""


def tensorboard(args: ParsedArgs, front: Front) -> None:
    """Show what a job's ranks write in TensorBoard; their files are copied as they grow."""
    job, path = front.find(args.words[0]), "".join(args.words[1:]) or "artifacts"
    known = _boards.get(job.info.address)
    if "end" in args.options:
        if known is None:
            raise LineError(f"{hint('tensorboard')}: {job.name} isn't shown here")
        known.close()
        front.show(Answer(f"{known.url} closed", {"name": job.name, "url": known.url}))
        return
    if known is None or not known.running or known.path != path:
        if known is not None:
            known.close()
        known = _Board(job, path)
    frame = f'<iframe src="{known.url}" width="100%" height="800" frameborder="0"></iframe>'
    data = {"name": job.name, "url": known.url, "folder": str(known.folder)}
    front.show(Answer(f"TensorBoard of {job.name}: {known.url}", data, frame))
    if front.stays:
        return
    front.say("Ctrl-C ends it.")
    with interrupts.message(f"{known.url} closed."):
        while known.running:
            if known.sync.wait(_LOOK_S):
                time.sleep(_LOOK_S)  # a job that has ended is looked at for longer


class _Board:
    """A TensorBoard of one job, and what copies the job's files for it."""

    def __init__(self, job: Job[Any], path: str) -> None:
        import subprocess  # late, as it is slow to import

        if importlib.util.find_spec("tensorboard") is None:
            raise NotInstalledError("tensorboard isn't installed here: pip install tensorboard")
        self.path, self._address = path, job.info.address
        digest = hashlib.sha256(f"{job.info.id} {job.info.created} {path}".encode()).hexdigest()[:16]
        self.folder = folders.own(folders.cache_dir() / "tensorboard") / digest
        self.folder.mkdir(exist_ok=True)
        self.sync: Sync = job.sync(self.folder, path)
        log = self.folder.with_suffix(".log")
        with open(log, "wb") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-c", _PROGRAM, "--logdir", str(self.folder), "--host", "127.0.0.1"),
                    *("--port", "0", "--reload_interval", "5", "--window_title", job.name),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        atexit.register(self.close)
        try:
            self.url = _shown_at(self._port(log))
        except BaseException:
            self.close()
            raise
        _boards[self._address] = self

    @property
    def running(self) -> bool:
        """Whether it still serves."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it; the files that were copied stay in the cache."""
        self.sync.stop()
        self._process.terminate()
        self._process.wait()
        _boards.pop(self._address, None)
        atexit.unregister(self.close)

    def _port(self, log: Path) -> int:
        until = time.monotonic() + _START_S
        while time.monotonic() < until and self.running:
            if port := _SERVES.search(log.read_text(errors="replace")):
                return int(port[1])
            time.sleep(0.1)
        last = words.line(log.read_text(errors="replace").strip().rpartition("\n")[2], words.LINE)
        raise NBTorchJobError(f"TensorBoard doesn't start: {last or f'it says nothing for {_START_S:.0f} s'}")


_boards: dict[str, _Board] = {}  # by their jobs' addresses


def _shown_at(port: int) -> str:
    """Return the address for a browser, which on a hub isn't on this machine."""
    template = os.environ.get("TENSORBOARD_PROXY_URL")  # as TensorBoard's own magic has it (2.21)
    if template:
        return template.replace("%PORT%", str(port))
    prefix = os.environ.get("JUPYTERHUB_SERVICE_PREFIX")
    if prefix and importlib.util.find_spec("jupyter_server_proxy") is not None:
        return f"{prefix}proxy/{port}/"
    return f"http://127.0.0.1:{port}/"
