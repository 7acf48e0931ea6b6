"""An interrupt at a chosen moment."""

import _weakrefset
import sys


class Interrupting:
    """A context that interrupts this thread at the ``moment``-th point at which Python checks for signals.

    Python checks as a function begins, and after each call of a function written in C (3.11). Callbacks of
    weak references are left out: Python itself drops an interrupt there.
    """

    def __init__(self, moment):
        self._left = moment
        self.interrupted = False
        # CPython 3.11 releases a profile function that raises, but still uses it: keep a reference.
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
