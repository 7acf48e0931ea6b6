"""One rank: runs the call, and writes down what came of it."""

from __future__ import annotations

import linecache
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from typing import Any, Callable, Sequence

from . import call, exits, groups, injected, loading, store, streams, wire
from .death import die_with_parent
from .emit import emit
from .errors import Error, from_exception, named, users_traceback
from .injected import ATTEMPT
from .payload import CALL, Payload
from .report import ROUND
from .stream import STREAM


def run_rank(path: str, folder: str, key: bytes, round_: int, meeting: str, attempt: int) -> None:
    """Run the payload's call as the rank that the environment says; torch's agent starts this.

    The ranks' process groups meet in the store at ``meeting`` (host:port). ``attempt`` is the job's, from 1.

    Returns only when the call returned. Otherwise the process ends here: what follows in a failed
    rank (exit handlers, destructors of process groups) may wait for ranks that are gone.
    """
    die_with_parent()
    _reset_signals()
    # multiprocessing left the way this rank was started as its own default: processes that the user's
    # code starts (DataLoader's workers) would look for the notebook's classes and not find them.
    multiprocessing.set_start_method(None, force=True)
    rank = int(os.environ["RANK"])
    os.environ.update({ROUND: str(round_), ATTEMPT: str(attempt)})
    _reseed()
    streams.redirect(os.path.join(folder, "rank-%d.log" % rank))
    header = Payload(path).header  # now: what fails may leave no file descriptor to open it with
    try:
        value = _called(path, meeting)
        if rank == 0 or header["all_ranks"]:
            _keep(value, rank, round_, folder, key)
        groups.leave()
    except BaseException as exc:
        retry_on = header["retry"]["retry_on"]
        if isinstance(exc, SystemExit) and not named(exc, retry_on):
            _exit(exc)
        _fail(exc, rank, round_, retry_on)
    streams.flush()


def _reset_signals() -> None:
    # A forked rank inherits the agent's handlers, and the template ignores SIGINT.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)


def _reseed() -> None:
    # Ranks forked from one process would all draw the same numbers. Python reseeds `random` at a
    # fork by itself, torch starts from a fixed seed in any process; numpy does neither.
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _call(path: str, meeting: str) -> Any:
    import torch

    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit():
        # OpenMP has read the variable already where torch was imported before it was set.
        torch.set_num_threads(int(threads))
    groups.meet_at(meeting)
    payload = Payload(path)
    for filename, text in payload.sources().items():
        lines = text.splitlines(True)
        linecache.cache[filename] = (len(text), None, lines, filename)
    return call.run(loading.loads(payload.read(CALL), payload.buffers()))


def _keep(value: Any, rank: int, round_: int, folder: str, key: bytes) -> None:
    ref = os.path.join(folder, "rank-%d.value" % rank)
    key = wire.value_key(key, injected.run(), round_, rank)
    size = wire.write_value(ref, value, dump, key)
    if STREAM in os.environ:
        ref, size = store.place(ref, "round-%d-rank-%d.value" % (round_, rank), key)
    emit("ValueReady", rank=rank, round=round_, ref=ref, size=size)


def dump(value: Any, out_of_band: Callable[[pickle.PickleBuffer], Any]) -> bytes:
    """Pickle a result by value where it must be, with the memory of tensors out of band."""
    from .pickler import Pickler, dumps  # late: it needs cloudpickle

    return dumps(value, Pickler, out_of_band)


def _called(path: str, meeting: str) -> Any:
    try:
        return _call(path, meeting)
    except SystemExit as exc:
        if exc.code in (None, 0):
            return None  # "that's all": a good end without a value
        raise


def _exit(exc: SystemExit) -> None:
    if not isinstance(exc.code, int):
        sys.stderr.write("%s\n" % (exc.code,))
    _end(exc.code if isinstance(exc.code, int) else 1)


def _fail(exc: BaseException, rank: int, round_: int, retry_on: Sequence[str]) -> None:
    error = from_exception(exc, retry_on=retry_on)
    try:
        # Told before it is printed: on a full disk there is room for the one only.
        emit(
            "RankFailed",
            node=int(os.environ[injected.NODE]),
            rank=rank,
            restart=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
            round=round_,
            error=error.to_json(),
        )
        sys.stderr.write("".join(traceback.format_exception(type(exc), exc, users_traceback(exc))))
    finally:
        _end(_told(error))


def _told(error: Error) -> int:
    if error.recoverable:
        return exits.TOLD_RECOVERABLE
    return exits.TOLD_LOST_PEER if error.lost_peer else exits.TOLD


def _end(code: int) -> None:
    streams.flush()
    os._exit(code & 0xFF)
