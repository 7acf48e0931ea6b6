"""Jobs and runs as tables, in a notebook and as data frames."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib.util import find_spec
from typing import Any, SupportsIndex, overload

from nbtorchjob.errors import NotInstalledError
from nbtorchjob.state import JobState, Phase
from nbtorchjob.state.text import facts
from nbtorchjob.text import safe

_FRAMES = ("pandas", "polars")  # the first that is installed makes the frames
_DONE = {Phase.SUCCEEDED: "succeeded", Phase.FAILED: "failed", Phase.CANCELLED: "cancelled"}


class Jobs(list[JobState]):
    """A list of jobs' states that a notebook shows as a table.

    The states are as they were when the list was made.
    """

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each job: its name, phase, size, times and where it ran."""
        now = time.time()
        rows = []
        for state in self:
            info = state.info
            rows.append(
                {
                    "name": info.name,
                    "phase": state.phase.value,
                    "what": info.full_label,
                    "created": datetime.fromtimestamp(info.created, timezone.utc),
                    "seconds": state.elapsed(now),
                    "nodes": info.nodes[1],
                    "ranks": info.nodes[1] * info.nproc_per_node,
                    "attempts": len(state.attempts),
                    "where": facts.where(info),
                    "group": info.group,
                    "id": info.id,
                }
            )
        return rows

    def frame(self) -> Any:
        """Return :meth:`rows` as a pandas or polars ``DataFrame``.

        Raises ``NotInstalledError`` where neither is installed.
        """
        return frame(self.rows())

    @overload
    def __getitem__(self, at: SupportsIndex) -> JobState: ...
    @overload
    def __getitem__(self, at: slice) -> Jobs: ...
    def __getitem__(self, at: SupportsIndex | slice) -> JobState | Jobs:
        """Return one job's state, or some jobs as a table of their own."""
        return Jobs(super().__getitem__(at)) if isinstance(at, slice) else super().__getitem__(at)

    def __str__(self) -> str:
        from nbtorchjob.ui.record import jobs_text  # late: only a table that is shown is drawn

        return safe(jobs_text(self._records()))

    def __repr__(self) -> str:
        counted: list[str] = []
        for phase in Phase:
            if count := sum(state.phase is phase for state in self):
                counted.append(f"{count:,} {_DONE.get(phase, phase.word)}")
        return f"<Jobs {', '.join(counted) or 'none'}>"

    def _repr_html_(self) -> str:
        from nbtorchjob.ui.record import jobs_html  # late, as above

        return jobs_html(self._records())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _records(self) -> list[dict[str, Any]]:
        from nbtorchjob.ui.record import record  # late, as above

        now = time.time()
        return [record(state, now) for state in self]


def frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows as a ``DataFrame`` of pandas, or of polars where only that is installed.

    Raises ``NotInstalledError`` where neither is.
    """
    installed = next((name for name in _FRAMES if find_spec(name) is not None), None)
    if installed is None:
        raise NotInstalledError("frame() needs pandas or polars: pip install pandas; rows() needs neither")
    if installed == "pandas":
        import pandas  # the user's own, and slow to import

        return pandas.DataFrame(rows)
    import polars  # as above

    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    objects = {}
    for name, values in columns.items():
        # polars would turn values of several types into strings, or drop some, also within containers, and
        # give each dict the keys of all dicts (2.1).
        types = {type(value) for value in values if value is not None}
        if (len(types) > 1 and not types <= {int, float}) or not types.isdisjoint((list, tuple, dict)):
            objects[name] = polars.Object
    return polars.DataFrame(columns, schema_overrides=objects, strict=False)
