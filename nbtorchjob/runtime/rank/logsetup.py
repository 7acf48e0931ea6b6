"""The notebook's set-up of ``logging``: read in the notebook, applied on a rank before its code runs.

Levels, filters and what writes to the standard streams hold on a rank as they do in the notebook. Handlers
that write elsewhere (files, sockets) stay in the notebook's process.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from nbtorchjob.runtime.objects import importable

# Loggers of the process that runs a notebook, which code in it doesn't write to.
_KERNEL = (
    *("IPKernelApp", "ipykernel", "IPython", "traitlets", "tornado", "asyncio", "parso", "nbtorchjob"),
    *("ServerApp", "LabApp", "NotebookApp", "TorchJobApp"),  # of a server in the same process
)
# What torch sets up itself when it is imported: these, and levels of its own loggers.
_OF_TORCH = (
    "c10d-NullHandler-default",
    "c10d-NullHandler",  # in old versions
    "strobelight_function_profiler",
    "strobelight_compile_time_profiler",
)
_UNTOLD = (logging.NOTSET, logging.WARNING)
_STREAMS = ("stdout", "stderr", "__stdout__", "__stderr__")
_laid: List[str] = []
_added: List[Tuple[logging.Logger, logging.Handler]] = []


class Handler(NamedTuple):
    """A handler of the notebook: its class, the stream it writes to, and its other attributes."""

    type: Any
    stream: str
    attributes: Dict[str, Any]


class Logger(NamedTuple):
    """How a logger is set up; ``library`` if an installed module may add handlers to it by itself."""

    level: int
    propagate: bool
    disabled: bool
    filters: List[Any]
    handlers: List[Handler]
    library: str


def changed() -> Tuple[Dict[str, Any], List[str]]:
    """Return this process's set-up where it isn't as Python starts, and the classes of handlers that stay.

    What is returned holds formatters and filters as they are.
    """
    loggers: Dict[str, Logger] = {}
    stay: List[str] = []
    known: Dict[str, Any] = {"": logging.root}
    known.update(logging.root.manager.loggerDict)
    for name, logger in known.items():
        top = name.partition(".")[0]
        if not isinstance(logger, logging.Logger) or top in _KERNEL:
            continue
        if name in _OF_TORCH or (top == "torch" and (logger.level in _UNTOLD or "__" in name)):
            continue
        library = top if importable.installed(sys.modules.get(top)) else ""
        handlers = [] if library else [_handler(item, stay) for item in logger.handlers]
        setup = Logger(
            logger.level,
            logger.propagate,
            logger.disabled,
            [item for item in logger.filters if not _of_library(item)],
            [item for item in handlers if item is not None],
            library,
        )
        default = logging.WARNING if logger is logging.root else logging.NOTSET
        if library:  # which may keep its records to itself
            setup = setup._replace(propagate=True)
        if setup[:5] != (default, True, False, [], []):
            loggers[name] = setup._replace(propagate=logger.propagate)
    disabled, warned = logging.root.manager.disable, logging._warnings_showwarning is not None  # type: ignore[attr-defined]
    if not (loggers or disabled or warned):
        return {}, stay
    return {"loggers": loggers, "disable": disabled, "warnings": warned}, stay


def _handler(handler: logging.Handler, stay: List[str]) -> Optional[Handler]:
    type_ = type(handler)
    if type_ is logging.NullHandler or type_.__module__.startswith("_pytest"):
        return None
    own = {name: value for name, value in vars(handler).items() if name not in ("lock", "stream", "_name")}
    # A library's own may be missing in the image, and isn't worth a refusal.
    if _of_library(own.get("formatter")):
        own["formatter"] = None
    own["filters"] = [item for item in own.get("filters", ()) if not _of_library(item)]
    mine = type_.__module__ == "__main__" or not importable.installed(sys.modules.get(type_.__module__))
    stream = getattr(handler, "stream", None)
    names = [name for name in _STREAMS if stream is not None and getattr(sys, name) is stream]
    if (type_ is logging.StreamHandler or mine) and (names or not isinstance(handler, logging.StreamHandler)):
        return Handler(type_, names[0] if names else "", own)
    python = type_.__module__.partition(".")[0] == "logging"
    if python or isinstance(handler, logging.StreamHandler):
        stay.append(type_.__name__)  # it writes to a file, or to another process
        return None
    plain: Dict[str, Any] = {name: own[name] for name in ("level", "filters", "formatter") if name in own}
    return Handler(logging.StreamHandler, "stderr", plain)  # one that draws in a terminal: its words go on


def _of_library(obj: Any) -> bool:
    """Whether a formatter's or filter's class is of an installed distribution."""
    module = type(obj).__module__
    # ``python -m`` has ``__main__`` be a file of a library.
    others = module.partition(".")[0] in ("__main__", "logging", "builtins")
    return not others and bool(importable.installed(sys.modules.get(module)))


def lay(setup: Dict[str, Any]) -> None:
    """Apply what :func:`changed` returned, in place of what was applied before."""
    for logger, handler in _added:
        logger.removeHandler(handler)
    for name in _laid:
        logging.getLogger(name or None).setLevel(logging.NOTSET if name else logging.WARNING)
    del _added[:], _laid[:]
    if not setup:
        return
    logging.disable(setup["disable"])
    logging.captureWarnings(setup["warnings"])
    for name, logger_setup in setup["loggers"].items():
        if logger_setup.library == "torch" and os.environ.get("TORCH_LOGS"):
            continue  # which has set torch's levels here
        logger = logging.getLogger(name or None)
        logger.setLevel(logger_setup.level)
        logger.propagate, logger.disabled = logger_setup.propagate, logger_setup.disabled
        logger.filters[:] = logger_setup.filters
        _laid.append(name)
        for handler in map(_made, logger_setup.handlers):
            logger.addHandler(handler)
            _added.append((logger, handler))


def _made(handler_setup: Handler) -> logging.Handler:
    handler: logging.Handler = handler_setup.type.__new__(handler_setup.type)
    if isinstance(handler, logging.StreamHandler):
        logging.StreamHandler.__init__(handler, getattr(sys, handler_setup.stream))
    else:
        logging.Handler.__init__(handler)
    vars(handler).update(handler_setup.attributes)
    return handler
