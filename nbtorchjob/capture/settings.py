"""How ``logging`` is set up in the notebook, as far as that can go along to ranks.

This process's settings: ranks are fresh processes, and don't inherit them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nbtorchjob.capture import pickling
from nbtorchjob.runtime.rank import settings
from nbtorchjob.spec.jobspec import JobSpec


def cautions(spec: JobSpec) -> Iterator[str]:
    """Name settings that change numbers, and aren't carried along under ``spec``."""
    found = settings.words(settings.told())
    if found and not spec.carry_settings:
        them = "it" if len(found) == 1 else "them"
        yield f"ranks don't get {', '.join(found)}: --carry-settings takes {them} along"


def setup() -> tuple[dict[str, Any], list[str]]:
    """Return what ``runtime.logsetup`` applies on a rank, and a note of each handler that stays here."""
    if "logging" not in sys.modules:
        return {}, []
    from nbtorchjob.runtime.rank import logsetup

    told, stay = logsetup.told()
    loggers = dict(told.get("loggers", {}))
    for name, logger in loggers.items():
        travels = [each for each in logger.handlers if not pickling.fails(each)]
        stay += [each.type.__name__ for each in logger.handlers if each not in travels]
        filters = [each for each in logger.filters if not pickling.fails(each)]
        loggers[name] = logger._replace(handlers=travels, filters=filters)
    notes = [
        f"logging's {name} stays here: on ranks nothing is written to it" for name in dict.fromkeys(stay)
    ]
    return {**told, "loggers": loggers} if told else {}, notes


def used(captured: Mapping[str, Any], imports: Iterable[str]) -> bool:
    """Whether code that travels logs: it imports ``logging``, or has it or a logger among its variables."""
    logging = sys.modules.get("logging")
    return "logging" in imports or any(
        value is logging or type(value).__module__ == "logging" for value in captured.values()
    )
