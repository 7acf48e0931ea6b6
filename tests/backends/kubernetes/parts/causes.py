"""A node that ends as its row of ``causes.py`` has it, ``TIMES`` times, and succeeds after that."""

import os
import time
from typing import Any, NoReturn

from tests.backends.kubernetes.parts.words import ATTEMPT, LIFE, NODE, begin, tell, value, wait

__all__ = ["AGAIN", "give_up", "leave"]

# What a node's agent exits with where its failure may be tried again (``exits.of_ranks``).
AGAIN = int(os.environ["AGAIN"])
# A stubborn operator starts a container again before its attempt is stopped.
TURN = ATTEMPT - 1 if "NBTORCHJOB_ATTEMPT" in os.environ else LIFE


def leave(agent: int, **how: Any) -> NoReturn:
    """End with the end of the rank's process."""
    tell("RankExited", node=NODE, rank=NODE, restart=0, round=LIFE, **how)
    os._exit(agent)


def give_up(code: int, kind: str) -> NoReturn:
    """End with an exception of the agent's own."""
    tell("NodeFailed", node=NODE, code=code, error={"type": kind, "message": "boom", "time": time.time()})
    os._exit(code)


# An operator may take a pod away, with all that it told, before anybody looks: so each waits to be seen.
wait("followed")
if int(os.environ["TIMES"]) <= TURN:
    begin()
    value(LIFE)
    os._exit(0)
