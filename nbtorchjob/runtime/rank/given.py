"""What a run of a group is given: a few names with their values, laid over what its payload calls.

All runs of a group have one payload. What differs comes in the node's environment: pickled, and signed with
the job's key.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from typing import Any, Dict, Optional

from nbtorchjob.runtime.objects import rebuilt
from nbtorchjob.runtime.objects.wire import WireError, sign
from nbtorchjob.runtime.store.payload import MARK, PayloadError

GIVEN = "NBTORCHJOB_GIVEN"


def signed(pickled: bytes, key: bytes) -> str:
    """Return what a node is told of a run: a pickle of names and values, signed, as text."""
    return base64.b64encode(sign(pickled, key) + pickled).decode()


def lay(call: Dict[str, Any], key: Optional[bytes]) -> None:
    """Give a call what this run is given: a function as arguments, a cell as variables.

    Without a ``key`` it isn't checked: a process that a rank starts has it of that rank, which has done so.
    """
    text = os.environ.get(GIVEN, "")
    try:
        data = base64.b64decode(text, validate=True)
        mark, pickled = data[:MARK], data[MARK:]
        good = key is None or hmac.compare_digest(sign(pickled, key), mark)
    except (binascii.Error, WireError) as exc:
        raise PayloadError("what this run is given can't be read: %s" % exc) from exc
    if not good or not pickled:
        raise PayloadError("what this run is given isn't signed with this job's key")
    values: Dict[str, Any] = rebuilt.loads(pickled, [])["given"]
    if "function" in call:
        call["kwargs"].update(values)
    else:
        call["names"][:0] = values.items()
