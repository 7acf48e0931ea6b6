"""A fork of the pool becomes a node's agent: the same zipapp, run as any image would run it."""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import sys
import time
import types
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from nbtorchjob.backends.local.jobdir.directory import JobDirectory
from nbtorchjob.machine import processes
from nbtorchjob.payload import program
from nbtorchjob.runtime.facts import exits, injected
from nbtorchjob.runtime.facts.death import die_with_parent
from nbtorchjob.runtime.facts.errors import from_exception
from nbtorchjob.runtime.node import shortage
from nbtorchjob.runtime.rank import fresh
from nbtorchjob.runtime.store.payload import Payload, PayloadError

# Has torch ask for huge pages for tensors from 2 MiB on, unless the job says otherwise. Of 256 MiB the kernel
# then takes back 128 pages at a rank's end, not 65,536, for which whoever waits for a value waits, too.
PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}
_OF_PATH = "PYTHONPATH"  # what it says the request's path has


# What a payload's program consists of, and the CRC-32 of each of its members, which is imported here.
_PROGRAM = ("nbtorchjob.runtime", "cloudpickle")
_imported: dict[str, int] = {}


def import_program() -> None:
    """Import what payloads bring: a node whose payload brings the same needn't, which takes it 20 ms."""
    for name, _ in program.modules():
        module = name[: -len(".py")].replace("/", ".").replace(".__init__", "")
        if module.startswith(_PROGRAM):
            importlib.import_module(module)
    _imported.update((name, zlib.crc32(data)) for name, data in program.whole())


def become(job: JobDirectory, request: dict[str, Any], env: dict[str, str], index: int) -> NoReturn:
    """Run node ``index`` of the job in this process, and end with its exit code."""
    code = exits.INFRASTRUCTURE_ERROR
    try:
        die_with_parent()
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        log = job.node(index) / "agent.log"
        with open(os.devnull, "rb") as null, open(log, "ab") as file:
            os.dup2(null.fileno(), 0)
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.chdir(request["cwd"])
        os.umask(request["umask"])
        processes.take(request["limits"])
        cpus = os.sched_getaffinity(0)
        os.sched_setaffinity(0, request["cpus"])
        # The program checks the rest of its payload; itself it can't.
        payload = Payload(str(job.payload))
        payload.verify_signature(job.key.read_bytes())
        if job.run() != env[injected.RUN]:  # the supervisor of an earlier job of its name goes on
            said = f"this node is of run {env[injected.RUN]}, but {job.payload} is of run {job.run()}"
            raise PayloadError(f"{said}: nothing of that was run; submit the job again")
        # torch has counted the CPUs of the pool; only with a number of threads given it needn't again.
        counted = cpus == set(request["cpus"]) or "OMP_NUM_THREADS" in env or job.info().nproc_per_node > 1
        if not counted or _needs_fresh_interpreter(env):
            os.execve(sys.executable, [sys.executable, "-c", _program(job.payload, request["path"])], env)
        os.environ.clear()
        os.environ.update({**env, "NBTORCHJOB_WARM": "1"})
        time.tzset()
        code = _run(payload, request["path"])
    except Exception as exc:  # before the node's own code could tell what it met
        code = exits.CONFIG_ERROR if isinstance(exc, PayloadError) else shortage.code_of(exc)
        error = shortage.explained(from_exception(exc), exc).to_json()
        job.emit("NodeFailed", node=index, code=code, error=error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _needs_fresh_interpreter(env: dict[str, str]) -> bool:
    names = {name for name in (*env, *os.environ) if fresh.too_late(name)} - {_OF_PATH}
    return any(env.get(name) != os.environ.get(name) for name in names)


def _program(payload: Path, path: list[str]) -> str:
    """Return what a fresh interpreter runs: the same as :func:`_run`, with no trace in its environment."""
    program = f"import runpy, sys; sys.argv[:] = {[str(payload)]!r}; sys.path[:] = {path!r}; "
    return program + f"runpy.run_path({str(payload)!r}, run_name='__main__')"


def _loaded(name: str) -> Iterator[str]:
    """Yield the names of a package and its modules, as far as they are imported.

    To look through all of ``sys.modules`` takes 4 ms: each name that is looked at is a page that this process
    shared with the pool until then.
    """
    module = sys.modules.get(name)
    if module is not None:
        yield name
        for attribute in [*vars(module)] if hasattr(module, "__path__") else ():
            yield from _loaded(f"{name}.{attribute}")


def _run(payload: Payload, path: list[str]) -> int:
    sys.argv = [payload.path]
    sys.path[:] = path  # the payload comes first while it is run
    # The payload brings its own runtime and cloudpickle; what the pool has imported serves if it is the same.
    same = bool(_imported) and _imported.items() <= payload.checksums().items()
    hidden = {}  # not freed: that would take 4 ms
    for name in [*_loaded("nbtorchjob"), *_loaded("cloudpickle")]:
        if not (same and name.startswith(_PROGRAM)):
            hidden[name] = sys.modules.pop(name)
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        runpy.run_path(payload.path, run_name="__main__")
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else exits.USER_ERROR
    return exits.OK
