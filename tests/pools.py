"""The warm pool that tests have started."""

import threading

from nbtorchjob.backends.local.launch import pool


def end_pool():
    """End this state folder's pool, even while it starts: it would stay for a while."""
    for thread in threading.enumerate():
        if thread.name == "nbtorchjob-warm-up":
            thread.join()
    pool.stop()
