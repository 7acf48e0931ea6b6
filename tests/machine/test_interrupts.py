"""A value that arrives once: one thread brings it, and any thread may wait for it."""

import itertools
import threading

import pytest

from nbtorchjob.machine.interrupts import Once
from tests.interrupting import Interrupting
from tests.patience import LIMIT


def test_it_is_waited_for_until_it_comes():
    once, got = Once[int](), list[bool]()
    waiters = [threading.Thread(target=lambda: got.append(once.wait(LIMIT))) for _ in range(4)]
    for waiter in waiters:
        waiter.start()
    assert not once.wait(0)
    assert not once.come
    once.bring(7)
    for waiter in waiters:
        waiter.join()

    assert got == [True] * 4
    assert once.come
    assert once.wait()
    assert once.result() == 7


def test_an_error_that_comes_is_raised():
    once = Once[int]()
    once.fail(ValueError("no"))

    assert once.wait(0)
    with pytest.raises(ValueError, match="no"):
        once.result()


def test_each_callback_is_called_once():
    once, called = Once[int](), list[str]()
    once.then(lambda: called.append("before"))
    once.bring(1)
    once.then(lambda: called.append("after"))

    assert called == ["before", "after"]


def test_who_stops_waiting_leaves_nothing_behind():
    once = Once[int]()
    for _ in range(10):
        assert not once.wait(0)

    assert not once._callbacks


def test_an_interrupt_keeps_nobody_from_bringing_it_whenever_it_comes():
    for moment in itertools.count():
        once = Once[int]()
        with Interrupting(moment) as context:
            once.wait(0)
        bringer = threading.Thread(target=once.bring, args=(moment,), daemon=True)
        bringer.start()
        bringer.join(LIMIT)

        assert not bringer.is_alive(), moment
        assert once.wait(LIMIT)
        assert once.result() == moment
        if not context.interrupted:
            break
    assert moment > 10
