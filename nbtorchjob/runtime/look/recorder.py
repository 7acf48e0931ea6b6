"""A rank's process groups and their last calls, from torch's flight recorder.

torch records each collective in a ring of entries, one ring for gloo and one for NCCL. For gloo it records
neither the ranks of a group nor sends and receives, which it only counts: the ranks come from the tables of
``torch.distributed``. If a version has no recorder (``torch_versions``), less is known.
"""

from __future__ import annotations

import json
import re
import threading
import time
from bisect import bisect_left
from types import FrameType
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from nbtorchjob.runtime import torch_versions
from nbtorchjob.runtime.facts.samples import MAX_CALLS, MAX_GROUPS, Collective, Group

# The recorder is on by default, with 2000 entries, which take a tenth of a second to read. Either variable
# sets the size; the user's value wins.
SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
SIZE = 512

# By group and the time-out that torch was given: the one that the code set, in seconds (``patience.py``).
LIMITS: Dict[Tuple[str, float], float] = {}

_COALESCED = "nccl:coalesced"
_MOST_RANGES = 25000
_GLOO, _NCCL = torch_versions.GLOO_CALLS, torch_versions.NCCL_CALLS
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


def groups(*, left: bool = False) -> "tuple[Group, ...]":
    """Return this process's groups: those with a pending call first, then the last used.

    With ``left``, or if it is in no group any more, this includes groups that it has left. Their ranks are
    unknown then, and no rank waits in their calls.
    """
    entries = _by_group()
    described = []
    rows: List[tuple[str, str, str, tuple[int, ...]]] = []
    world = torch_versions.WORLD.get()
    for group, name in _living():
        backend = str((world.pg_map.get(group) or ("",))[0])
        label = str(getattr(group, "group_desc", ""))
        in_order = sorted(world.pg_group_ranks[group].items(), key=lambda pair: pair[1])
        rows.append((name, label, backend, tuple(rank for rank, _ in in_order)))
    if left or not rows:
        names = {item[0] for item in rows}
        for name, calls in entries.items():
            if name not in names:
                backend = calls[-1]["profiling_name"].partition(":")[0]
                rows.append((name, calls[-1]["process_group"][1], backend, ()))
    for name, label, backend, ranks in rows:
        calls = entries.get(name, [])
        last = tuple(_collective(entry, ranks, destroyed=not ranks) for entry in calls[-MAX_CALLS:])
        described.append(Group(name, ranks, last, backend, "" if label == "undefined" else label))
    described.sort(
        key=lambda group: (
            all(call.done for call in group.calls),
            -max((call.since for call in group.calls), default=0.0),
        )
    )
    return tuple(described[:MAX_GROUPS])


def counts() -> "dict[str, list[int]]":
    """Return how many calls each group has made, and how many of them are done; takes some 20 µs."""
    by_group = {}
    for recorder in (_GLOO, _NCCL):
        for group, (called, done) in _status(recorder):
            by_group["%s %s" % (recorder.name, group)] = [called, done]
    return by_group


def sequence_numbers() -> "dict[str, list[int]]":
    """Return how many calls each group has made, like :func:`counts`, but with gloo's sends and receives.

    These aren't recorded, and nothing else shows that they move; whether they are done is unknown.
    """
    numbers = {}
    for group, name in _living():
        try:
            number = int(group._get_sequence_number_for_group())
        except Exception:  # a backend without these numbers, or a group that is just being destroyed
            continue
        numbers["calls %s" % name] = [number, number]
    return numbers


def call_arguments(place: FrameType) -> "tuple[tuple[str, str], ...]":
    """Return the arguments of a function of torch.distributed whose frame this is (``Thread.given``)."""
    values = place.f_locals
    world = torch_versions.WORLD.get()
    group = values.get("group") or world.default_pg
    ranks = {number: rank for rank, number in world.pg_group_ranks[group].items()}
    arguments = {"group": str(world.pg_names[group])}
    for name in ("src", "dst"):
        rank, within = values.get(name), values.get("group_" + name)
        if isinstance(rank, int) or isinstance(within, int):
            arguments[name] = str(rank if isinstance(rank, int) else ranks[within])
    if values.get("op") is not None and "tensor" in values:
        arguments["op"] = str(getattr(values["op"], "name", values["op"]))
    if isinstance(values.get("tag"), int):
        arguments["tag"] = str(values["tag"])
    return tuple(arguments.items())


def pending() -> "list[list[float]]":
    """Return since when each pending call waits, and its timeout, both in seconds."""
    return [[call.since, call.timeout] for call in open_calls()]


def open_calls() -> "list[Collective]":
    """Return the pending calls, leaving out destroyed groups, in whose calls no rank waits."""
    entries, living = _by_group(), {name for _, name in _living()}
    calls = (_collective(entry) for name in living & entries.keys() for entry in entries[name])
    return sorted((call for call in calls if not call.done), key=lambda call: call.since)


def _living() -> "list[tuple[Any, str]]":
    """Return the groups that this process is in, with their names."""
    world = torch_versions.WORLD.get()
    names = dict(world.pg_names) if world is not None else {}
    # A group that is being made has a name before it has ranks.
    return [(group, str(name)) for group, name in names.items() if group in world.pg_group_ranks]


def _by_group() -> "dict[str, list[dict[str, Any]]]":
    """Return the calls of each group by its name: if several groups had that name, those of the newest."""
    entries: Dict[str, List[Dict[str, Any]]] = {}
    for entry in _entries():
        calls = entries.setdefault(entry["process_group"][0], [])
        if calls and calls[-1]["pg_id"] != entry["pg_id"]:
            calls.clear()
        calls.append(entry)
    for group, name in _living():
        if name in entries and _is_new(group):
            entries[name] = [call for call in entries[name] if not call["collective_seq_id"]]
    return {name: _with_ends(calls) for name, calls in entries.items()}


def _with_ends(calls: "list[dict[str, Any]]") -> "list[dict[str, Any]]":
    """Return a group's calls; those that NCCL has coalesced get the state of the coalesced call.

    They share a number, and stay "scheduled". Only another entry behind them, with the same number and no
    other information, is marked as ended.
    """
    ends = {_number(call): call for call in calls if call["profiling_name"] == _COALESCED}
    inside = {_number(call) for call in calls if call["profiling_name"] != _COALESCED}
    return [
        {**call, **{name: ends.get(_number(call), call)[name] for name in ("state", "retired")}}
        for call in calls
        if call["profiling_name"] != _COALESCED or _number(call) not in inside
    ]


def _number(call: "dict[str, Any]") -> "tuple[bool, int]":
    """Return a call's number; sends and receives are numbered apart."""
    p2p = bool(call["is_p2p"])
    return p2p, int(call["p2p_seq_id" if p2p else "collective_seq_id"])


def _is_new(group: Any) -> bool:
    """Whether a group hasn't had any collective yet, as far as its backends count them."""
    try:
        backends = [group._get_backend(device) for device in group._device_types]
        return not any(backend._get_sequence_number_for_group() for backend in backends)
    except Exception:  # a backend without these numbers, or a group that is just being destroyed
        return False


class GloosCalls:
    """When gloo's collectives are under way, which run in threads other than the main one."""

    def __init__(self) -> None:
        # The time of each look, and each group's last call that was done then.
        self._looks: List[Tuple[int, Dict[str, int]]] = []

    def look(self, at: int) -> bool:
        """Return whether any is under way now; ``at`` is the time in ns. Takes some 20 µs."""
        status = dict(_status(_GLOO))
        self._looks.append((at, {group: done for group, (_, done) in status.items()}))
        return any(done < called for called, done in status.values())

    def seen(self) -> "list[tuple[str, int, int]]":
        """Return the newest collectives that a look saw: their names, begins and ends, in ns."""
        calls = []
        for entry in _gloos():
            # When a look first saw that a call is done; 0 if no look saw it under way
            group, number = entry["process_group"][0], entry["collective_seq_id"]
            first = bisect_left(self._looks, (entry["time_created_ns"],))
            over = 0
            if first == 0 and self._looks and self._looks[0][1].get(group, number) >= number:
                continue
            for at, done in self._looks[first:]:
                over = at
                if done.get(group, number) >= number:
                    break
            calls.append((str(entry["profiling_name"]), int(entry["time_created_ns"]), over))
        return [(name, began, over) for name, began, over in calls if over > began]

    @staticmethod
    def any_before(at: int) -> bool:
        """Return whether one that was called before ``at`` is still under way; takes some 10 ms."""
        return any(not entry["retired"] and entry["time_created_ns"] <= at for entry in _gloos())


class Ranges:
    """The ranges that the main thread marks with torch's ``record_function``, ``kind``, in this context."""

    def __init__(self, kind: Any) -> None:
        self._kind, self._enter, self._exit = kind, kind.__enter__, kind.__exit__
        self._begun: Dict[int, Tuple[str, int]] = {}
        self._over: List[Tuple[str, int, int]] = []

    def __enter__(self) -> "Ranges":
        def enter(profiled: Any) -> Any:
            if threading.current_thread() is threading.main_thread():
                self._begun[id(profiled)] = str(profiled.name), time.time_ns()
            return self._enter(profiled)

        def leave(profiled: Any, *args: Any) -> Any:
            begun = self._begun.pop(id(profiled), None)
            if begun is not None and len(self._over) < _MOST_RANGES:
                self._over.append((*begun, time.time_ns()))
            return self._exit(profiled, *args)

        self._kind.__enter__, self._kind.__exit__ = enter, leave
        return self

    def __exit__(self, *_: Any) -> None:
        self._kind.__enter__, self._kind.__exit__ = self._enter, self._exit

    def since(self, began: int) -> "list[tuple[str, int, int]]":
        """Return the ranges that ended after ``began``: their names, begins and ends, in ns."""
        now = time.time_ns()
        ranges = self._over + [(*begun, now) for begun in list(self._begun.values())]
        return [item for item in ranges if item[2] > began]


def _gloos() -> "list[dict[str, Any]]":
    """Return the newest collectives of gloo; its sends and receives run in no other thread."""
    return [entry for entry in _entries((_GLOO,)) if not entry["is_p2p"]]


def _status(recorder: torch_versions.Detail) -> "Iterator[tuple[str, tuple[int, int]]]":
    """Yield each group's last call, and the last that is done."""
    for dump in _dumps((recorder,)):
        for group, status in json.loads(dump(False, False).decode()).get("pg_status", {}).items():
            yield group, (int(status["last_enqueued_collective"]), int(status["last_completed_collective"]))


def _dumps(recorders: "Sequence[torch_versions.Detail]") -> "Iterator[Any]":
    for recorder in recorders if torch_versions.WORLD.get() is not None else ():
        dump = recorder.get()
        if dump is not None:
            yield dump


def _entries(recorders: "Sequence[torch_versions.Detail]" = (_GLOO, _NCCL)) -> "Iterator[dict[str, Any]]":
    for dump in _dumps(recorders):
        yield from json.loads(dump(True, False).decode()).get("entries", ())


def _collective(entry: Dict[str, Any], ranks: "Sequence[int]" = (), *, destroyed: bool = False) -> Collective:
    p2p, seq = _number(entry)
    # "nccl:all_reduce"; for a send or receive "nccl:send 0->1", "nccl:recv 1<-0", with ranks of the group.
    op, _, way = (entry["profiling_name"].partition(":")[2] or entry["profiling_name"]).partition(" ")
    other = re.search(r"[->](\d+)$", way)
    timeout = entry["timeout_ms"] / 1000
    return Collective(
        seq=seq,
        op=op,
        since=entry["time_created_ns"] / 1e9,
        # A retired call has completed, or timed out; gloo's calls stay "scheduled".
        done=destroyed or bool(entry["retired"]) or entry["state"] == "completed",
        sizes=tuple(tuple(sizes) for sizes in entry["input_sizes"]),
        dtypes=tuple(_DTYPES.get(dtype, dtype.lower()) for dtype in entry["input_dtypes"]),
        timeout=LIMITS.get((entry["process_group"][0], timeout), timeout),
        p2p=p2p,
        peer=ranks[int(other.group(1))] if ranks and other is not None else None,
    )
