"""Requests and answers of routes as JSON Schema: data for the OpenAPI document and the page's types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from nbtorchjob.backends import FORMS, ROWS
from nbtorchjob.commands.table import CHANGES
from nbtorchjob.frontends.server.handlers import CREATED
from nbtorchjob.state import Phase
from nbtorchjob.state.text import usage
from nbtorchjob.ui.page import MOST

Shape: TypeAlias = dict[str, Any]

_TEXT: Shape = {"type": "string"}
_COUNT: Shape = {"type": "integer", "minimum": 0}
_NUMBER: Shape = {"type": "number"}


def _or_null(shape: Shape) -> Shape:
    return {"anyOf": [shape, {"type": "null"}]}


def _list(shape: Shape) -> Shape:
    return {"type": "array", "items": shape}


def _pair(shape: Shape) -> Shape:
    return {"type": "array", "prefixItems": [shape, shape], "items": False, "minItems": 2}


def _object(**fields: Shape) -> Shape:
    """Return an object that has all of these fields and no other."""
    return {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}


def _describe(shape: Shape, text: str) -> Shape:
    return {**shape, "description": text}


def ref(name: str) -> Shape:
    """Return a reference to the shape of that name."""
    return {"$ref": f"#/components/schemas/{name}"}


_IDS = "|".join(f"{name}:{row.address}" for name, row in ROWS.items())

_BUDGET = _object(used=_COUNT, limit=_describe(_or_null(_COUNT), "null: unlimited"))

_PROGRESS = _object(
    unit=_describe(_TEXT, 'what is counted: "step", "epoch", "percent"'),
    done=_NUMBER,
    total=_or_null(_NUMBER),
    left=_describe(_or_null(_NUMBER), "seconds to go"),
)

_STILL = _object(
    since=_describe(_NUMBER, "seconds since the epoch: when it was last heard from"),
    unit=_describe(
        _or_null(_TEXT), 'what is overdue: "step", "epoch", "report"; null: it never reported any'
    ),
    usual=_describe(_or_null(_NUMBER), "the usual seconds for one"),
)

_STRIP = _object(
    of={"enum": [*usage.KINDS]},
    newest=_describe(_TEXT, 'the newest, in words: "7.2 of 8 GB"'),
    parts=_describe(_list(_NUMBER), "shares of the whole, from 0 to 1, oldest first"),
)

_USE = _object(node=_COUNT, strips=_list(ref("Strip")))

_LAB = _object(
    doing=_describe(_TEXT, 'in a few words: "idle", "runs cell 4"; "" if it is starting or has ended'),
    since=_describe(_or_null(_NUMBER), "seconds since the epoch: unused since then"),
    ends=_describe(_or_null(_NUMBER), "seconds since the epoch: when it ends if it stays unused"),
    memory=_describe(_COUNT, "bytes that its ranks hold, as far as is known"),
    cells=_describe(_COUNT, "how many it has accepted"),
    ended=_describe(_or_null(_TEXT), 'why it has ended: "asked", "idle"'),
)

_JOB = _object(
    id=_describe(_TEXT, FORMS),
    name=_TEXT,
    label=_describe(_TEXT, 'what runs, in a few words: "cell", "train(lr=0.1)"'),
    backend={"enum": [*ROWS]},
    where=_TEXT,
    phase=ref("Phase"),
    status=_describe(
        _TEXT,
        'the phase as a card shows it: also "QUEUED", "CANCELLING", "SUSPENDED", "STOPPED", "DELETED", '
        'and if a user should act "HUNG", "STALLED", "LEAVING", "DEBUGGING", "RETRYING", "WAITING"',
    ),
    terminal={"type": "boolean"},
    notebook=_describe(_TEXT, "the path for the contents API, \"\" where it isn't below the server's root"),
    cell=_describe(_TEXT, 'the id of the cell that submitted it, or ""'),
    created=_describe(_NUMBER, "seconds since the epoch"),
    started=_describe(_or_null(_NUMBER), "when its first node started, in seconds since the epoch"),
    ended=_describe(_or_null(_NUMBER), "seconds since the epoch"),
    elapsed=_describe(_NUMBER, "seconds"),
    nodes=_describe(_object(asked=_pair(_COUNT), now=_COUNT), "asked: the fewest and the most"),
    nproc_per_node=_COUNT,
    attempts=_COUNT,
    restarts=_object(used=_COUNT, limit=_COUNT),
    budgets={"type": "object", "additionalProperties": ref("Budget")},
    kept=_describe({"type": "boolean"}, "whether it is a lab: its ranks stay, and run further cells"),
    lab=_describe(_or_null(ref("Lab")), "null of a job that isn't kept"),
    promoted=_describe(_TEXT, 'the lab whose cells it runs once more, or ""'),
    note=_describe(_TEXT, "one line, by a person"),
    tags=_describe(_list(_TEXT), "by a person"),
    group=_describe(_TEXT, 'the name that it has in common with other runs, or ""'),
    run=_describe(_COUNT, "its place in the group, from 1; 0 of a job in none"),
    pending=_describe(_list(_TEXT), "why it waits, a line each"),
    failure=_describe(_or_null(_TEXT), "the first failure in one line"),
    progress=_describe(_or_null(ref("Progress")), "null where nothing was reported or the logs weren't read"),
    metrics=_describe(_list(_TEXT), 'its newest ones in words, at most a few: "loss 0.41"'),
    still=_describe(_or_null(ref("Still")), "null unless it runs and has been silent for longer than usual"),
    artifacts=_describe(_or_null(_COUNT), "files that its ranks left; null where that isn't known"),
    resumable=_describe(
        _or_null({"type": "boolean"}), "whether it left a checkpoint; null where that isn't known"
    ),
    curves=_describe(
        _or_null({"type": "boolean"}), "whether TensorBoard has something to show; null as above"
    ),
    uses=_describe(_list(ref("Use")), "of its first nodes, while it runs, as far as measured"),
)

_CHART = _object(
    svg=_describe(_TEXT, "an image, for the page's colour scheme"),
    title=_describe(_TEXT, "its alternative text"),
    width=_describe(_COUNT, "pixels"),
    height=_describe(_COUNT, "pixels"),
)

_PART = _object(
    title=_TEXT,
    head=_describe(_list(_TEXT), "the table's; empty where its first column says what a row is"),
    rows=_list(_list(_TEXT)),
    said=_describe(_list(_TEXT), "sentences"),
    wrote=_describe(_list(_TEXT), "lines, as they were written"),
    code=_describe(_list(_pair(_TEXT)), 'spans: a kind to be coloured by, or "", and the text'),
    charts=_list(ref("Chart")),
)

_PROFILE = _object(
    line=_describe(_TEXT, "the magic's line that selects it"),
    spec=_describe({"type": "object"}, "the spec that results, as `JobSpec.to_json` returns it"),
)

SHAPES: Mapping[str, Shape] = {
    "Phase": {"enum": [phase.value for phase in Phase]},
    "Change": {"enum": [*CHANGES]},
    "Budget": _BUDGET,
    "Progress": _PROGRESS,
    "Still": _STILL,
    "Strip": _STRIP,
    "Use": _USE,
    "Lab": _LAB,
    "Job": _JOB,
    "Jobs": _object(
        jobs=_describe(
            _list(ref("Job")), "oldest first; only those that are new or changed, if it isn't whole"
        ),
        removed=_describe(_list(_TEXT), "ids of jobs that are gone"),
        whole=_describe({"type": "boolean"}, "whether there are no other jobs"),
        mark=_describe(_TEXT, "stands for this answer: pass it as `known` the next time"),
        notes=_describe(_list(_TEXT), "why some may be missing"),
        unseen=_describe(_list(_TEXT), "prefixes of the ids of jobs that may be missing or outdated"),
    ),
    "Artifact": _object(
        path=_describe(_TEXT, "relative"), size=_describe(_COUNT, "bytes"), node=_COUNT, attempt=_COUNT
    ),
    "Note": _object(note=_TEXT, tags=_list(_TEXT)),
    "RunFile": _object(
        path=_describe(_TEXT, "artifacts/… or checkpoints/…"),
        size=_describe(_COUNT, "bytes"),
        modified=_describe(_NUMBER, "seconds since the epoch"),
        node=_COUNT,
    ),
    "Files": _object(
        files=_describe(_list(ref("RunFile")), "by path and node"),
        trouble=_describe(_list(_TEXT), "which nodes are missing, and why"),
        more=_describe({"type": "boolean"}, "whether there are more files than are listed"),
    ),
    "Artifacts": _object(artifacts=_describe(_list(ref("Artifact")), "by path")),
    "Value": _object(name=_TEXT, value=_describe(_TEXT, "as Python writes it: 0.001, 'adam'")),
    "Values": _object(values=_list(ref("Value"))),
    "Chart": _CHART,
    "Part": _PART,
    "Page": _object(heading=_TEXT, parts=_list(ref("Part"))),
    "Profiles": _object(
        default=_or_null(_TEXT),
        profiles={"type": "object", "additionalProperties": _PROFILE},
        notes=_describe(_list(_TEXT), "which can't be used, and why"),
    ),
    "Finding": _object(good={"type": "boolean"}, text=_TEXT, remedy=_describe(_TEXT, 'what to do, or ""')),
    "Findings": _object(findings=_list(ref("Finding"))),
    "Document": _describe(
        {"type": "object"}, "a document in its own format: JSON Schema 2020-12, OpenAPI 3.1"
    ),
    "Error": {
        "type": "object",
        "properties": {
            "message": _describe({"type": "string", "pattern": "^[^\\n]+$"}, "one line that says what to do"),
            "reason": _or_null(_TEXT),
        },
        "required": ["message"],
    },
}

# By name; those in a path are in its braces.
PARAMETERS: Mapping[str, Shape] = {
    "known": {
        "description": "The mark of an earlier answer; without it all jobs are returned.",
        "schema": {"type": "string"},
        "example": "",
    },
    "id": {
        "description": f"A job: {FORMS}, percent-encoded.",
        "schema": {"type": "string", "pattern": f"^({_IDS})$"},
        "examples": {name: {"value": f"{name}:{row.example}"} for name, row in ROWS.items()},
    },
    "created": {
        "description": "When the job was created, as its record says: no other job is meant.",
        "schema": {"type": "string", "pattern": f"^{CREATED}$"},
    },
    "job": {
        "description": "A job's id, once for each job; may end in `@` and its `created`.",
        "schema": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": MOST},
    },
    "verb": {
        "description": "What to do to the job.",
        "schema": ref("Change"),
    },
    "value": {
        "description": "With POST: a value to set, NAME=VALUE, once for each.",
        "schema": {"type": "array", "items": {"type": "string"}},
        "example": ["lr=1e-4"],
    },
    "rank": {"description": "A rank's number.", "schema": {"type": "integer", "minimum": 0}, "example": 0},
    "attempt": {
        "description": "An attempt's number; without it the newest that left any.",
        "schema": {"type": "integer", "minimum": 1},
    },
    "file": {
        "description": "A file or folder as `files` lists it: artifacts/… or checkpoints/…",
        "schema": {"type": "string"},
        "example": "artifacts",
    },
    "node": {"description": "A node's number.", "schema": {"type": "integer", "minimum": 0}, "example": 0},
    "offset": {
        "description": "The byte to begin with.",
        "schema": {"type": "integer", "minimum": 0, "default": 0},
    },
    "limit": {
        "description": "The most bytes to send, 4 MiB of a log and 8 MiB of a file at most; without it all.",
        "schema": {"type": "integer", "minimum": 0},
    },
    "path": {
        "description": "A notebook or its folder, as the contents API has it; without it the server's root.",
        "schema": {"type": "string"},
        "example": "",
    },
    "profile": {
        "description": "A profile's name; without it the default.",
        "schema": {"type": "string"},
    },
    "since": {
        "description": "The part of the logs that is known already: RANK.ROUND.OFFSET,…",
        "schema": {"type": "string"},
        "example": "0.0.4096,1.0.0",
    },
    "times": {
        "description": "Whether each line has its time in front; else logs are as they were written.",
        "schema": {"type": "string", "enum": ["", "true"]},
    },
    "ranks": {
        "description": "Only these ranks' logs: 0,1",
        "schema": {"type": "string"},
        "example": "0,1",
    },
}
