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
from typing import Any, Callable, Dict, NamedTuple, NoReturn, Optional, Tuple

from nbtorchjob.runtime import store, torch_versions
from nbtorchjob.runtime.api import displays, points, report
from nbtorchjob.runtime.api.report import ROUND
from nbtorchjob.runtime.facts import emit, errors, exits, injected
from nbtorchjob.runtime.facts.death import before_abort, die_with_parent
from nbtorchjob.runtime.facts.described import with_variables
from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.runtime.facts.injected import STREAM
from nbtorchjob.runtime.look.sampler import Sampler
from nbtorchjob.runtime.objects import rebuilt, sources, wire
from nbtorchjob.runtime.rank import call, fresh, spawned, streams
from nbtorchjob.runtime.rendezvous import groups
from nbtorchjob.runtime.store.payload import Payload, lay_given


class Rank(NamedTuple):
    """A rank: its ``number``, the payload's ``path`` and ``header``, its round and that round's ``folder``.

    The ranks' process groups meet in the store at ``meeting`` (host:port). ``key`` is the job's.
    """

    number: int
    path: str
    header: Dict[str, Any]
    folder: str
    key: bytes
    round: int
    meeting: str
    sampler: Sampler
    flusher: streams.Flusher


def run_rank(
    path: str,
    folder: str,
    key: bytes,
    round_: int,
    meeting: str,
    attempt: int,
    act: Callable[[Rank], None],
) -> None:
    """Call ``act`` as the rank that the environment names; torch's agent starts this.

    ``attempt`` is the number of the job's attempt, from 1.

    Returns only when the call returned. Otherwise the process ends here: the usual end of a failed
    rank (exit handlers, destructors of process groups) may wait for ranks that are gone.
    """
    die_with_parent()
    fresh.start()
    rank = int(os.environ["RANK"])
    os.environ.update({ROUND: str(round_), **injected.of_rank(attempt)})
    log = os.path.join(folder, "rank-%d.log" % rank)
    header = Payload(path).header  # now: a failure may leave no file descriptor to open it with
    flusher = streams.redirect(log, at_once=header["unbuffered"])
    displays.install()
    if header["swaps"]:
        from nbtorchjob.runtime.api import frameworks  # late: it travels only with code that may import one

        frameworks.install(header["autolog"])
    points.begin(folder, int(os.environ["LOCAL_RANK"]))
    sampler = Sampler(rank)
    sampler.start(os.path.dirname(folder))
    before_abort(sampler.say_last)
    try:
        act(Rank(rank, path, header, folder, key, round_, meeting, sampler, flusher))
        _end_program()
        sampler.returned()  # before others can fail because this rank leaves its groups
        groups.leave()
    except BaseException as exc:
        try:
            mute_handlers()
        except Exception:  # raised by the handler of an earlier signal
            mute_handlers()
        retry_on = header["retry"]["retry_on"]
        if errors.is_a(exc, SystemExit) and not errors.named(exc, retry_on) and not _exit_message(exc):
            code = errors.exit_code(exc)
            _end(code if isinstance(code, int) else 1)
        streams.flush()
        _fail(exc, rank, round_, header, log, sampler)
    streams.flush()


# Signals that code in ranks handles: those of timers and of ended children, and those free for any use.
_HANDLED = (
    *(signal.SIGCHLD, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF),
    *(signal.SIGUSR1, signal.SIGUSR2),
)


def mute_handlers() -> Dict[int, Callable[..., Any]]:
    """Make the code's signal handlers do nothing while a failure is described; return them.

    An error that they raise would hide the failure: torch's handler raises one when a DataLoader's worker
    ends, even just after the connection to that worker has failed.
    """
    handlers = {int(number): signal.getsignal(number) for number in _HANDLED}
    muted = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in muted:
        signal.signal(number, lambda *_: None)
    return muted


def call_once(rank: Rank) -> None:
    """Run the payload's call, and send its value if this rank's is wanted."""
    try:
        payload = begin(rank)
        content = rebuilt.loads(payload.call(), payload.buffers())
        if rank.header.get("given"):
            lay_given(content, rank.key)
        if rank.header["settings"]:
            from nbtorchjob.runtime.rank import settings  # imported late: it travels only if needed

            settings.lay(rank.header["settings"])
        emit("RankBegan", rank=rank.number, round=rank.round)
        pid, variables = os.getpid(), own_variables()
        try:
            value = call.run(content, os.path.abspath(rank.path))
        except BaseException as exc:
            end_fork(pid, exc)
            raise
        finally:
            restore(variables)
        end_fork(pid)
        over(rank)
    except SystemExit as exc:
        if errors.exit_code(exc) in (None, 0):
            # The code ended itself: a success without a value
            value = None
        else:
            raise
    except points.Leaving:
        if points.first_call():
            value = None
        else:
            raise
    if points.first_call():
        leave(rank.number, rank.round)
    if rank.number == 0 or rank.header["all_ranks"]:
        send(value, rank.number, rank.round, rank.folder, rank.key)


def own_variables() -> Dict[str, str]:
    """Return the variables that tell a rank where to report."""
    return {name: value for name, value in os.environ.items() if name.startswith("NBTORCHJOB_")}


def restore(variables: Dict[str, str]) -> None:
    """Set those again that the code has removed, as with ``os.environ.clear()``."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def end_fork(pid: int, exc: Optional[BaseException] = None) -> None:
    """End this process if it isn't ``pid``: code has forked it, and it has reached the end of the code.

    Else it would go on as the rank that it is a copy of. ``exc`` is what the code raised.
    """
    if os.getpid() == pid:
        return
    code = 0
    if exc is not None and errors.is_a(exc, SystemExit):
        status = errors.exit_code(exc)
        code = status if isinstance(status, int) else int(status is not None)
    elif exc is not None:
        traceback.print_exception(type(exc), exc, errors.users_traceback(exc))
        code = 1
    try:
        streams.flush()
    finally:
        os._exit(code & 0xFF)


def over(rank: Rank) -> None:
    """Stop in the debugger no more: the code has returned."""
    if rank.header["debug"]:
        from nbtorchjob.runtime import debug  # late, as above

        debug.over()


def begin(rank: Rank) -> Payload:
    """Set up what the rank's code expects of its process; return the payload."""
    fresh.use_threads()
    groups.meet_at(rank.meeting, rank.round)
    payload = Payload(rank.path)
    if rank.header["swaps"]:
        from nbtorchjob.runtime.rank import swapping  # late, as below

        swapping.install()
        os.environ[points.KEPT_AT] = os.path.join(os.path.dirname(rank.folder), points.KEPT)
    stops = rank.header["debug"]
    if stops:
        from nbtorchjob.runtime import debug  # imported late: it travels only if needed

        log = os.path.join(rank.folder, "rank-%d.log" % rank.number)
        debug.begin(
            os.path.dirname(rank.folder),
            stops["wait"],
            stops["patient"],
            rank.meeting,
            rank.round,
            lambda exc: _fail(exc, rank.number, rank.round, rank.header, log, rank.sampler),
        )
    else:
        sys.breakpointhook = call.pass_over
    payload.show_sources()
    return payload


def send(value: Any, rank: int, round_: int, folder: str, key: bytes) -> None:
    """Send the value of a rank's call; raises whatever an object's own pickling raises."""
    ref = os.path.join(folder, "rank-%d.value" % rank)
    key = wire.value_key(key, injected.run(), round_, rank)
    size = wire.write_value(ref, value, dump, key)
    if STREAM in os.environ:
        ref, size = store.put(ref, "round-%d-rank-%d.value" % (round_, rank), key)
    emit("ValueReady", rank=rank, round=round_, ref=ref, size=size)


def dump(value: Any, out_of_band: Callable[[pickle.PickleBuffer], Any]) -> bytes:
    """Pickle a result, by value where necessary, with the memory of tensors out of band."""
    from nbtorchjob.runtime.objects.pickler import (
        Pickler,
        dumps,  # imported late: it needs cloudpickle
    )

    return dumps(value, Pickler, out_of_band, sourced=sources.home != sources.HERE)


def leave(rank: int, round_: int) -> NoReturn:
    """End this process, which has saved because its node is about to end."""
    _end_program()
    groups.leave()
    streams.flush()
    fields = {"call": points.first_call(), "metrics": report.last}
    emit("RankLeft", node=int(os.environ[injected.NODE]), rank=rank, round=round_, **fields)
    _end(exits.TOLD_LEFT)


def _end_program() -> None:
    """Do what Python does when a program succeeds: wait for threads, run exit handlers, write out files."""
    threading._shutdown()  # type: ignore[attr-defined]  # multiprocessing's own way; a second call does nothing
    # Otherwise torch spends 4 ms on summing up its compile times, and logs them nowhere.
    dump, log = torch_versions.COMPILE_TIMES.get(), torch_versions.COMPILE_LOG.get()
    if dump is not None and log is not None and not log.isEnabledFor(logging.INFO):
        atexit.unregister(dump)
    atexit._run_exitfuncs()
    streams.flush_files()


def _exit_message(exc: BaseException) -> str:
    """Return a program's message when it ended itself: the text of ``sys.exit``, or argparse's error.

    An exit code that a rank can't end with becomes such a message.
    """
    code = errors.exit_code(exc)
    if not isinstance(code, int):
        return "" if code is None else errors.text_of(code)
    if code and code & 0xFF in (0, *exits.RESERVED):
        return "sys.exit(%d)" % code
    argparse = sys.modules.get("argparse")
    for frame, _ in traceback.walk_tb(errors.traceback_of(exc) if argparse is not None else None):
        parser = frame.f_locals.get("self")
        if argparse and frame.f_code.co_name == "error" and isinstance(parser, argparse.ArgumentParser):
            parts = parser.format_usage(), parser.prog, frame.f_locals.get("message")
            return "%s%s: error: %s" % parts
    return ""


def _fail(
    exc: BaseException, rank: int, round_: int, header: Dict[str, Any], log: str, sampler: Sampler
) -> None:
    error, text = described(exc, header, log)
    try:
        if error.lost_peer:
            sampler.say_last(error.frames)
        # In a pool, as in a lab, the node's agent goes on.
        stays = {"stays": True} if header.get("pool") else {}
        tell(exc, error, text, rank, round_, **stays)
        if header["locals"]:
            # Once another rank has failed, the agent ends the rest of the round: this rank ends by itself.
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            tell_variables(exc, error, text, rank, round_, **stays)
        hold = header["debug"] and header["debug"]["hold"]
        if hold and not text and not error.lost_peer:
            from nbtorchjob.runtime import debug  # late, as above

            debug.hold_at(exc)
    finally:
        code = exits.TOLD_RECOVERABLE if error.again else exits.TOLD
        _end(exits.TOLD_LOST_PEER if error.lost_peer and not error.recoverable else code)


def described(exc: BaseException, header: Dict[str, Any], log: str) -> Tuple[Error, str]:
    """Return a rank's failure, and the message with which the program ended itself, if it did."""
    missed = spawned.notes(exc, log)
    if missed:
        errors.add_notes(exc, missed)
    error, text = errors.from_exception(exc, retry_on=header["retry"]["retry_on"]), _exit_message(exc)
    return replace(error, message=errors.bounded(text)) if text else error, text


def tell(exc: BaseException, error: Error, text: str, rank: int, round_: int, **more: Any) -> None:
    """Report a failure, and print it."""
    # Reported before it is printed: a full disk may have room for only one of the two.
    _emit(error, rank, round_, more)
    if not text:
        streams.say(_printed(exc, error))
    elif text == errors.text_of(exc):  # as Python does; argparse has already printed its message
        streams.say("%s\n" % text)
    streams.flush()


def _printed(exc: BaseException, error: Error) -> str:
    try:
        printed = traceback.format_exception(type(exc), exc, errors.users_traceback(exc))
    except Exception:  # it runs code of the exception's class, which may raise
        frames = [(frame.filename, frame.lineno, frame.name, frame.line) for frame in error.frames]
        line = "%s: %s\n" % (error.type, error.message)
        printed = ["Traceback (most recent call last):\n", *traceback.format_list(frames), line]
    return "".join(printed)


def tell_variables(exc: BaseException, error: Error, text: str, rank: int, round_: int, **more: Any) -> None:
    """Report a failure once more, with its variables: describing them may end the process."""
    # The variables of a rank that lost a peer don't matter.
    if not text and not error.lost_peer:
        with_them = with_variables(error, exc)
        if with_them != error:
            _emit(with_them, rank, round_, more)


def _emit(error: Error, rank: int, round_: int, more: Dict[str, Any]) -> None:
    emit(
        "RankFailed",
        node=int(os.environ[injected.NODE]),
        rank=rank,
        restart=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        round=round_,
        error=error.to_json(),
        **more,
    )


def _end(code: int) -> NoReturn:
    try:
        streams.flush()
        streams.flush_files()
    finally:
        os._exit(code & 0xFF)
