"""Forged facts: arbitrary numbers, times and texts in place of those of a record and its nodes."""

import json
import math
from dataclasses import is_dataclass
from random import Random
from typing import Any, get_args, get_type_hints

from hypothesis import strategies as st

from nbtorchjob.backends.local import directory
from nbtorchjob.machine.processes import NOBODY
from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.state import OPERATOR, US, JobInfo
from nbtorchjob.state.facts import events as ev

NOW = 1_763_000_000.0
# Small numbers collide with each other, as those of a real job do; the others are forgeries.
numbers = st.one_of(
    st.integers(0, 3),
    st.sampled_from([-1, 255, 1 << 20, 2_000_000_000, 10**12, 1 << 63, 10**300, 10**4000, True]),
    st.integers(),
)
times = st.one_of(
    st.floats(NOW, NOW + 3),
    st.sampled_from([0, -1.0, 1e11, 1e308, math.nan, math.inf, -math.inf, 10**400]),
    st.floats(),
)
texts = st.one_of(
    st.sampled_from(["", "a", "Aborted", "Stopped", "Deleted", "OOMKilled", "FailedCreate", "Unschedulable"]),
    st.text(max_size=40),
    st.sampled_from(["x" * 100_000, "\x1b]52;c;YQ==\x07", "\ud800", "{word}", '"' * 999]),
)
errors: st.SearchStrategy[Any] = st.deferred(
    lambda: st.fixed_dictionaries(
        {"type": texts, "message": texts},
        optional={
            "frames": st.lists(
                st.fixed_dictionaries(
                    {"filename": texts, "lineno": numbers, "name": texts},
                    optional={"variables": st.lists(st.tuples(texts, texts), max_size=2)},
                ),
                max_size=2,
            ),
            "notes": st.lists(texts, max_size=2),
            "cause": errors,
            "recoverable": st.booleans(),
            "time": times,
        },
    )
)
metrics = st.dictionaries(
    st.one_of(st.sampled_from(["epoch", "epochs", "step", "steps", "loss"]), texts),
    st.one_of(times, numbers),
    max_size=4,
)


def of(hint):
    """Return a strategy for the JSON of a fact's field of that type."""
    strategies = {
        int: numbers,
        float: times,
        str: texts,
        bool: st.booleans(),
        bytes: st.binary(),
        Error: errors,
    }
    if hint in strategies:
        return strategies[hint]
    if hint is ev.Stage:
        return st.integers(-1, 4)
    if type(None) in get_args(hint):
        return st.none() | of(get_args(hint)[0])
    if is_dataclass(hint):
        return of_fields(hint)
    if get_args(hint)[-1] is Ellipsis:
        return st.lists(of(get_args(hint)[0]), max_size=4 if get_args(hint)[0] is int else 1) | st.lists(
            numbers
        )
    return metrics


def of_fields(type_):
    return st.fixed_dictionaries({name: of(hint) for name, hint in get_type_hints(type_).items()})


def of_kind(kind):
    return of_fields(kind).map({"event": kind.__name__}.__or__)


kinds = [kind for kind in get_args(ev.Event) if kind is not ev.LogChunk]
facts = st.lists(st.one_of([of_kind(kind) for kind in kinds]), max_size=12)
chunks = st.lists(
    st.builds(
        ev.LogChunk, st.integers(0, 10**9), st.integers(0, 10**12), st.integers(0, 10**18), st.binary()
    ),
    max_size=3,
)
budgets = {"retry": {"retries": 2, "preemptions": "unlimited"}}
infos = st.sampled_from(
    [
        JobInfo("job", created=NOW),
        JobInfo("job", created=NOW, nodes=(1, 4), retry_owner=US, spec=budgets, deadline_s=10**18, ttl_s=3),
        JobInfo(
            "job", "kubernetes", NOW, nodes=(2, 2), retry_owner=OPERATOR, spec=budgets, cluster={"kind": "a"}
        ),
    ]
)


_OF_LABS = (
    *(ev.NodeStarted, ev.WorkersStarted, ev.TurnTaken, ev.TurnTaken, ev.TurnEnded, ev.LabEnds),
    *(ev.NodeExited, ev.RankFailed, ev.RankBegan, ev.ValueReady, ev.Displayed, ev.Sampled),
    *(ev.Verdict, ev.Closed, ev.AttemptBegan),
)
# Among random facts of all kinds, hardly two would belong to one turn.
of_labs = st.lists(st.one_of([of_kind(kind) for kind in _OF_LABS]), min_size=2, max_size=12)

# Odd values by type: most are valid in some facts, and invalid in others.
_ODD: dict[Any, list[Any]] = {
    int: [1, 2, 7, 1 << 20, 10**12, -1, 10**300],
    float: [0.0, NOW - 1, NOW + 1, 1e10, 1e308],
    str: ["", "", "b", "x" * 5000, "\x1b]52;c;YQ==\x07", "{word}"],
    tuple: [[], [], [0, 0], [1], [2, 1], [*range(5000)]],
}


def _plain(name, hint):
    """Return a value that an honest node might report in a fact's field."""
    if type(None) in get_args(hint):
        return _plain(name, get_args(hint)[0])
    if name in ("attempt", "world_size"):
        return 1
    values = {int: 0, float: NOW, str: "a", bool: False, bytes: ""}
    values |= {Error: {"type": "E", "message": "m"}, ev.Stage: 0}
    if hint in values:
        return values[hint]
    if is_dataclass(hint):
        return _honest(hint)
    return [_plain(name, get_args(hint)[0])] if get_args(hint)[-1] is Ellipsis else {}


def _honest(type_):
    hints = get_type_hints(type_).items()
    return {name: _plain(name, hint) for name, hint in hints}


def corpus(number, seed=41):
    """Return ``number`` histories, of a job and of a lab in turn: honest ones, except for some fields."""
    random = Random(seed)

    def history(of_a_lab):
        chosen = random.sample(kinds, 10)
        if of_a_lab:
            begin = (ev.NodeStarted, ev.WorkersStarted, ev.TurnTaken, ev.TurnEnded, ev.TurnTaken)
            chosen = [*begin, *random.sample(_OF_LABS, 5)]
        records = [{"event": kind.__name__, **_honest(kind)} for kind in chosen]
        if of_a_lab:
            records[4].update(round=1, id="b")  # a turn that isn't over
        for record in random.sample(records, random.randint(1, 5)):
            type_ = getattr(ev, record["event"])
            name = random.choice([*get_type_hints(type_)])
            kind = type(record[name]) if type(record[name]) is not list else tuple
            record[name] = random.choice(_ODD.get(kind, [None, {}, {"": math.nan}, "x"]))
        return records

    return [history(at % 2) for at in range(number)]


def lines(records):
    return [json.dumps(record).encode() for record in records]


def forged(name, records, **more):
    """Create a job without a supervisor, which has reported these facts."""
    info = JobInfo(name, created=NOW, nodes=(1, 4), **more)
    job = directory.create(directory.jobs_dir(), info, lambda new: new.prepare(bytes(32), {}))
    job.claim(NOBODY)
    job.events.write_bytes(b"".join(line + b"\n" for line in lines(records)))
    return job


def forged_jobs(number):
    """Create jobs that have each reported one history of the corpus; every other one is a lab."""
    histories = enumerate(corpus(number))
    return [forged(f"forged-{at}", records, lab=60.0 if at % 2 else None) for at, records in histories]
