"""How a node's agent ends: exit codes that tell whose fault it was.

torchrun exits with 1 for everything. PyTorchJob's ``restartPolicy: ExitCode`` retries codes from 128 up
(training-operator 1.9), so the codes of failures that may be tried again lie there, clear of the
128 + signal codes (129-165) of shells and container runtimes.
"""

from __future__ import annotations

from typing import Dict, Iterable

OK = 0
USER_ERROR = 1  # an exception or a sys.exit of the user's code, or a crash that isn't to be retried
CONFIG_ERROR = 2  # the payload can't run here: Python, torch, a damaged or forged payload
RECOVERABLE_ERROR = 200  # draws on the failure budget, if there is one and no restart is left
INFRASTRUCTURE_ERROR = 201  # rendezvous or a peer was lost
CANCELLED = 202  # SIGTERM, SIGINT: this node was told to end
LEFT = 203  # the same, after its ranks had saved and left (``api/points.py``)

FINAL = (USER_ERROR, CONFIG_ERROR)  # another try would end the same way
AGAIN = (RECOVERABLE_ERROR, INFRASTRUCTURE_ERROR)  # codes of nodes whose job may be tried again

# A rank whose exception was reported ends with one of these, so that its agent doesn't report the exit
# again. They lie outside the codes that programs use (sysexits.h ends at 78).
TOLD = 211
TOLD_RECOVERABLE = 212
TOLD_LOST_PEER = 213  # it only says that another rank is gone
TOLD_LEFT = 214  # it has left, as its node, or another one, is about to end

# multiprocessing's code for a rank whose template, its parent, was killed and didn't see its end (3.11).
UNSEEN = 255

# With these codes, a rank or its parent reports something other than a sys.exit of the code.
RESERVED = (TOLD, TOLD_RECOVERABLE, TOLD_LOST_PEER, TOLD_LEFT, UNSEEN)


def untold(code: int) -> Dict[str, int]:
    """Return how a rank ended, a negative code being a signal; {} if the rank has reported why itself."""
    if TOLD <= code <= TOLD_LEFT:
        return {}
    return {"signal": -code} if code < 0 else {"code": code}


def of_ranks(codes: Iterable[int], *, retried: bool) -> int:
    """Return the code of a node whose ranks ended with ``codes``, negative ones for signals.

    ``retried`` says whether failures are tried again; if not, an operator mustn't do so, either. Ranks that
    only miss a peer, though no loss is known, contradict each other: another try may end differently, but an
    operator mustn't try for ever.
    """
    codes = set(codes)
    if codes == {TOLD_LEFT}:
        return INFRASTRUCTURE_ERROR
    again = all(code < 0 or code in (TOLD_RECOVERABLE, TOLD_LOST_PEER, UNSEEN) for code in codes)
    return RECOVERABLE_ERROR if again and retried else USER_ERROR


def of_peer(code: int) -> int:
    """Return the code of a node that ends because another one ended with ``code``.

    Operators act on whichever node they see first, and a Job counts each node by itself (Kubernetes 1.36):
    so a failure, final or not, is a failure on every node, and so is success. Any other end is a loss.
    """
    if code in FINAL:
        return USER_ERROR
    return code if code in (OK, RECOVERABLE_ERROR) else INFRASTRUCTURE_ERROR
