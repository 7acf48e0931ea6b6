"""A node that ends ``TIMES`` times as its row of ``causes.py`` states, and succeeds after that."""

import os
import time
from typing import Any, NoReturn

from tests.backends.kubernetes.parts.words import ATTEMPT, LIFE, NODE, begin, tell, value, wait

__all__ = ["AGAIN", "give_up", "leave"]

# The exit code of a node's agent after a failure that may be retried (``exits.of_ranks``).
AGAIN = int(os.environ["AGAIN"])
# A stubborn operator restarts a container before its attempt is stopped.
TURN = ATTEMPT - 1 if "NBTORCHJOB_ATTEMPT" in os.environ else LIFE


def leave(agent: int, **how: Any) -> NoReturn:
    """End the node with the end of the rank's process."""
    tell("RankExited", node=NODE, rank=NODE, restart=0, round=LIFE, **how)
    os._exit(agent)


def give_up(code: int, kind: str) -> NoReturn:
    """End the node with an exception of the agent's own."""
    tell("NodeFailed", node=NODE, code=code, error={"type": kind, "message": "boom", "time": time.time()})
    os._exit(code)


# An operator may remove a pod, with all its output, before anybody looks: so each waits for a follower.
wait("followed")
if int(os.environ["TIMES"]) <= TURN:
    begin()
    value(LIFE)
    os._exit(0)
