"""A rank's process groups and their last calls, as torch's flight recorder has them.

torch (2.13) writes down each collective in a ring of entries, for gloo in one and for NCCL in another. It
knows no ranks of a group of gloo's, and of its sends and receives only the number: the ranks come from
the tables of ``torch.distributed``, all of it private to torch. Where it isn't there, less is known.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Dict, Iterator, List

from .samples import MAX_CALLS, MAX_GROUPS, Collective, Group

# The recorder is on by itself in 2.13, with 2000 entries, which take a tenth of a second to read; either
# name sets it, the user's own wins.
SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
SIZE = 512

_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Byte": "uint8",
    "Char": "int8",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}


def groups() -> "tuple[Group, ...]":
    """Return this process's groups: those that a call is pending in first, then the last used."""
    entries: Dict[str, List[Dict[str, Any]]] = {}
    for entry in _entries():
        entries.setdefault(entry["process_group"][0], []).append(entry)
    found = []
    for name, label, backend, ranks in _known():
        calls = entries.get(name, [])
        # A group that was destroyed may have had the same name.
        calls = [each for each in calls if each["pg_id"] == calls[-1]["pg_id"]]
        last = tuple(_collective(entry) for entry in calls[-MAX_CALLS:])
        found.append(Group(name, ranks, last, backend, label))
    found.sort(key=_urgency)
    return tuple(found[:MAX_GROUPS])


def _urgency(group: Group) -> "tuple[bool, float]":
    pending = any(not call.done for call in group.calls)
    return not pending, -max((call.since for call in group.calls), default=0.0)


def counts() -> "dict[str, list[int]]":
    """Return how many calls each group has had, and how many of them are done; it takes some 20 µs."""
    found = {}
    for name, dump in _dumps():
        for group, status in json.loads(dump(False, False).decode()).get("pg_status", {}).items():
            called, done = status["last_enqueued_collective"], status["last_completed_collective"]
            found["%s %s" % (name, group)] = [int(called), int(done)]
    return found


def pending() -> "list[list[float]]":
    """Return since when each call is pending, and its timeout, both in seconds."""
    calls = map(_collective, _entries())
    return [[call.since, call.timeout] for call in calls if not call.done]


def _dumps() -> "Iterator[tuple[str, Any]]":
    c10d = sys.modules.get("torch._C._distributed_c10d")
    if c10d is not None and _world() is not None:
        for name in _DUMPS:
            if hasattr(c10d, name):
                yield name, getattr(c10d, name)


def _entries() -> "Iterator[dict[str, Any]]":
    for _, dump in _dumps():
        yield from json.loads(dump(True, False).decode()).get("entries", ())


def _collective(entry: Dict[str, Any]) -> Collective:
    p2p = bool(entry["is_p2p"])
    name = entry["profiling_name"].partition(":")[2] or entry["profiling_name"]
    return Collective(
        seq=entry["p2p_seq_id" if p2p else "collective_seq_id"],
        op=name,
        since=entry["time_created_ns"] / 1e9,
        # What is retired has completed, or timed out; gloo's stay "scheduled" (2.13).
        done=bool(entry["retired"]) or entry["state"] == "completed",
        sizes=tuple(tuple(sizes) for sizes in entry["input_sizes"]),
        dtypes=tuple(_DTYPES.get(each, each.lower()) for each in entry["input_dtypes"]),
        timeout=entry["timeout_ms"] / 1000,
        p2p=p2p,
    )


def _world() -> Any:
    return getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)


def _known() -> "Iterator[tuple[str, str, str, tuple[int, ...]]]":
    """Yield each group's name, its label, its backend, and its ranks of the whole job, in their order."""
    world = _world()
    for group, ranks in list(world.pg_group_ranks.items()) if world is not None else ():
        name = world.pg_names.get(group)
        if name is not None:
            backend = str((world.pg_map.get(group) or ("",))[0])
            label = str(getattr(group, "group_desc", ""))
            in_order = sorted(ranks.items(), key=lambda pair: pair[1])
            yield (
                str(name),
                "" if label == "undefined" else label,
                backend,
                tuple(rank for rank, _ in in_order),
            )
