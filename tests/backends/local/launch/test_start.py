"""A warm rank starts in the same state as a fresh interpreter, whatever it was forked from."""

import gzip
import inspect
import json
import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from nbtorchjob import Elastic, JobSpec, submit
from nbtorchjob.backends.local.launch import pool
from nbtorchjob.runtime.rank import fresh
from tests.patience import LIMIT

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.torch

TWO = Elastic(nproc_per_node=2)


@pytest.fixture(scope="module", autouse=True)
def all_imported():
    """Import in the pool what it imports when it is idle: ranks are forked from such a pool, too."""
    pool.import_all()


def look():
    """Return what code can see of its process before it has done anything there."""
    import decimal
    import gc
    import locale
    import logging
    import multiprocessing
    import os
    import resource
    import signal
    import sys
    import tempfile
    import threading
    import warnings

    import torch

    def named(handler):
        return getattr(handler, "__name__", str(handler))

    me = multiprocessing.current_process()
    of_ranks = ("NBTORCHJOB_", "TORCHELASTIC_", "TORCH_NCCL_", "TORCH_FR_", "GLOO_SOCKET_IFNAME", "PET_",
                "GROUP_", "LOCAL_", "ROLE_", "MASTER_", "RANK", "WORLD_SIZE", "THP_",
                "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "QUACK_CACHE_DIR")  # fmt: skip
    return {
        "signals": {number.name: named(signal.getsignal(number)) for number in signal.Signals},
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "wakeup": signal.set_wakeup_fd(-1),
        "limits": {name: resource.getrlimit(getattr(resource, name))
                   for name in dir(resource) if name.startswith("RLIMIT_")},
        "threads": [t.name for t in threading.enumerate() if t.name != "flush"],
        "torch threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "torch": [str(torch.get_default_dtype()), str(torch.get_default_device()), torch.is_grad_enabled(),
                  torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"),
                  torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()],
        "cudnn": [torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark,
                  torch.backends.cudnn.deterministic],
        "cuda": [torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork(), len(torch.cuda._queued_calls)],
        "warnings": [[str(part) for part in entry] for entry in warnings.filters],
        "flags": [str(sys.flags), sys.warnoptions],
        "cwd": os.getcwd(),
        "umask": os.umask(0o022),
        "locale": locale.setlocale(locale.LC_ALL),
        "encodings": [sys.getfilesystemencoding(), locale.getpreferredencoding(), sys.stdout.encoding],
        "process": [me.name, me.daemon, str(multiprocessing.parent_process()),
                    multiprocessing.get_start_method(allow_none=True),
                    vars(multiprocessing.process)["ORIGINAL_DIR"],
                    sys.modules["__mp_main__"] is sys.modules["__main__"]],
        "streams": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, sys.stdin is sys.__stdin__,
                    sys.stdin.fileno(), sys.stdin.isatty(), sys.stdin.closed],
        "inherited": [fd for fd in map(int, os.listdir("/proc/self/fd"))
                      if fd > 2 and os.path.exists(f"/proc/self/fd/{fd}") and os.get_inheritable(fd)],
        "gc": [gc.isenabled(), gc.get_threshold(), gc.get_debug()],
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__,
                  sys.unraisablehook is sys.__unraisablehook__, sys.gettrace(), sys.getprofile(),
                  sys.getrecursionlimit(), sys.getswitchinterval()],
        "logging": [logging.root.level, len(logging.root.handlers)],
        "decimal": str(decimal.getcontext()),
        "temporary": tempfile.gettempdir(),
        "environment": {name: value for name, value in os.environ.items()
                        if not name.startswith(of_ranks)},
    }  # fmt: skip


def by_itself(function, env):
    """Return the result of ``function`` in a process of its own."""
    code = f"{inspect.getsource(function)}\nimport json; print(json.dumps({function.__name__}()))"
    done = subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=env, check=True
    )
    return json.loads(done.stdout)


@pytest.fixture
def lower_limit():
    """Lower this process's limit of open files below that of the process that started the pool."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 7, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_warm_rank_starts_as_a_fresh_interpreter_does(folder, monkeypatch, lower_limit):
    # The pool has seen other values of these.
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    job = submit(look, spec=Elastic())
    view = json.loads(json.dumps(job.result(LIMIT)))

    plain = by_itself(look, dict(os.environ))
    assert {name: value for name, value in view.items() if value != plain[name]} == {}


def draw():
    import gc
    import multiprocessing
    import random
    import tempfile
    import uuid

    import numpy as np
    import torch

    # All existing generators: modules that the pool has imported may make more some day.
    gc.unfreeze()
    there = gc.get_objects()
    sequences = [obj for obj in there if type(obj) is vars(tempfile)["_RandomNameSequence"]]
    own = {
        id(vars(sequence).get("_rng")) for sequence in sequences
    }  # a sequence makes itself a new generator in a fork
    kinds = random.Random, np.random.RandomState, np.random.Generator, torch.Generator
    rngs = [obj for obj in there if type(obj) in kinds and id(obj) not in own]
    return {
        "torch": torch.rand(4).tolist(),
        "torch's seed": torch.initial_seed(),
        "dropout": torch.nn.functional.dropout(torch.ones(64)).tolist(),
        "random": random.random(),
        "numpy": float(np.random.random()),
        "numpy's generator": float(np.random.default_rng().random()),
        "uuid": str(uuid.uuid4()),
        "names": [next(sequence) for sequence in [vars(tempfile)["_get_candidate_names"](), *sequences]],
        "key": bytes(multiprocessing.current_process().authkey),
        **{f"{type(numbers).__name__} {n}": torch.rand(1, generator=numbers).item()
           if isinstance(numbers, torch.Generator) else numbers.random() for n, numbers in enumerate(rngs)},
    }  # fmt: skip


def test_no_two_ranks_and_no_two_jobs_draw_the_same():
    jobs = [submit(draw, spec=JobSpec(TWO, all_ranks=True)) for _ in range(2)]
    ranks = [rank for job in jobs for rank in job.results(LIMIT)]

    alike = [name for name in ranks[0] if len({str(rank.get(name)) for rank in ranks}) < len(ranks)]
    assert alike == []


def test_a_seed_that_the_code_sets_holds():
    def seeded():
        import torch

        torch.manual_seed(7)
        return torch.rand(3).tolist()

    first, second = submit(seeded, spec=JobSpec(TWO, all_ranks=True)).results(LIMIT)
    assert first == second


def test_numpys_threads_are_as_few_as_torchs():
    def threads():
        import os

        import numpy as np

        before = len(os.listdir("/proc/self/task"))
        many = np.ones((600, 600))
        many @ many
        return before, len(os.listdir("/proc/self/task")) - before

    untold, _ = submit(threads, spec=Elastic()).result(LIMIT)
    assert submit(threads, spec=TWO).result(LIMIT) == (untold, 0)


@pytest.mark.skipif(not os.path.exists("/sys/kernel/mm/transparent_hugepage"), reason="no huge pages here")
@pytest.mark.parametrize(("env", "asks"), [({}, True), ({"THP_MEM_ALLOC_ENABLE": "0"}, False)])
def test_a_big_tensor_lies_in_huge_pages_unless_the_job_says_otherwise(env, asks):
    def asked():
        from pathlib import Path

        import torch

        big, begin, end = torch.ones(1 << 24), 0, 0
        for first, *rest in map(str.split, Path("/proc/self/smaps").read_text().splitlines()):
            if "-" in first:
                begin, end = (int(address, 16) for address in first.split("-"))
            elif first == "VmFlags:" and begin <= big.data_ptr() < end:
                return "hg" in rest
        return None

    assert submit(asked, spec=JobSpec(Elastic(), env=env)).result(LIMIT) == asks


def test_a_kernel_with_fewer_cpus_has_fewer_threads_on_its_ranks():
    allowed = os.sched_getaffinity(0)
    submit(lambda: 1).result(LIMIT)  # now a pool exists that has counted all CPUs
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert submit(lambda: __import__("torch").get_num_threads(), spec=Elastic()).result(LIMIT) == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_a_pythonpath_that_is_asked_for_reaches_imports(folder):
    (folder / "asked_for.py").write_text("word = 'found'")

    def ask():
        import asked_for  # type: ignore[import-not-found]

        return asked_for.word, os.environ["PYTHONPATH"], sys.path.count(str(folder))

    for cold in ({}, {"TORCH_SHOW_CPP_STACKTRACES": "1"}):
        spec = JobSpec(Elastic(), env={"PYTHONPATH": str(folder), **cold})
        assert submit(ask, spec=spec).result(LIMIT) == ("found", str(folder), 1)


def test_a_rank_ends_as_a_program_does():
    def work():
        import atexit
        import threading
        import weakref

        def last():
            print("exit handler")
            print("to the first stdout", file=sys.__stdout__)
            raise ValueError("too late to fail")

        atexit.register(last)
        go_on = threading.Event()
        threading.Thread(target=lambda: (go_on.wait(), print("thread"))).start()
        atexit.register(print, "handler of the later one")
        threading.Timer(0, go_on.set).start()
        # Finalizers from before this rank are torch's, and take 70 ms in each rank.
        before = [finalizer for finalizer in weakref.finalize._registry if finalizer.atexit]  # type: ignore[attr-defined]
        weakref.finalize(work, print, "finalizer")
        return before

    job = submit(work, spec=Elastic())

    assert job.result(LIMIT) == []
    lines = job.logs(0).splitlines()
    assert lines[:3] == ["thread", "handler of the later one", "exit handler"]
    assert lines[-2:] == ["ValueError: too late to fail", "finalizer"]
    assert "to the first stdout" in lines


@pytest.mark.parametrize("how", ["returns", "fails", "exits"])
def test_files_that_a_rank_left_open_are_whole(folder, how):
    def work():
        files = [(folder / "losses").open("w"), gzip.open(folder / "losses.gz", "wt")]  # noqa: SIM115
        for file in files:
            file.write("0.5")
        files.append(files)  # nothing frees them, as with a notebook's names
        if how == "fails":
            raise ValueError
        if how == "exits":
            sys.exit(3)

    submit(work, spec=Elastic()).wait(LIMIT)

    assert (folder / "losses").read_text() == "0.5"
    assert zlib.decompressobj(31).decompress((folder / "losses.gz").read_bytes()) == b"0.5"


@pytest.mark.parametrize("how", ["returns", "fails", "is killed"])
def test_no_shared_memory_outlives_a_job(folder, how):
    def work():
        import multiprocessing
        from multiprocessing.shared_memory import SharedMemory

        import torch

        torch.multiprocessing.set_sharing_strategy("file_system")
        memory, tensor = SharedMemory(create=True, size=1), torch.ones(1).share_memory_()
        lock = multiprocessing.get_context("spawn").Lock()
        globals()["kept"] = memory, tensor, lock  # nothing frees them, as with a notebook's names
        sem: Any = lock
        mine = memory.name, f"torch_{os.getpid()}_", f"sem.{sem._semlock.name[1:]}"
        names = [name for name in os.listdir("/dev/shm") if name.startswith(mine)]
        (folder / "made").write_text(json.dumps(names))
        if how == "fails":
            raise ValueError
        if how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)

    submit(work, spec=Elastic()).wait(LIMIT)

    names = json.loads((folder / "made").read_text())
    assert len(names) == 3
    assert not {name for name in names if not name.startswith("torch")} & {*os.listdir("/dev/shm")}
    end = time.monotonic() + LIMIT
    while {*names} & {*os.listdir("/dev/shm")}:  # torch's own program takes two seconds
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("how", ["returns", "is killed"])
def test_the_sockets_of_multiprocessing_go_with_the_job(folder, monkeypatch, how):
    monkeypatch.setenv("TMPDIR", str(folder))

    def work():
        import multiprocessing

        address = multiprocessing.Manager().address
        (folder / "address").write_text(address)
        if how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)

    job = submit(work, spec=Elastic())
    job.wait(LIMIT)
    address = Path((folder / "address").read_text())
    left = [*folder.glob("pymp-*")]
    job.delete()

    assert left == []
    assert not address.parent.exists()


def test_a_folder_that_is_too_deep_for_a_socket_leaves_multiprocessing_its_own(folder, monkeypatch):
    config = vars(multiprocessing.current_process())["_config"]
    monkeypatch.delitem(config, "tempdir", raising=False)
    for name, kept in (("x" * (107 - len(f"{folder}//mp/listener-12345678")), True), ("x" * 99, False)):
        config.pop("tempdir", None)
        fresh.keep_sockets(str(folder / name))
        assert ("tempdir" in config) == kept
        if kept:
            multiprocessing.connection.Listener(family="AF_UNIX").close()


def test_what_is_said_on_stderr_is_out_at_the_end_of_its_line():
    def work():
        from IPython.display import Markdown, display

        display(Markdown("*zero*"))
        print("one")
        print("two", file=sys.stderr)
        os.write(1, b"three\n")
        print("four", file=sys.stderr)
        os.write(2, b"five\n")
        print("six", file=sys.stderr)
        os._exit(9)

    job = submit(work, spec=Elastic())
    job.wait(LIMIT)

    assert job.logs(0).splitlines() == ["*zero*", "one", "two", "three", "four", "five", "six"]
