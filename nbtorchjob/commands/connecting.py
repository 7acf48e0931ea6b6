"""The verbs that keep a connection to a running job.

``debug`` (pdb on a rank), ``release`` (of held ranks), ``forward`` (a rank's port) and ``tensorboard``.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtorchjob.commands.front import Answer, Answers, Find, Front, ParsedArgs, for_each_name
from nbtorchjob.errors import AskError, LineError, NBTorchJobError, NotInstalledError
from nbtorchjob.machine import folders, interrupts
from nbtorchjob.spec import digits
from nbtorchjob.state.facts.events import FAILURE, STEPS
from nbtorchjob.text import coloured, words
from nbtorchjob.text.hints import hint
from nbtorchjob.text.words import ranks

if TYPE_CHECKING:
    from nbtorchjob.backends.links import Forward, Sync
    from nbtorchjob.backends.talk import Session
    from nbtorchjob.job import Job


_FIRST_S = 30.0  # for a rank to send anything at all
_NEXT_S = 3.0  # for a rank that goes on to stop again
_EVER_S = 7 * 86400.0
_DELIMITERS = " \t\n`~!@#$%^&*()-=+[{]}\\|;:'\",<>/?"  # pdb's words: a dot is part of one


def debug(args: ParsedArgs, front: Front) -> None:
    """Debug a stopped rank with pdb."""
    job = front.find(args.name)
    where = "a notebook" if hasattr(sys.modules.get("__main__"), "get_ipython") else "a terminal"
    import getpass  # late: most lines open no debugger

    with job.debugger(args.options.get("rank"), f"{getpass.getuser()} in {where}") as session:
        stop = session.stop
        again = hint("debug", job.name, "--rank", str(stop.rank))
        stays = f"rank {stop.rank} stays stopped: {again} returns to it"
        if stop.why == FAILURE:
            stays += f", {hint('release', job.name)} releases it"
        with interrupts.message(f"Left the debugger: {stays}."):
            ending = _typed(session, stays, {file: label for file, (label, _) in job.info.sources.items()})
    front.say(ending)


@for_each_name
def release(name: str, find: Find) -> Answers:
    """Release ranks held by ``--hold``."""
    job = find(name)
    released = job.release()
    outcome = f"released {ranks(released)}" if released else "no rank was still held"
    yield Answer(f"{job.name}: {outcome}", {"name": job.name, "released": released})


def _typed(session: Session, stays: str, labels: Mapping[str, str]) -> str:
    """Run the conversation, which shows files by their ``labels``; return why it is over."""
    patience = _FIRST_S
    while True:
        try:
            message = session.hear(patience)
        except TimeoutError:
            return "The rank continues."
        except AskError as exc:
            if patience == _FIRST_S:
                raise
            return f"Left the debugger: {exc}."  # the job may be over, or a connection cut
        if message is None:
            return "The rank has ended."
        if "trouble" in message:
            raise AskError(str(message["trouble"]))
        if "out" in message:
            text = str(message["out"])
            for file, label in labels.items():
                text = text.replace(file, label)
            sys.stdout.write(coloured(text, sys.stdout))
            sys.stdout.flush()
        elif "prompt" in message:
            with session.kept(), _completing(session):
                line = _read(coloured(str(message["prompt"]), sys.stdout))
            if line is None:
                return f"Left the debugger: {stays}."
            session.say(line)
            patience = _EVER_S
        elif "goes" in message:
            patience = _EVER_S if message["goes"] == STEPS else _NEXT_S
        elif "left" in message:
            return f"{message['left']}." if message["left"] else f"Left the debugger: {stays}."


def _read(prompt: str) -> str | None:
    """Return a line of the user's input; None at its end."""
    try:
        return input(prompt)
    except EOFError:
        return None
    except RuntimeError as exc:  # from a kernel whose notebook runs unattended
        raise LineError(f"{hint('debug')} needs an interactive session: {exc}") from exc


@contextmanager
def _completing(session: Session) -> Iterator[None]:
    """Make the terminal's Tab complete as the rank does."""
    try:
        import readline  # late: a kernel has no terminal, and some Pythons lack it
    except ImportError:
        yield
        return
    completions: list[str] = []

    def complete(text: str, number: int) -> str | None:
        if number == 0:
            completions[:] = session.complete(
                readline.get_line_buffer(), readline.get_begidx(), readline.get_endidx()
            )
        return completions[number] if number < len(completions) else None

    before = readline.get_completer(), readline.get_completer_delims()
    readline.parse_and_bind("tab: complete")
    readline.set_completer(complete)
    readline.set_completer_delims(_DELIMITERS)
    try:
        yield
    finally:
        readline.set_completer(before[0])
        readline.set_completer_delims(before[1])


_LOOK_S = 1.0

# Open in this process, by job, rank and port.
_forwards: dict[tuple[tuple[str, float], int, int], Forward] = {}


def forward(args: ParsedArgs, front: Front) -> None:
    """Forward a rank's port, list a job's forwarded ports, or end them."""
    job, spelled = front.find(args.words[0]), "".join(args.words[1:])
    this = job.info.address, job.info.created
    for key, link in list(_forwards.items()):
        if key[0] != this and key[0][0] == job.info.address:
            link.close()  # of a deleted job that had the name
        if not link.open:
            del _forwards[key]
    own = {key: link for key, link in _forwards.items() if key[0] == this}
    if spelled:
        port, rank = _place(spelled)
        job.check_rank(rank)
        own = {key: link for key, link in own.items() if key[1:] == (rank, port)}
    if "end" in args.options:
        if not own:
            raise LineError(f"{hint('forward')}: no such port of {job.name} is forwarded here")
        for key, link in own.items():
            link.close()
            del _forwards[key]
            front.show(Answer(f"{link.url} closed", _data(link)))
    elif not spelled or own:
        for link in own.values():
            front.show(Answer(_line(link), _data(link)))
        if not own:
            front.say(
                f"No port of {job.name} is forwarded here; {hint('forward', job.name, 'PORT')} forwards one."
            )
    else:
        opened = job.forward(port, rank, local=args.options.get("local-port"))
        _forwards[this, rank, port] = opened
        front.show(Answer(_line(opened), _data(opened)))
        if opened.listens is False:
            front.say(
                f"Nothing listens at port {port} of rank {rank} yet: "
                "until then connections are closed at once."
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
    from nbtorchjob.backends.links import PORTS  # late: most lines forward nothing

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
# It ends with this process, however this ends: nothing else would end it. The modules beside the notebook are
# none of its own: some may be named as Python's.
_PROGRAM = """
import sys
sys.path[:] = filter(None, sys.path)
import runpy
from nbtorchjob.runtime.facts.death import die_with_parent
die_with_parent()
runpy.run_module("tensorboard.main", run_name="__main__", alter_sys=True)
"""


def tensorboard(args: ParsedArgs, front: Front) -> None:
    """Show what a job's ranks write in TensorBoard; their files are copied as they grow."""
    job, path = front.find(args.words[0]), "".join(args.words[1:]) or "artifacts"
    board = _boards.get((job.info.address, job.info.created))
    if "end" in args.options:
        if board is None:
            raise LineError(f"{hint('tensorboard')}: {job.name} isn't shown here")
        board.close()
        front.show(Answer(f"{board.url} closed", {"name": job.name, "url": board.url}))
        return
    if board is None or not board.running or board.path != path:
        if board is not None:
            board.close()
        board = _Board(job, path)
    frame = f'<iframe src="{board.url}" width="100%" height="800" frameborder="0"></iframe>'
    data = {"name": job.name, "url": board.url, "folder": str(board.folder)}
    front.show(Answer(f"TensorBoard of {job.name}: {board.url}", data, frame))
    if front.stays:
        return
    front.say("Ctrl-C ends it.")
    with interrupts.message(f"{board.url} closed."):
        while board.running:
            if board.sync.wait(_LOOK_S):
                time.sleep(_LOOK_S)  # the job has ended, but its files may still be looked at


class _Board:
    """A TensorBoard of one job, and the sync that copies the job's files for it."""

    def __init__(self, job: Job[Any], path: str) -> None:
        import subprocess  # late, as it is slow to import

        if importlib.util.find_spec("tensorboard") is None:
            raise NotInstalledError("tensorboard isn't installed here: pip install tensorboard")
        self.path, self._key = path, (job.info.address, job.info.created)
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
        _boards[self._key] = self

    @property
    def running(self) -> bool:
        """Whether it is still running."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it; the copied files stay in the cache."""
        self.sync.stop()
        self._process.terminate()
        self._process.wait()
        _boards.pop(self._key, None)
        atexit.unregister(self.close)

    def _port(self, log: Path) -> int:
        until = time.monotonic() + _START_S
        while time.monotonic() < until and self.running:
            if port := _SERVES.search(log.read_text(errors="replace")):
                return int(port[1])
            time.sleep(0.1)
        last = words.line(log.read_text(errors="replace").strip().rpartition("\n")[2], words.LINE)
        raise NBTorchJobError(f"TensorBoard didn't start: {last or f'no output for {_START_S:.0f} s'}")


# By their jobs' addresses, and when those were made: a later job may have the name of a deleted one.
_boards: dict[tuple[str, float], _Board] = {}


def _shown_at(port: int) -> str:
    """Return the address for a browser, which on a hub isn't on this machine."""
    template = os.environ.get("TENSORBOARD_PROXY_URL")  # as in TensorBoard's own magic (2.21)
    if template:
        return template.replace("%PORT%", str(port))
    prefix = os.environ.get("JUPYTERHUB_SERVICE_PREFIX")
    if prefix and importlib.util.find_spec("jupyter_server_proxy") is not None:
        return f"{prefix}proxy/{port}/"
    return f"http://127.0.0.1:{port}/"
