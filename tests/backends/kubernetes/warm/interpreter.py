"""A warm Python: programs are forks of it, so that none has to import torch again.

It runs as a program of its own, in the Python of an image: ``interpreter.py SOCKET MODULE...``. Each
connection asks for one program, and gets its process id and how it ended; when the connection is closed,
the interpreter kills all that the program left, as at the end of a container. It knows nothing of the
project under test.
"""

import _imp
import atexit
import contextlib
import ctypes
import gc
import hashlib
import importlib
import json
import marshal
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from importlib.machinery import SourceFileLoader
from typing import Any, NoReturn

SET_CHILD_SUBREAPER = 36
ANSWER = struct.Struct("<iii")  # kind of answer, number, and id of the process that looks after the program
ERROR, STARTED, ENDED = range(3)  # the number: errno, process id, wait status
# A program that sets such a variable starts cold: libraries read these as they are loaded.
READ_AT_IMPORT = ("LD_", "TORCH_", "PYTORCH_", "PYTHON", "MKL_", "KMP_", "OPENBLAS_")
READ_BY_US = ("PYTHONUNBUFFERED",)
CLOCK = "WARM_CLOCK_AHEAD_S"  # seconds
SHARED_MEMORY = "WARM_SHARED_MEMORY"  # the folder that a program sees as /dev/shm
NEW_MOUNTS, NEW_USER, BIND, PRIVATE = 0x20000, 0x10000000, 0x1000, 0x44000  # of <sched.h>, <sys/mount.h>


def main(address: str, *modules: str) -> None:
    """Serve until stdin is closed, which means that the process that started this one is gone."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)  # connections wait while modules are imported
    for module in modules:
        with contextlib.suppress(ImportError):  # an image without torch
            importlib.import_module(module)
    keep_compiled(os.path.dirname(address))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the processes that look after programs
    # After ``nohup`` programs would ignore it, as in no container, and a shell can't trap an ignored signal.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Existing objects stay unchanged, so that forks share their memory.
    gc.collect()
    gc.freeze()
    merge_pages()
    while True:
        ready, _, _ = select.select([listener.fileno(), 0], [], [])
        if listener.fileno() not in ready:
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            look_after(connection)
        connection.close()


def keep_compiled(folder: str) -> None:
    """Compile sources without a file in the first fork alone: a payload's would take each fork 0.1 s."""
    compile_source = SourceFileLoader.source_to_code

    def source_to_code(loader: SourceFileLoader, data: Any, path: Any, **options: Any) -> types.CodeType:
        if os.path.exists(path):
            return compile_source(loader, data, path, **options)
        kept = os.path.join(folder, f"{hashlib.sha256(data).hexdigest()}.code")
        try:
            with open(kept, "rb") as file:
                code: types.CodeType = marshal.load(file)
        except OSError:
            code = compile_source(loader, data, path, **options)
            with contextlib.suppress(OSError):  # such as in a process that may open no more files
                with open(f"{kept}.{os.getpid()}", "wb") as output:
                    marshal.dump(code, output)
                os.rename(output.name, kept)
        else:
            _imp._fix_co_filename(code, path)  # type: ignore[attr-defined]
        return code

    SourceFileLoader.source_to_code = source_to_code  # type: ignore[method-assign, assignment]


def merge_pages() -> None:
    """Move this process's memory to huge pages, if Linux can (6.1): a fork then takes a fifth of the time."""
    madvise, huge, collapse = ctypes.CDLL(None).madvise, 2 << 20, 25
    with open("/proc/self/maps") as maps:
        rows = [line.split() for line in maps.read().splitlines()]
    for addresses, permissions, _, _, inode, *_ in rows:
        if permissions == "rw-p" and inode == "0":
            start, end = (int(address, 16) for address in addresses.split("-"))
            for at in range(-(-start // huge) * huge, end // huge * huge, huge):
                madvise(ctypes.c_void_p(at), ctypes.c_size_t(huge), collapse)


def look_after(connection: socket.socket) -> None:
    """Start the requested program, report how it ends, and leave nothing of it behind."""

    def answer(kind: int, number: int) -> None:
        connection.sendall(ANSWER.pack(kind, number, os.getpid()))

    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1)
        data, fds, _, _ = socket.recv_fds(connection, 16, 2)
        request = json.loads(connection.recv(int(data), socket.MSG_WAITALL))
        memory = request["env"].pop(SHARED_MEMORY, None)
        if memory is not None:
            share_memory(memory)
        try:
            pid = start(request, fds, connection)
        except OSError as error:
            answer(ERROR, error.errno or 0)
            return
        for fd in fds:
            os.close(fd)
        answer(STARTED, pid)
        ended = os.pidfd_open(pid)
        if connection.fileno() not in select.select([connection.fileno(), ended], [], [])[0]:
            answer(ENDED, os.waitpid(pid, 0)[1])
            select.select([connection], [], [])  # no more data comes: this waits until it is closed
    except BaseException:
        traceback.print_exc()
    finally:
        kill_descendants()
        os._exit(0)


def share_memory(folder: str) -> None:
    """Make this process and its forks see ``folder`` as /dev/shm, if the machine allows it."""
    libc, user, group = ctypes.CDLL(None), os.getuid(), os.getgid()
    if libc.unshare(NEW_MOUNTS) != 0:
        if libc.unshare(NEW_MOUNTS | NEW_USER) != 0:
            return
        for name, text in {
            "setgroups": "deny",
            "uid_map": f"{user} {user} 1",
            "gid_map": f"{group} {group} 1",
        }.items():
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    libc.mount(None, b"/", None, PRIVATE, None)
    libc.mount(folder.encode(), b"/dev/shm", None, BIND, None)


def start(asked: dict[str, Any], fds: list[int], connection: socket.socket) -> int:
    """Start a program, as a fork if it is one for this Python; return its process id."""
    argv, env = asked["argv"], asked["env"]
    output, errors = fds[0], fds[-1]
    if is_warm(argv, env):
        pid = os.fork()
        if pid == 0:
            connection.close()
            become(argv, env, asked["cwd"], output, errors)
        return pid
    with open(os.devnull) as null:
        process = subprocess.Popen(
            argv,
            env=env,
            cwd=asked["cwd"],
            stdin=null,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
    process.returncode = 0  # look_after waits for it, by its id
    return process.pid


def is_warm(argv: list[str], env: dict[str, str]) -> bool:
    """Return whether the program wants this Python, and its variables would leave this Python as it is."""
    names = {
        name for name in (*env, *os.environ) if name.startswith(READ_AT_IMPORT) and name not in READ_BY_US
    }
    same = all(env.get(name) == os.environ.get(name) for name in names)
    this_python = os.path.dirname(argv[0]) == os.path.dirname(sys.executable) and os.path.basename(
        argv[0]
    ).startswith("python")
    return same and this_python and len(argv) > 1 and (argv[1] == "-c" or not argv[1].startswith("-"))


def become(argv: list[str], env: dict[str, str], cwd: str, output: int, errors: int) -> NoReturn:
    """Run a program in this process, as ``python FILE`` or ``python -c TEXT`` would."""
    code = 1
    try:
        os.setsid()
        with open(os.devnull) as null:
            os.dup2(null.fileno(), 0)
        os.dup2(output, 1)
        os.dup2(errors, 2)
        os.closerange(3, 256)
        os.environ.clear()
        os.environ.update(env)
        time.tzset()
        set_clock(float(env.get(CLOCK, 0)))
        tempfile.tempdir = None  # the program's own TMPDIR counts, even if a library has looked for another
        os.chdir(cwd)
        unbuffered = bool(env.get("PYTHONUNBUFFERED"))
        sys.stdout.reconfigure(write_through=unbuffered)  # type: ignore[union-attr]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = run(argv)
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def set_clock(ahead_s: float) -> None:
    """Set the clock of this process and its forks ahead, like that of another host."""
    if ahead_s:
        now = time.time
        time.time = lambda: now() + ahead_s


def run(argv: list[str]) -> int:
    """Run the program to its end; return the exit code."""
    program = sys.modules["__main__"] = types.ModuleType("__main__")
    sys.argv = ["-c", *argv[3:]] if argv[1] == "-c" else argv[1:]
    try:
        if argv[1] == "-c":
            sys.path.insert(0, "")
            exec(compile(argv[2], "<string>", "exec"), program.__dict__)
        else:
            if not os.path.isdir(argv[1]) and argv[1].endswith(".py"):
                sys.path.insert(0, os.path.dirname(os.path.abspath(argv[1])))
            runpy.run_path(argv[1], run_name="__main__")
    except SystemExit as error:
        return leave(error.code)
    except BaseException:
        traceback.print_exc()
        return leave(1)
    return leave(0)


def leave(code: Any) -> int:
    """Do what Python does at the end of a program."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def kill_descendants() -> None:
    """Kill all descendants of this process: orphans become its children."""
    while True:
        pids = children()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, 0):
                pass
        except ChildProcessError:
            if not children():
                return


def children() -> list[int]:
    """Return the child processes of this one."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


if __name__ == "__main__":
    del sys.path[0]  # this file's folder: no program should find its modules
    main(*sys.argv[1:])
