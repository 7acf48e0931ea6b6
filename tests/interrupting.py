"""An interrupt that comes just then."""

import _weakrefset
import sys


class Interrupting:
    """Interrupts this thread at the ``moment``-th of those at which Python looks for signals.

    That is as a function begins, and after each call of one that is written in C (3.11). What calls back from
    a weak reference is left out: Python itself drops an interrupt there.
    """

    def __init__(self, moment):
        self._left = moment
        self.interrupted = False
        # CPython 3.11 goes on using what it lets go of once that has raised: somebody else has to hold it.
        self._profile = self._look

    def _look(self, frame, event, what):
        where = frame.f_code
        if where is type(self).__exit__.__code__ or where.co_filename == _weakrefset.__file__:
            return
        if event in ("call", "c_return") and what is not sys.setprofile:
            self._left -= 1
            if self._left < 0 and not self.interrupted:
                self.interrupted = True
                raise KeyboardInterrupt

    def __enter__(self):
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *exc):
        sys.setprofile(None)
        return exc[0] is KeyboardInterrupt
