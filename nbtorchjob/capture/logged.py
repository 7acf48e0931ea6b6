"""How ``logging`` is set up in the notebook, as far as that can go along to ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from nbtorchjob.capture import pickling


def setup() -> tuple[dict[str, Any], list[str]]:
    """Return what ``runtime.logsetup`` applies on a rank, and a note of each handler that stays here."""
    if "logging" not in sys.modules:
        return {}, []
    from nbtorchjob.runtime.rank import logsetup

    current, stay = logsetup.changed()
    loggers = dict(current.get("loggers", {}))
    for name, logger in loggers.items():
        travels = [item for item in logger.handlers if not pickling.fails(item)]
        stay += [item.type.__name__ for item in logger.handlers if item not in travels]
        filters = [item for item in logger.filters if not pickling.fails(item)]
        loggers[name] = logger._replace(handlers=travels, filters=filters)
    notes = [
        f"logging's {name} stays here: on ranks nothing is written to it" for name in dict.fromkeys(stay)
    ]
    return {**current, "loggers": loggers} if current else {}, notes


def used(captured: Mapping[str, Any], imports: Iterable[str]) -> bool:
    """Whether code that travels logs: it imports ``logging``, or has it or a logger among its variables."""
    logging = sys.modules.get("logging")
    return "logging" in imports or any(
        value is logging or type(value).__module__ == "logging" for value in captured.values()
    )
