"""The code of a rank between its node's order and the user's code, without a node."""

import signal
import sys
from itertools import count

import pytest

from nbtorchjob.runtime.lab.turns import COUNT, ROUND, SIGNAL, Interrupts


@pytest.fixture
def handlers():
    """Restore the signal handlers."""
    before = {number: signal.getsignal(number) for number in (SIGNAL, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class At:
    """A profile function that interrupts round 7 at the ``moment``-th call or return below ``guarded``."""

    def __init__(self, numbers, moment):
        self.numbers, self.left = numbers, moment

    def __call__(self, frame, event, what):
        # In guarded's own frame, the signal handler would get another frame than without a profiler.
        if event in ("call", "return") and frame.f_code is not Interrupts.guarded.__code__:
            self.left -= 1
            if self.left == 0:
                self.numbers[ROUND], self.numbers[COUNT] = 7, 1
                signal.raise_signal(SIGNAL)


def test_an_interrupt_at_any_moment_ends_the_code_of_its_turn_or_nothing(handlers):
    outcomes = []
    for moment in count(1):
        numbers, ran = [0, 0], list[object]()
        interrupts = Interrupts(numbers)
        at = At(numbers, moment)

        def code(ran=ran):
            ran.append(signal.getsignal(signal.SIGINT))
            return "value"

        sys.setprofile(at)
        try:
            value, exc = interrupts.guarded(7, code)
        finally:
            sys.setprofile(None)
        if at.left > 0:
            break
        outcomes.append(type(exc))
        assert exc is not None or (value == "value" and ran)  # an interrupt before the code ends isn't lost
        assert interrupts.guarded(8, code) == ("value", None)
        assert signal.getsignal(signal.SIGINT) not in ran

    assert {*outcomes} == {KeyboardInterrupt, type(None)}
