"""How a node's agent ends: the exit codes that tell whose fault it was.

torchrun exits with 1 for everything (torch 2.13). Codes from 128 up are those that PyTorchJob's
``restartPolicy: ExitCode`` retries (training-operator 1.9), so what may be tried again lies there,
clear of the 128 + signal codes (129-165) that shells and container runtimes give.
"""

from __future__ import annotations

OK = 0
USER_ERROR = 1  # an exception, a sys.exit or a crash of the user's code
CONFIG_ERROR = 2  # the payload can't run here: Python, torch, a damaged or forged payload
RECOVERABLE_ERROR = 200  # RecoverableError, with no restart left
INFRASTRUCTURE_ERROR = 201  # rendezvous or a peer was lost
CANCELLED = 202  # SIGTERM, SIGINT: somebody ended this node

# A rank whose exception was written down ends with one of these, so that its agent doesn't report
# the exit again. They lie outside the codes that programs use (sysexits.h ends at 78).
TOLD = 211
TOLD_RECOVERABLE = 212
