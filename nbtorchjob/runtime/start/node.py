"""One node: checks the payload, joins the others, runs its ranks, and exits with a meaningful code."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import tempfile
import traceback
from typing import Any, Dict, Optional, Type

from nbtorchjob.runtime import store, torch_versions
from nbtorchjob.runtime.api import artifacts
from nbtorchjob.runtime.ask import answering, questions
from nbtorchjob.runtime.facts import emit, exits, injected
from nbtorchjob.runtime.facts.errors import from_exception
from nbtorchjob.runtime.facts.injected import FOLDER, SHIPPED, STREAM
from nbtorchjob.runtime.look import recorder
from nbtorchjob.runtime.node import shortage
from nbtorchjob.runtime.objects import wire
from nbtorchjob.runtime.start import compilers
from nbtorchjob.runtime.store.payload import Payload, PayloadError

KEY_FILE = "NBTORCHJOB_KEY_FILE"
WARM = "NBTORCHJOB_WARM"

# These make a rank whose peer is gone end by itself if no agent can tell it. The first two are on: a failed
# or timed-out collective ends the process, and so does the monitor of a watchdog stuck in a CUDA call;
# torch waits 480 s for that watchdog, Flyte 300. After a time-out torch keeps the rank for four times the
# last number, 60 s by default, so that all ranks write the recorder's dumps, which aren't used here.
_NCCL = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "TORCH_NCCL_ENABLE_MONITORING": "1",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "300",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1000",
}


class _Stopped(Exception):
    """SIGTERM or SIGINT arrived before torch's agent installed its handlers."""


def main(path: str) -> int:
    """Run the node of the payload at ``path``; return the exit code (``exits.py``)."""
    node = injected.node_index()
    os.environ[injected.NODE] = str(node)  # for ranks
    try:
        # As PID 1 of a container a process without handlers ignores SIGTERM, and torch installs its own
        # only when the first workers start.
        def stop(number: int, _frame: Any) -> None:
            raise _Stopped(number)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        _check_run()
        payload = Payload(os.path.abspath(path))
        key = None
        if os.environ.get(KEY_FILE):
            try:
                with open(os.environ[KEY_FILE], "rb") as file:
                    key = file.read()
            except OSError as exc:
                raise PayloadError("the job's key can't be read: %s" % exc) from exc
        payload.verify(key)
        code = _run(payload, node, key)
        if code == exits.OK and node >= injected.launch(payload.header["launch"])["nodes"][1]:
            # A spare node never succeeds: it waits until a signal handler raises. A Job creates one for each
            # node that it has lost for good, and fails once all its nodes are lost or have succeeded, before
            # it checks whether node 0 succeeded (Kubernetes 1.36).
            while True:
                signal.pause()
        return code
    except Exception as exc:
        if isinstance(exc, _Stopped):
            return exits.CANCELLED
        if isinstance(exc, (PayloadError, ImportError)):
            again = getattr(exc, "again", False)  # for example if an index can't be reached
            code = getattr(exc, "code", exits.RECOVERABLE_ERROR if again else exits.CONFIG_ERROR)
            return exits.CANCELLED if _behind(exc, _Stopped) else _tell(exc, node, code)
        try:
            from torch.distributed.elastic.multiprocessing.api import SignalException

            from nbtorchjob.runtime.rendezvous.alone import PeersEnded
        except Exception:  # a torch that needs other packages than the installed ones
            return _tell(exc, node, exits.CONFIG_ERROR)
        if isinstance(exc, PeersEnded):
            return _tell(exc, node, exc.code) if str(exc) else exc.code
        if _behind(exc, _Stopped, SignalException):
            return exits.CANCELLED
        return _tell(exc, node, shortage.code_of(exc))


def _behind(exc: Optional[BaseException], *signals: Type[BaseException]) -> bool:
    """Whether ``exc`` is a signal, or was caused by one: interrupted code may raise an error of its own."""
    while exc is not None and not isinstance(exc, signals):
        exc = exc.__cause__ or exc.__context__
    return exc is not None


def _tell(exc: Exception, node: int, code: int) -> int:
    traceback.print_exc()
    sys.stderr.flush()
    emit("NodeFailed", node=node, code=code, error=shortage.explained(from_exception(exc), exc).to_json())
    return code


def _check_run() -> None:
    """Raise ``PayloadError`` if this node's host mounted the payload of another run than the node's.

    A kubelet keeps an immutable Secret by its name while any pod on its host refers to it (Kubernetes 1.36).
    """
    own, path = injected.run(), os.path.join(os.path.dirname(os.environ.get(KEY_FILE, "")), injected.RUN_FILE)
    if not own or STREAM not in os.environ:
        return
    try:
        with open(path, encoding="utf-8") as file:
            mounted = file.read()
    except OSError as exc:
        raise PayloadError("the file that names the payload's run can't be read: %s" % exc) from exc
    if mounted != own:
        raise PayloadError(
            "this node is of run %s, but its host mounted the payload of run %s, which has the "
            "same name: none of it was run; submit the job again" % (own, mounted)
        )


def _run(payload: Payload, node: int, key: Optional[bytes]) -> int:
    store.check()
    folder = os.environ.get(FOLDER) or tempfile.mkdtemp(prefix="nbtorchjob-")
    compilers.lead(os.environ, os.path.join(folder, "compiled"))
    fetching_s = _provide(payload, node, folder, key)
    gc.disable()  # imports leave hardly any garbage: without gc torch's takes three quarters of the time
    _check_torch()
    import torch
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException

    from nbtorchjob.runtime.look.lookout import Lookout
    from nbtorchjob.runtime.node import processes
    from nbtorchjob.runtime.node.agent import PEER_LOST, NodeAgent
    from nbtorchjob.runtime.rank import fresh, worker

    gc.enable()
    fresh.keep_sockets(folder)
    plain_logging()
    launch = injected.launch(payload.header["launch"])
    packed, version = payload.header.get("torch"), torch.__version__
    if packed and packed.split(".")[:2] != version.split(".")[:2]:
        emit("Notice", text="the notebook has torch %s, the node torch %s" % (packed, version))
    modules = os.path.join(folder, SHIPPED)
    payload.extract(modules)
    # Ranks that are started fresh get this process's sys.path from multiprocessing.
    sys.path.insert(1, modules)
    _set_defaults(launch["nproc"])
    # Ranks of "spawn" are forked from the template as well, which saves each a torch import, 2 s and more.
    # The exception: if the local backend started a node fresh, because of a variable that libraries read as
    # they load, its ranks start fresh, too.
    warm = launch["start_method"] == "forkserver" or (
        launch["start_method"] == "spawn" and (os.environ.pop(WARM, None) or STREAM in os.environ)
    )
    method = "forkserver" if warm and processes.start_template(folder) else launch["start_method"]
    rendezvous = _rendezvous(launch, node, key, fetching_s)
    lookout = Lookout(folder, node, launch["hang_after"])
    make: Any
    enter: Any
    act: Any
    make, enter, act = NodeAgent, worker.run_rank, worker.call_once
    if payload.header["lab"]:
        if payload.header["lab"]["fresh"]:
            from nbtorchjob.runtime.pool import keeper  # only pools' payloads have it
        else:
            from nbtorchjob.runtime.lab.keeper import keeper  # labs' and pools' payloads have it
        make, enter, act = keeper(payload, key or b"", folder, modules, node)
    spec = WorkerSpec(
        role="default",
        local_world_size=launch["nproc"],
        entrypoint=enter,
        # Without a key nothing waits for the value. ``NodeAgent`` fills in the zeros.
        args=(payload.path, folder, key or os.urandom(32), 0, 0, 0, act),
        rdzv_handler=rendezvous,
        max_restarts=launch["max_restarts"],
        monitor_interval=1e-4,  # NodeAgent waits in its own way
        local_addr=injected.local_addr(),
    )
    agent = make(
        spec,
        DefaultLogsSpecs(log_dir=tempfile.mkdtemp(prefix="torchelastic-", dir=folder)),
        start_method=method,
        shutdown_timeout=injected.grace(),
        node=node,
        folder=folder,
        first_round=injected.first_round(),
        interval=launch["monitor_interval"],
        attempt=injected.attempt(),
        elastic=launch["nodes"][0] < launch["nodes"][1],
        retried=payload.header["retry"]["retries"] > 0,
        lookout=lookout,
    )
    if payload.header["swaps"] and key:
        from nbtorchjob.runtime.node.swaps import Swaps  # only payloads whose code passes points have it

        agent.swaps = Swaps(node, folder, modules, key, keeps=not payload.header["lab"])
        agent.swaps.wake = agent.wake
        agent.swaps.kept.begin_with(payload)
    if key:  # a node that was started by hand may have none
        own_key = questions.node_key(key, injected.run(), node)
        _answer_questions(folder, own_key, lookout, agent, debug=payload.header["debug"])
    emit("NodeMeets", node=node)
    signal.signal(PEER_LOST, lambda *_: rendezvous.peers.lose_peer())
    with artifacts.sending(key), agent.saving() as agent.saved, artifacts.telling_saved():
        try:
            agent.run()  # returns no result for a spare node that was never needed
        except SignalException:
            if agent.code != exits.LEFT:
                raise
        finally:
            answering.close(folder)
            lookout.close()
            rendezvous.peers.close()  # the other nodes needn't wait for uploads to a store
            processes.end_template()
    return int(agent.code)


def _provide(payload: Payload, node: int, folder: str, key: Optional[bytes]) -> float:
    """Install packages, and put data and files where ranks find them; return how long others may fetch data.

    Reports what the node has, and refuses a call that needs something else. All modules are imported late:
    only payloads that need them have them.
    """
    needs, data, fetching_s = payload.header.get("needs"), payload.header.get("data"), 0.0
    if needs is None:  # of a job on its user's own machine
        _install(payload, node, folder, key)
    else:
        from nbtorchjob.runtime.install import environment

        installed = os.path.join(folder, "packages")
        with environment.telling(node, installed, payload.header["images"]):
            _install(payload, node, folder, key)
        environment.check_modules(needs)
        if payload.header["strict"]:
            environment.check_versions(needs, installed)
    if data:
        from nbtorchjob.runtime.data import provide

        fetching_s = provide.provide(data, folder, node)
    if payload.header["ship"]:
        from nbtorchjob.runtime.install import shipped

        os.chdir(shipped.lay(payload, folder))
    return fetching_s


def _set_defaults(nproc: int) -> None:
    """Set the defaults of ranks' environment variables."""
    if nproc > 1:
        # torchrun's rule: with several ranks on a node, their threads would compete for the cores.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name, value in _NCCL.items():
        os.environ.setdefault(name, value)
    if not any(os.environ.get(name) for name in recorder.SIZES):
        os.environ[recorder.SIZES[0]] = str(recorder.SIZE)


def _answer_questions(folder: str, key: bytes, lookout: Any, agent: Any, *, debug: bool) -> None:
    """Answer questions to this node in a thread, so the template must have been forked before."""

    def late(module: str) -> answering.Handler:  # it comes with the question
        return lambda question: importlib.import_module("nbtorchjob.runtime.ask." + module).answer(question)

    handlers: Dict[str, answering.Handler] = {
        "sample": lookout.answer,
        "profile": lookout.profile,
        "files": late("files"),
        "forward": late("ports"),
        **agent.questions,
    }
    if debug:
        from nbtorchjob.runtime.debug import bridge  # late: only payloads that need it have it

        handlers.update(bridge.handlers(folder))
    try:
        answering.serve(folder, key, handlers)
    except OSError as exc:  # a file system without sockets: the job goes on
        sys.stderr.write("nbtorchjob: this node can't be asked anything: %s\n" % exc)


def _install(payload: Payload, node: int, folder: str, key: Optional[bytes]) -> None:
    if payload.header["packages"]:
        from nbtorchjob.runtime.install import packages  # late: other payloads don't have it

        packages.provide(payload, folder, node, key, warm=bool(os.environ.get(WARM)))


def _rendezvous(launch: Dict[str, Any], node: int, key: Optional[bytes], fetching_s: float = 0.0) -> Any:
    from nbtorchjob.runtime.rendezvous import alone

    if launch["nodes"] == (1, 1):
        return alone.SoloRendezvous(launch["run_id"])
    if not launch["endpoint"]:
        raise PayloadError(
            "this is one of %d nodes, but their meeting point is unknown: set PET_RDZV_ENDPOINT to HOST:PORT"
            % launch["nodes"][1]
        )
    if not key:
        raise PayloadError(
            "the nodes of a job recognize each other by its key: set %s to the key's file" % KEY_FILE
        )
    try:
        from nbtorchjob.runtime.rendezvous import rendezvous  # late: only payloads that need it have it
    except ModuleNotFoundError:
        raise PayloadError(
            "this is one of %d nodes, and the job was submitted for one: submit it with --nnodes %d"
            % (launch["nodes"][1], launch["nodes"][1])
        ) from None
    run_id, addr = launch["run_id"], injected.local_addr()
    # What was written in another attempt, or by the job that this one repeats, doesn't count in this one.
    own = wire.derived(key, "nodes", injected.run(), os.environ.get(injected.ATTEMPT, ""), run_id)
    conf = {"is_host": node == 0, **launch["conf"]}
    usual_s = rendezvous.DEFAULTS["join_timeout"]
    if float(conf.get("join_timeout", usual_s)) == usual_s:  # else it is what the user wants
        conf["join_timeout"] = usual_s + int(fetching_s)
    return rendezvous.dynamic(launch["endpoint"], run_id, launch["nodes"], addr, conf, own)


_plain = 0  # how many loggers there were when all had plain formats


def plain_logging() -> None:
    """Make torch log plainly, unless the process that this one was forked from already does.

    torch's own formatter imports torch._dynamo for the first error that it prints, which delays a failed job
    by a second.
    """
    global _plain
    import logging

    import torch

    if len(logging.root.manager.loggerDict) == _plain:
        return
    plain = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    # It logs a rank's failure as "exit code 211", with its own traceback; ``NodeAgent`` has reported it.
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
    names = [name for name in logging.root.manager.loggerDict if name.startswith(torch.__name__)]
    for name in names:
        for handler in logging.getLogger(name).handlers:
            handler.setFormatter(plain)
    _plain = len(logging.root.manager.loggerDict)


def _check_torch() -> None:
    _refuse_old(torch_versions.installed())
    try:
        import torch
    except ModuleNotFoundError as exc:
        if exc.name != "torch":
            raise
        raise PayloadError(
            "this image has no torch for %s; use one with torch %d.%d or later"
            % (sys.executable, *torch_versions.OLDEST)
        ) from None

    _refuse_old(torch.__version__)


def _refuse_old(version: str) -> None:
    refusal = torch_versions.too_old(version)
    if refusal:
        raise PayloadError("this node %s" % refusal)
