"""A zygote: a process that has imported torch, and forks the ranks of a pool's jobs, one after the other.

torch's agent starts a zygote for each rank, as it starts the ranks of a job. A zygote has one thread and runs
no user code. It and its node exchange the messages of a lab's rank (``lab/turns.py``), and in addition:

    zygote  {…, "rank pid": 43}                 it has forked the rank of a job
    zygote  {…, "done": 7, "failed": true, …}   that has returned, or ended: then with its "code"
    node    {"round": "clear-7"}                all ranks of this node are through: end whatever is left
    node    {"round": "send-7"}                 then, to one zygote: send the artifacts

A rank that has returned stays until it is cleared, as in any job: others may still be talking to it. A zygote
adopts the orphans of its rank, so clearing it ends everything that the rank has started.

An interrupt ends the rank as SIGTERM ends a job's. It arrives through the page of memory and the signal that
interrupt a lab's turns.
"""

from __future__ import annotations

import importlib
import os
import selectors
import signal
import sys
import time
import traceback
from contextlib import suppress
from typing import Any, Callable, Dict, NoReturn, Optional

from nbtorchjob.runtime.api import artifacts, checkpoints
from nbtorchjob.runtime.facts import emit, exits, injected
from nbtorchjob.runtime.facts.death import adopt_orphans, die_with_parent, kill_children
from nbtorchjob.runtime.install import shipped
from nbtorchjob.runtime.lab import turns
from nbtorchjob.runtime.rank import worker
from nbtorchjob.runtime.store.payload import Payload

_LOOK_S = 0.01
_SIGNALS = (signal.SIGTERM, signal.SIGCHLD, turns.SIGNAL)
CLEAR, SEND = "clear-%d", "send-%d"
ENV = "env"  # in a job's header: its variables


def stand(
    path: str,
    folder: str,
    key: bytes,
    base: int,
    meeting: str,
    attempt: int,
    act: Callable[[worker.Rank], None],
) -> None:
    """Run the ranks of a pool's jobs until the node tells this process to end; torch's agent starts this.

    The arguments are those of ``worker.run_rank``: ``path`` is the pool's payload, and ``act`` is what each
    rank does.
    """
    die_with_parent()
    adopt_orphans()
    _Zygote(folder, key, base, meeting, act).run()


class _Zygote:
    def __init__(
        self,
        folder: str,
        key: bytes,
        base: int,
        meeting: str,
        act: Callable[[worker.Rank], None],
    ) -> None:
        self._rank = int(os.environ["RANK"])
        self._home = os.path.dirname(folder)
        self._key = key
        self._base = base
        self._meeting = meeting
        self._act = act
        self._page = turns.page(folder)
        self._round = 0  # of the job that runs
        self._pid = 0  # of its rank
        self._over = True  # whether the node knows how it ended
        self._kill_at: Optional[float] = None
        self._ends = False  # whether this process was told to end
        self._line = turns.Line(self._home, {"rank": self._rank, "base": base, "pid": os.getpid()})
        self._done: Any = 0

    def run(self) -> None:
        """Act on the node's orders and on signals."""
        self._returned_r, self._returned_w = os.pipe()  # a byte for a rank that has returned
        self._signals_r, self._signals_w = os.pipe()
        for fd in (self._signals_r, self._signals_w, self._returned_r):
            os.set_blocking(fd, False)
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)  # the number arrives through the wake-up file
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as the template does
        signal.set_wakeup_fd(self._signals_w, warn_on_full_buffer=False)
        emit("RankBegan", rank=self._rank, round=self._base)
        self._line.say({"done": 0})
        while True:
            # Made anew each time: the connection to the node may have been replaced.
            with selectors.DefaultSelector() as selector:
                for fd in (self._signals_r, self._returned_r, self._line.fileno()):
                    selector.register(fd, selectors.EVENT_READ)
                seconds = None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())
                ready = [int(key.fd) for key, _ in selector.select(seconds)]
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill_at = None
                self._send(signal.SIGKILL)
            for fd in ready:
                if fd == self._signals_r:
                    self._signalled()
                elif fd == self._returned_r:
                    self._returned()
                elif self._obey(self._line.hear()):
                    return

    def _obey(self, order: Dict[str, Any]) -> bool:
        """Carry out the node's order; return whether this process is to end."""
        if "end" in order:
            return True
        # The node waits for these answers also after a job that failed before its zygotes knew of it.
        round_ = int(str(order["round"]).rpartition("-")[2])
        if order["round"] == CLEAR % round_:
            self._send(signal.SIGKILL)
            self._pid, self._kill_at = 0, None
            kill_children()
            _drained(self._returned_r)
            self._say(order["round"])
        elif order["round"] == SEND % round_:
            self._send_artifacts()
            self._say(order["round"])
        elif round_ > self._round:
            self._begin(order)
        return False

    def _say(self, done: Any, **more: Any) -> None:
        self._done = done
        self._line.say({"done": done, **more})

    def _begin(self, order: Dict[str, Any]) -> None:
        self._round = order["round"]
        self._over = False
        if self._page[turns.ROUND] == self._round:
            self._through(failed=True)
            return
        # Until the rank has handlers of its own, its signals would arrive in this process's pipe.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            pid = os.fork()
            if not pid:
                self._become(order)
        except OSError as exc:
            sys.stderr.write("nbtorchjob: rank %d can't be started: %s\n" % (self._rank, exc))
            sys.stderr.flush()
            self._through(failed=True, code=exits.USER_ERROR)
        else:
            self._pid = pid
            self._line.say({"done": self._done, "rank pid": pid})
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def _become(self, order: Dict[str, Any]) -> NoReturn:
        """Become the job's rank, as if torch's agent had started this process."""
        try:
            signal.set_wakeup_fd(-1)
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            self._line.close()
            for fd in (self._signals_r, self._signals_w, self._returned_r):
                os.close(fd)
            folder = os.path.join(self._home, "round-%d" % self._round)
            importlib.invalidate_caches()  # the job's local modules are new
            os.environ.update(order["place"])
            # The job's variables: its own, and those that name the job rather than its pool.
            os.environ.update(Payload(order["path"]).header[ENV])
            time.tzset()
            os.environ[artifacts.NUMBER] = str(artifacts.of_round(self._round))
            id_ = order["id"].partition(".")[0]
            if os.environ.get(injected.JOB):
                os.environ[injected.JOB] += "-" + id_
            if os.environ.get(checkpoints.CHECKPOINTS):
                os.environ[checkpoints.CHECKPOINTS] = checkpoints.of_job(id_)
            args = order["path"], folder, self._key, self._round, self._meeting
            worker.run_rank(*args, order["attempt"], self._act)
            os.write(self._returned_w, b"\0")
            while True:
                signal.pause()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(exits.USER_ERROR)

    def _returned(self) -> None:
        # Processes that the code started may hold the pipe, too: only a living rank can have returned.
        if _drained(self._returned_r) and not self._over and self._pid:
            self._through(failed=False)

    def _through(self, *, failed: bool, **how: Any) -> None:
        self._over = True
        self._say(self._round, failed=failed, **how)

    def _signalled(self) -> None:
        numbers = set(_drained(self._signals_r))
        if signal.SIGTERM in numbers:
            self._ends = True
            if not self._pid:
                self._leave(-signal.SIGTERM)
            self._send(signal.SIGTERM)
        if turns.SIGNAL in numbers and self._page[turns.ROUND] == self._round and not self._over:
            self._send(signal.SIGTERM)
            self._kill_at = time.monotonic() + injected.grace()
        if signal.SIGCHLD in numbers:  # the rank has ended, or its orphans have
            with suppress(ChildProcessError):
                while True:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                    if not pid:
                        return
                    if pid == self._pid:
                        self._returned()
                        self._pid, self._kill_at = 0, None
                        signalled = os.WIFSIGNALED(status)
                        self._ended(-os.WTERMSIG(status) if signalled else os.WEXITSTATUS(status))

    def _send(self, number: int) -> None:
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _ended(self, code: int) -> None:
        if self._ends or code == exits.TOLD_LEFT:
            self._leave(code)
        if not self._over:
            stopped = self._page[turns.ROUND] == self._round
            self._through(failed=True, **({} if stopped else {"code": code}))

    def _send_artifacts(self) -> None:
        """Send them in a child, so that the ranks of later jobs don't inherit what this imports."""
        pid = os.fork()
        if not pid:
            try:
                die_with_parent()
                artifacts.send(self._home, self._key)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(exits.OK)
        os.waitpid(pid, 0)

    def _leave(self, code: int) -> NoReturn:
        """End as the rank has ended: the node's agent sees only this process."""
        kill_children()
        if code < 0:
            signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
            os.kill(os.getpid(), -code)
        os._exit(code & 0xFF)


def _drained(fd: int) -> bytes:
    """Return what has arrived in a pipe, if anything."""
    try:
        return os.read(fd, 4096)
    except BlockingIOError:
        return b""


def call_with_files(rank: worker.Rank) -> None:
    """Run a job's call on a rank of a pool, in the folder with the files that the job ships."""
    if rank.header["ship"]:
        place = os.path.join(rank.folder, "shipped")
        if os.environ["LOCAL_RANK"] == "0":  # the node's first rank puts them there
            where = shipped.lay(Payload(rank.path), rank.folder)
            os.symlink(where, place)
        while not os.path.islink(place):  # if that fails, the other ranks are ended
            time.sleep(_LOOK_S)
        os.chdir(os.readlink(place))
    worker.call_once(rank)
