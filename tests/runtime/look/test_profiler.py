"""A rank's profiler, and actions that run in the main thread or not at all."""

import inspect
import json
import os
import pickle
import resource
import threading
import time

import pytest
import torch

from nbtorchjob.runtime.look.profiler import (
    MEMORY_EVENTS,
    TOLD,
    TRACE,
    AwayError,
    Profiler,
    in_main,
    profile_path,
)
from tests.patience import LIMIT


class Asked(threading.Thread):
    """A thread that asks the main thread to run an action."""

    def __init__(self, act, seconds):
        super().__init__(daemon=True)
        self.act, self.seconds = act, seconds
        self.found = None
        self.start()

    def run(self):
        try:
            self.found = in_main(self.act, self.seconds)
        except Exception as exc:
            self.found = exc


def spin(thread):
    """Run Python code until a thread has ended."""
    while thread.is_alive():
        pass


def test_it_is_done_between_two_bytecodes():
    thread = Asked(threading.current_thread, LIMIT)
    spin(thread)

    assert thread.found is threading.main_thread()


def test_what_it_raises_is_told_to_who_asked():
    thread = Asked(lambda: 1 / 0, LIMIT)
    spin(thread)

    assert isinstance(thread.found, ZeroDivisionError)


def test_it_waits_for_the_end_of_a_backward_pass_and_what_is_too_late_is_never_done():
    def within(grad):
        late = Asked(lambda: done.append("late"), 0.02)
        spin(late)
        threads.extend((late, Asked(lambda: done.append("in time"), LIMIT)))

    done: list[str] = []
    threads: list[Asked] = []
    x = torch.ones(1, requires_grad=True)
    x.register_hook(within)
    (x * 1).backward()
    late, thread = threads
    spin(thread)

    assert isinstance(late.found, AwayError)
    assert done == ["in time"]


def test_it_waits_for_the_end_of_an_operation_that_is_written_in_python():
    class Double(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx, x):
            late = Asked(lambda: None, 0.02)
            spin(late)
            outcomes.append(late.found)
            return x * 2

    outcomes: list[object] = []
    Double.apply(torch.ones(1))

    assert isinstance(outcomes[0], AwayError)


def test_it_is_done_between_two_operations_that_wait_in_python():
    class Waits(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if not threads:
                threads.append(Asked(threading.current_thread, LIMIT))
            time.sleep(0.1)  # an operation that waits longer than the thread takes to ask again
            return func(*args, **(kwargs or {}))

    threads: list[Asked] = []
    x = torch.ones(1)
    for _ in range(10):
        with Waits():
            torch.add(x, x)
        if threads[0].found is not None:
            break

    assert threads[0].found is threading.main_thread()


def test_it_is_done_where_torch_only_asks_what_overrides_an_operation():
    class Asks(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func, types, args=(), kwargs=None):
            thread = Asked(threading.current_thread, LIMIT)
            spin(thread)
            outcomes.append(thread.found)
            return func(*args, **(kwargs or {}))

    outcomes: list[object] = []
    with Asks():
        torch.ones(1)

    assert outcomes == [threading.main_thread()]


def test_it_waits_for_the_end_of_an_operation_in_which_another_one_asks():
    class Asks(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func, types, args=(), kwargs=None):
            late = Asked(lambda: None, 0.02)
            spin(late)
            outcomes.append(late.found)
            return func(*args, **(kwargs or {}))

    class Double(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx, x):
            with Asks():
                return x * 2

    outcomes: list[object] = []
    Double.apply(torch.ones(1))

    assert isinstance(outcomes[0], AwayError)


def test_it_is_done_where_a_backward_pass_comes_back_to_python():
    def _engine_run_backward():  # named like torch's own, in which a rank waits for others
        thread = Asked(threading.current_thread, LIMIT)
        while thread.found is None:
            time.sleep(0.001)
        return thread.found

    assert _engine_run_backward() is threading.main_thread()


def test_an_exception_of_a_signals_handler_is_the_main_threads():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        spin(Asked(interrupted, LIMIT))


def told(folder):
    """Multiply until the profile of rank 3 is written; return it."""
    path, x = profile_path(str(folder), TOLD, 3), torch.ones(64, 64)
    until = time.monotonic() + LIMIT
    x @ x  # at least once: a refusal may be written at once
    while not os.path.exists(path) and time.monotonic() < until:
        x @ x
        time.sleep(0.001)
    with open(path) as file:
        return json.load(file)


def begun():
    """Add until torch's profiler runs in this thread."""
    until = time.monotonic() + LIMIT
    while not torch.autograd._profiler_enabled():
        assert time.monotonic() < until, "it wasn't started"
        torch.ones(4) + 1


def test_its_trace_and_its_main_threads_stacks_are_written(folder, capfd):
    profiler = Profiler()
    assert profiler.start(str(folder), 3, 0.2, memory=False) == ""
    assert profiler.start(str(folder), 3, 0.2, memory=False) == "it is being profiled already"

    record = told(folder)
    with open(profile_path(str(folder), TRACE, 3)) as file:
        trace = json.load(file)
    names = {event["name"] for event in trace["traceEvents"] if event.get("tid") == os.getpid()}
    assert {"aten::matmul", "aten::mm"} <= names
    assert record["began"] < record["ended"]
    assert [__file__, "told"] in [[file, name] for stack in record["stacks"] for file, _, name in stack]
    assert not torch.autograd._profiler_enabled()
    assert capfd.readouterr() == ("", "")


def test_ranges_of_its_own_are_told_and_not_torchs_to_end(folder):
    """Profile twice within one range: torch would write the range's end to memory that the first freed."""
    profiler, ranges = Profiler(), torch.autograd.profiler.record_function
    marks = []
    for name in ("outer", "next"):
        profiler.start(str(folder), 3, 0.1, memory=False)
        begun()
        with ranges(name), ranges("inner"):
            record = told(folder)
        marks.append(record["ranges"])
        with open(profile_path(str(folder), TRACE, 3)) as file:
            assert "inner" not in file.read()
        os.unlink(profile_path(str(folder), TOLD, 3))

    for name, told_of in zip(("outer", "next"), marks, strict=True):
        assert {name, "inner"} <= {mark for mark, _, _ in told_of}
        assert all(began < ended for _, began, ended in told_of)
    assert ranges.__enter__.__module__ == ranges.__exit__.__module__ == torch.autograd.profiler.__name__


@pytest.fixture
def default_device():
    """Set a default device, so that each operation asks torch's mode for new tensors first."""
    torch.set_default_device("cpu")
    yield
    torch.set_default_device(None)


@pytest.mark.usefixtures("default_device")
def test_a_rank_whose_code_has_set_a_device_is_profiled(folder):
    assert Profiler().start(str(folder), 3, 0.2, memory=False) == ""

    assert "trouble" not in told(folder)
    with open(profile_path(str(folder), TRACE, 3)) as file:
        assert "aten::mm" in {event["name"] for event in json.load(file)["traceEvents"]}


def test_a_rank_that_profiles_itself_goes_first(folder):
    with torch.autograd.profiler.profile() as own:
        Profiler().start(str(folder), 3, 0.2, memory=False)
        assert told(folder) == {"trouble": "its own code is profiling it"}

    assert "aten::mm" in {event.key for event in own.key_averages()}


def test_a_rank_that_begins_to_profile_itself_goes_first_too(folder):
    Profiler().start(str(folder), 3, 60, memory=False)
    begun()
    with torch.autograd.profiler.profile() as own:
        assert told(folder) == {"trouble": "its own code is profiling it"}

    assert "aten::mm" in {event.key for event in own.key_averages()}


def test_a_process_that_is_forked_meanwhile_keeps_nothing_of_it(folder):
    profiler = Profiler()
    profiler.start(str(folder), 3, 0.2, memory=False)
    x = torch.ones(4)
    begun()
    child = os.fork()
    if not child:
        profiler.forget()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(100_000):
            x + 1
        os._exit(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before > 50_000)  # kB

    assert os.waitpid(child, 0) == (child, 0)
    told(folder)


def test_no_memory_without_an_accelerator(folder):
    why = Profiler().start(str(folder), 3, 0.2, memory=True)

    assert why == "it uses no CUDA device, and torch records the memory of no other"


@pytest.fixture
def cuda(monkeypatch):
    """Fake CUDA's memory records; return the arguments of each call, bound to torch's own signature."""
    calls = []
    real = inspect.signature(torch.cuda.memory._record_memory_history)

    def record(*args, **named):
        calls.append(real.bind(*args, **named).arguments)

    segments = [{"device": 0, "total_size": 4096, "allocated_size": 512}] * 2
    snapshot = {"segments": segments, "device_traces": [[{"action": "alloc"}] * 5, []]}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: bool(calls), raising=False)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", record)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: snapshot)
    return calls


def test_memory_is_torchs_own_snapshot(folder, cuda):
    assert Profiler().start(str(folder), 3, 0.01, memory=True) == ""

    assert told(folder) == {"asked": 0.01, "held": [[0, 8192, 1024]], "events": 5}
    with open(profile_path(str(folder), TRACE, 3), "rb") as file:
        assert len(pickle.load(file)["device_traces"][0]) == 5
    begun, over = cuda
    assert (begun["enabled"], begun["max_entries"]) == ("all", MEMORY_EVENTS)
    assert over["enabled"] is None


def test_a_history_of_its_own_code_is_left_alone(folder, cuda):
    cuda.append("its own")
    Profiler().start(str(folder), 3, 0.01, memory=True)

    assert told(folder) == {"trouble": "its own code records its accelerator's memory"}
    assert cuda == ["its own"]
