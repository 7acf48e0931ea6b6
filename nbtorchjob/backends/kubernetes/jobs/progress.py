"""How far a job is, and what it uses, for a list: of the logs that whoever follows it caches on this machine.

A list asks a cluster for no logs: of a job that nobody follows here it can't tell.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import reduce
from pathlib import Path

from nbtorchjob.backends.kubernetes.logs.cache import JobCache, Pod
from nbtorchjob.backends.kubernetes.objects.reading import seconds
from nbtorchjob.backends.progress import REPORTED, USED, Telling
from nbtorchjob.machine.folders import plain
from nbtorchjob.state import JobState, apply
from nbtorchjob.state.events import LOOKED, LabEnds, TurnEnded, TurnTaken, WorkersStarted, Wrote, read

# A line of a cached log is its stamp and a frame (``runtime/frames.py``); a report fits into one, and so does
# what a node of less than a hundred ranks uses.
_TOLD = b"|".join(map(re.escape, (REPORTED, USED)))
_reports = re.compile(rb"^\S+ fact\.0 ((?:%s).*)$" % _TOLD, re.MULTILINE).findall

# What a node tells by itself, and the rest of a long fact: they don't say that a rank moves.
_looked = re.compile(rb'\S+ fact\.(?:0[ +]\{"event": "(?:%s)"|[1-9])' % "|".join(LOOKED).encode()).match

_OF_LABS = (WorkersStarted, TurnTaken, TurnEnded, LabEnds)

_BYTES = 1 << 18  # of a log, in one look: a list waits for them
_LOGS = 1024


class _Log:
    """A pod's cached log, of which each look reads what was added."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._telling = Telling()
        self.wrote = 0.0  # when something was heard last

    def reports(self) -> list[bytes]:
        with suppress(FileNotFoundError), open(self._path, "rb", opener=plain) as file:
            file.seek(max(self._offset, file.seek(0, os.SEEK_END) - _BYTES))
            start, data = file.tell(), file.read()
            whole = data.rfind(b"\n") + 1
            self._offset = start + whole
            for line in _reports(data[:whole]):
                self._telling.add(line)
            lines = reversed(data[:whole].rstrip(b"\n").split(b"\n"))
            heard = next((line for line in lines if not _looked(line)), b"")
            self.wrote = max(self.wrote, seconds(heard.partition(b" ")[0].decode("ascii", "replace")))
        return self._telling.lines


_logs: dict[Path, _Log] = {}


def reported(state: JobState, cache: JobCache) -> JobState:
    """Return the state with what its ranks told, if it goes on and is cached here.

    That is what they reported and used, and of a lab its turns.
    """
    if state.ended is not None:
        return state
    if state.info.lab is not None:
        state = reduce(apply, (fact for fact in cache.facts() if isinstance(fact, _OF_LABS)), state)
    pods = [Pod(index, uid) for index, node in state.nodes.items() for uid in node.lives]
    logs = [_log(cache.log(pod)) for pod in pods]
    lines = [line for log in logs for line in log.reports()]
    wrote = max((log.wrote for log in logs), default=0.0)
    return reduce(apply, [*read(lines), *([Wrote(wrote)] if wrote else [])], state)


def _log(path: Path) -> _Log:
    found = _logs.pop(path, None) or _Log(path)
    _logs[path] = found
    if len(_logs) > _LOGS:
        del _logs[next(iter(_logs))]  # the one that was asked for longest ago
    return found
