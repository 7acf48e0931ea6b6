"""Jobs of a pool that are sent again by who follows them."""

import time

from nbtorchjob.backends.resending import Plan, Sent, Taken
from nbtorchjob.backends.turns import Since
from nbtorchjob.machine import loop
from nbtorchjob.state import turns
from tests.patience import LIMIT
from tests.state.test_turns import BEGUN, POOL, known

LAB = known(*BEGUN, info=POOL)
JOB = turns.of(POOL, key="1", created=100.0)
BEFORE, AFTER = Taken(LAB, 5, Since(None, None)), Taken(LAB, 7, Since(None, None))


def test_what_is_known_of_a_pool_may_be_read_on_the_loop_that_waits_to_send_a_job_again():
    async def read():
        return LAB

    sent = Sent(JOB, BEFORE, lambda times, attempt: AFTER)
    going = sent.go_on(BEFORE, Plan(2, time.time()), [], lambda: loop.run(read(), 1.0))

    assert loop.start(going).result(LIMIT)
    assert sent.taken is AFTER
