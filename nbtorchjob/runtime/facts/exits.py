"""How a node's agent ends: the exit codes that tell whose fault it was.

torchrun exits with 1 for everything. Codes from 128 up are those that PyTorchJob's
``restartPolicy: ExitCode`` retries (training-operator 1.9), so what may be tried again lies there,
clear of the 128 + signal codes (129-165) that shells and container runtimes give.
"""

from __future__ import annotations

from typing import Dict, Iterable

OK = 0
USER_ERROR = 1  # an exception or a sys.exit of the user's code, or a crash that nobody wants tried again
CONFIG_ERROR = 2  # the payload can't run here: Python, torch, a damaged or forged payload
RECOVERABLE_ERROR = 200  # what draws on the failure budget, where there is one and no restart is left
INFRASTRUCTURE_ERROR = 201  # rendezvous or a peer was lost
CANCELLED = 202  # SIGTERM, SIGINT: somebody ended this node
LEFT = 203  # the same, and its ranks had saved, and left (``api/points.py``)

FINAL = (USER_ERROR, CONFIG_ERROR)  # another try would end the same way
AGAIN = (RECOVERABLE_ERROR, INFRASTRUCTURE_ERROR)  # what nodes end with whose job may be tried again

# A rank whose exception was written down ends with one of these, so that its agent doesn't report
# the exit again. They lie outside the codes that programs use (sysexits.h ends at 78).
TOLD = 211
TOLD_RECOVERABLE = 212
TOLD_LOST_PEER = 213  # it only says that another rank is gone
TOLD_LEFT = 214  # it has left, as its node, or another one, is about to end

# What multiprocessing says of a rank whose template, its parent, was killed: nobody saw its end (3.11).
UNSEEN = 255

# With these a rank, or its parent, says something else than that the code called sys.exit.
RESERVED = (TOLD, TOLD_RECOVERABLE, TOLD_LOST_PEER, TOLD_LEFT, UNSEEN)


def untold(code: int) -> Dict[str, int]:
    """Return how a rank ended, by a negative code of a signal; nothing where the rank has told why."""
    if TOLD <= code <= TOLD_LEFT:
        return {}
    return {"signal": -code} if code < 0 else {"code": code}


def of_ranks(codes: Iterable[int], *, retried: bool) -> int:
    """Return the code of a node whose ranks ended with ``codes``, negative ones for signals.

    ``retried`` says whether anybody tries a failure again; where nobody does, an operator mustn't. Ranks
    that only miss a peer which nobody knows to be lost don't fit together: that may come out otherwise,
    but isn't for an operator to try for ever.
    """
    codes = set(codes)
    if codes == {TOLD_LEFT}:
        return INFRASTRUCTURE_ERROR
    again = all(code < 0 or code in (TOLD_RECOVERABLE, TOLD_LOST_PEER, UNSEEN) for code in codes)
    return RECOVERABLE_ERROR if again and retried else USER_ERROR


def of_peer(code: int) -> int:
    """Return the code of a node that ends because another one did, with ``code``.

    Operators act on whichever node they see first, and a Job counts each node by itself (Kubernetes 1.36):
    so a failure is one on every node, for good or not, and so is success. What else ends a node is a loss.
    """
    if code in FINAL:
        return USER_ERROR
    return code if code in (OK, RECOVERABLE_ERROR) else INFRASTRUCTURE_ERROR
