"""Something is done in the main thread, or not at all."""

import threading
import time

import pytest
import torch

from nbtorchjob.runtime.mainthread import AwayError, in_main
from tests.patience import LIMIT


class Asked(threading.Thread):
    """Has something done from a thread."""

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
    """Run Python until a thread has ended."""
    while thread.is_alive():
        pass


def test_it_is_done_between_two_bytecodes():
    asked = Asked(threading.current_thread, LIMIT)
    spin(asked)

    assert asked.found is threading.main_thread()


def test_what_it_raises_is_told_to_who_asked():
    asked = Asked(lambda: 1 / 0, LIMIT)
    spin(asked)

    assert isinstance(asked.found, ZeroDivisionError)


def test_it_waits_for_the_end_of_a_backward_pass_and_what_is_too_late_is_never_done():
    def within(grad):
        late = Asked(lambda: done.append("late"), 0.02)
        spin(late)
        found.extend((late, Asked(lambda: done.append("in time"), LIMIT)))

    done: list[str] = []
    found: list[Asked] = []
    x = torch.ones(1, requires_grad=True)
    x.register_hook(within)
    (x * 1).backward()
    late, asked = found
    spin(asked)

    assert isinstance(late.found, AwayError)
    assert done == ["in time"]


def test_it_waits_for_the_end_of_an_operation_that_is_written_in_python():
    class Double(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx, x):
            late = Asked(lambda: None, 0.02)
            spin(late)
            found.append(late.found)
            return x * 2

    found: list[object] = []
    Double.apply(torch.ones(1))

    assert isinstance(found[0], AwayError)


def test_it_is_done_where_torch_only_asks_what_overrides_an_operation():
    class Asks(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func, types, args=(), kwargs=None):
            asked = Asked(threading.current_thread, LIMIT)
            spin(asked)
            found.append(asked.found)
            return func(*args, **(kwargs or {}))

    found: list[object] = []
    with Asks():
        torch.ones(1)

    assert found == [threading.main_thread()]


def test_it_waits_for_the_end_of_an_operation_in_which_another_one_asks():
    class Asks(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func, types, args=(), kwargs=None):
            late = Asked(lambda: None, 0.02)
            spin(late)
            found.append(late.found)
            return func(*args, **(kwargs or {}))

    class Double(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx, x):
            with Asks():
                return x * 2

    found: list[object] = []
    Double.apply(torch.ones(1))

    assert isinstance(found[0], AwayError)


def test_it_is_done_where_a_backward_pass_comes_back_to_python():
    def _engine_run_backward():  # as torch's own, in which a rank waits for others
        asked = Asked(threading.current_thread, LIMIT)
        while asked.found is None:
            time.sleep(0.001)
        return asked.found

    assert _engine_run_backward() is threading.main_thread()


def test_an_exception_of_a_signals_handler_is_the_main_threads():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        spin(Asked(interrupted, LIMIT))
