"""One rank: runs the call, and records the outcome."""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import signal
import sys
import threading
import traceback
from dataclasses import replace
from typing import Any, Callable, Dict, NoReturn

from . import (
    call,
    exits,
    frameworks,
    fresh,
    frontend,
    groups,
    injected,
    leaving,
    loading,
    report,
    settings,
    spawned,
    store,
    streams,
    wire,
)
from .death import die_with_parent
from .emit import emit
from .errors import Error, from_exception, named, users_traceback
from .locals import with_variables
from .payload import CALL, Payload
from .report import ROUND
from .sampler import Sampler
from .stream import STREAM


def run_rank(path: str, folder: str, key: bytes, round_: int, meeting: str, attempt: int) -> None:
    """Run the payload's call as the rank that the environment names; torch's agent starts this.

    The ranks' process groups meet in the store at ``meeting`` (host:port). ``attempt`` is the job's, from 1.

    Returns only when the call returned. Otherwise the process ends here: what follows in a failed
    rank (exit handlers, destructors of process groups) may wait for ranks that are gone.
    """
    die_with_parent()
    fresh.start()
    rank = int(os.environ["RANK"])
    os.environ.update({ROUND: str(round_), **injected.of_rank(attempt)})
    log = os.path.join(folder, "rank-%d.log" % rank)
    header = Payload(path).header  # now: a failure may leave no file descriptor to open it with
    # On a cluster the kubelet stamps each line, and a pod's files fill its host's disk.
    streams.redirect(log, at_once=header["unbuffered"], timed=STREAM not in os.environ)
    frontend.install()
    frameworks.install(header["autolog"])
    leaving.begin(folder, int(os.environ["LOCAL_RANK"]))
    sampler = Sampler(rank)
    sampler.start(os.path.dirname(folder))
    try:
        value = _called(path, meeting, folder)
        if leaving.told():
            _leave(rank, round_)
        if rank == 0 or header["all_ranks"]:
            _send(value, rank, round_, folder, key)
        _end_program()
        groups.leave()
        sampler.returned()
    except BaseException as exc:
        retry_on = header["retry"]["retry_on"]
        if isinstance(exc, SystemExit) and not named(exc, retry_on) and not _said(exc):
            _end(exc.code if isinstance(exc.code, int) else 1)
        streams.flush()
        missed = spawned.notes(exc, log)
        if missed:
            exc.__notes__ = [*getattr(exc, "__notes__", ()), *missed]  # type: ignore[attr-defined]
        _fail(exc, header)
    streams.flush()


def _call(path: str, meeting: str, folder: str) -> Any:
    fresh.use_threads()
    groups.meet_at(meeting)
    payload = Payload(path)
    stops = payload.header["debug"]
    if stops:
        from . import debugger  # late: it travels only where it is needed

        debugger.begin(
            os.path.dirname(folder),
            stops["wait"],
            stops["hold"],
            meeting,
            lambda exc: _fail(exc, payload.header),
        )
    payload.show_sources()
    found = loading.loads(payload.read(CALL), payload.buffers())
    settings.lay(payload.header["settings"])
    emit("RankBegan", rank=int(os.environ["RANK"]), round=int(os.environ[ROUND]))
    value = call.run(found, os.path.abspath(path))
    if stops:
        debugger.over()
    return value


def _send(value: Any, rank: int, round_: int, folder: str, key: bytes) -> None:
    ref = os.path.join(folder, "rank-%d.value" % rank)
    key = wire.value_key(key, injected.run(), round_, rank)
    size = wire.write_value(ref, value, dump, key)
    if STREAM in os.environ:
        ref, size = store.put(ref, "round-%d-rank-%d.value" % (round_, rank), key)
    emit("ValueReady", rank=rank, round=round_, ref=ref, size=size)


def dump(value: Any, out_of_band: Callable[[pickle.PickleBuffer], Any]) -> bytes:
    """Pickle a result by value where it must be, with the memory of tensors out of band."""
    from .pickler import Pickler, dumps  # imported late: it needs cloudpickle

    return dumps(value, Pickler, out_of_band)


def _called(path: str, meeting: str, folder: str) -> Any:
    try:
        return _call(path, meeting, folder)
    except SystemExit as exc:
        if exc.code in (None, 0):
            return None  # "that's all": a good end without a value
        raise
    except leaving.Leaving:
        if leaving.told():
            return None
        raise


def _leave(rank: int, round_: int) -> NoReturn:
    _end_program()
    groups.leave()
    streams.flush()
    told = {"call": leaving.told(), "metrics": report.last}
    emit("RankLeft", node=int(os.environ[injected.NODE]), rank=rank, round=round_, **told)
    _end(exits.TOLD_LEFT)


def _end_program() -> None:
    """Do what Python does when a program succeeds: wait for threads, run exit handlers, write out files."""
    threading._shutdown()  # type: ignore[attr-defined]  # multiprocessing's own way; a second call does nothing
    _leave_out_compile_times()
    atexit._run_exitfuncs()
    streams.flush_files()


def _leave_out_compile_times() -> None:
    """Have torch not work out, in 4 ms, how long it compiled, to log that nowhere (2.13)."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    dump, log = getattr(dynamo, "dump_compile_times", None), getattr(dynamo, "log", None)
    if dump is not None and log is not None and not log.isEnabledFor(logging.INFO):
        atexit.unregister(dump)


def _said(exc: BaseException) -> str:
    """Return a program's message when it ended itself: the text of ``sys.exit``, or argparse's error."""
    if not isinstance(exc, SystemExit):
        return ""
    if not isinstance(exc.code, int):
        return str(exc.code)
    argparse = sys.modules.get("argparse")
    for frame, _ in traceback.walk_tb(exc.__traceback__ if argparse is not None else None):
        parser = frame.f_locals.get("self")
        if argparse and frame.f_code.co_name == "error" and isinstance(parser, argparse.ArgumentParser):
            said = parser.format_usage(), parser.prog, frame.f_locals.get("message")
            return "%s%s: error: %s" % said
    return ""


def _fail(exc: BaseException, header: Dict[str, Any]) -> None:
    """Tell how this rank failed, and end it."""
    rank, round_ = int(os.environ["RANK"]), int(os.environ[ROUND])
    error, said = from_exception(exc, retry_on=header["retry"]["retry_on"]), _said(exc)
    if said:
        error = replace(error, message=said)
    try:
        # Recorded before it is printed: on a full disk there is room for only one of them.
        _tell(error, rank, round_)
        if not said:
            sys.stderr.write("".join(traceback.format_exception(type(exc), exc, users_traceback(exc))))
        elif said == str(exc):  # as Python does; argparse has printed by itself
            sys.stderr.write("%s\n" % said)
        streams.flush()
        # Of a rank that lost a peer nobody asks what it held.
        if header["locals"] and not said and not error.lost_peer:
            # Its agent ends what is left of a round once another rank has failed: this one is about to end.
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with_them = with_variables(error, exc)
            if with_them != error:
                _tell(with_them, rank, round_)  # once more: to describe them might have ended the process
        if header["debug"] and header["debug"]["hold"] and not said and not error.lost_peer:
            from . import debugger  # late, as above

            debugger.hold_at(exc)
    finally:
        _end(_told(error))


def _tell(error: Error, rank: int, round_: int) -> None:
    emit(
        "RankFailed",
        node=int(os.environ[injected.NODE]),
        rank=rank,
        restart=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        round=round_,
        error=error.to_json(),
    )


def _told(error: Error) -> int:
    if error.recoverable:
        return exits.TOLD_RECOVERABLE
    return exits.TOLD_LOST_PEER if error.lost_peer else exits.TOLD


def _end(code: int) -> NoReturn:
    try:
        streams.flush()
        streams.flush_files()
    finally:
        os._exit(code & 0xFF)
