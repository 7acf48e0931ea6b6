"""Two nodes: node 1 fails, and node 0 ends before it does or, with ``PEER_LAST``, after it.
Both wait until the job is followed.

Node 1 reports its error before either node ends; with ``AGAIN`` the error is recoverable. They meet once in
each attempt: in one of ours, a node may have more lives than the other, as a kubelet restarts a container
until we suspend the job. With ``BY_OPERATOR`` an operator makes the attempts, and they meet in each life.
"""

import os
import time
from typing import NoReturn

from nbtorchjob.runtime.facts import exits
from tests.backends.kubernetes.parts.words import ATTEMPT, LIFE, NODE, begin, sign, tell, wait

PEER_LAST, AGAIN = os.environ["PEER_LAST"] == "1", os.environ["AGAIN"] == "1"
CODE = exits.RECOVERABLE_ERROR if AGAIN else exits.USER_ERROR
TURN = LIFE if os.environ["BY_OPERATOR"] == "1" else ATTEMPT


def leave(code: int, *, last: bool) -> NoReturn:
    """Exit, after the other node if this one is the last."""
    if last:
        wait(f"left-{TURN}")
    sign(f"left-{TURN}")
    os._exit(code)


wait("followed")
begin(2)
if NODE == 0:
    wait(f"told-{TURN}")
    leave(exits.of_peer(CODE), last=PEER_LAST)
error = {"type": "ValueError", "message": "boom", "time": time.time(), "recoverable": AGAIN}
tell("RankFailed", node=1, rank=1, restart=0, round=LIFE, error=error)
sign(f"told-{TURN}")
leave(CODE, last=not PEER_LAST)
