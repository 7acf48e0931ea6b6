"""Settings of the notebook's process that its ranks get: read there, applied on a rank before its code runs.

They change what is printed or computed, and people set them once, at the top of a notebook. torch's settings
for numbers and devices are handled elsewhere (``settings``).

``logging`` is set up as in the notebook, too. Levels, filters and handlers that write to the standard streams
apply on a rank as they do in the notebook. Handlers that write elsewhere (files, sockets) stay in the
notebook's process.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import sys
import warnings
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, Type

from nbtorchjob.runtime import torch_versions
from nbtorchjob.runtime.facts import onimport
from nbtorchjob.runtime.objects import importable


class _Setting:
    """How a setting is read from the ``module`` that keeps it, as plain data, and how it is set there.

    The defaults are those of a fresh process: Python 3.13 and numpy 2.4.
    """

    def __init__(self, module: str) -> None:
        self.module = module

    def read(self, module: Any) -> Any:
        """Return its value in ``module``."""
        raise NotImplementedError

    def set(self, module: Any, value: Any) -> None:
        """Set it to a value that was read."""
        raise NotImplementedError

    def default(self, module: Any) -> Any:
        """Return its value while it isn't set."""
        return {}

    def before(self, module: Any, value: Any) -> Any:
        """Return what to pass to :meth:`set` later, to restore what setting ``value`` changes."""
        return self.read(module)


_Kind = Type[_Setting]
SETTINGS: Dict[str, _Setting] = {}


def _of(module: str, name: str) -> Callable[[_Kind], _Kind]:
    """Register a class as the setting of that name, which ``module`` keeps."""

    def enter(kind: _Kind) -> _Kind:
        SETTINGS[name] = kind(module)
        return kind

    return enter


@_of("sys", "sys.setrecursionlimit")
class _Recursion(_Setting):
    def read(self, module: Any) -> int:
        return max(1000, int(module.getrecursionlimit()))

    def set(self, module: Any, value: int) -> None:
        module.setrecursionlimit(value)

    def default(self, module: Any) -> int:
        return 1000


# Filters that Python, IPython and libraries set as they are imported, on ranks too (Python 3.14, IPython 9,
# numpy 2.4, scipy 1.17, any torch): by action, category, message and module.
_FILTERS = (
    ("default", "builtins.DeprecationWarning", "", "__main__"),
    ("always", "numpy.RankWarning", "", ""),  # numpy before 2
    *(
        ("ignore", "builtins.%s" % name, "", "")
        for name in ("DeprecationWarning", "PendingDeprecationWarning", "ImportWarning", "ResourceWarning")
    ),
    *(
        ("ignore", "builtins.Warning", message, "")
        for message in (
            "torch::jit::fuser::cuda",
            "numpy.dtype size changed",
            "numpy.ufunc size changed",
            "numpy.ndarray size changed",
            "the matrix subclass is not the recommended way",
        )
    ),
    ("ignore", "torch.jit._trace.TracerWarning", "", "torch.(?!jit)"),
    ("always", "numpy.exceptions.RankWarning", "", ""),
    ("always", "scipy.special._sf_error.SpecialFunctionWarning", "", ""),
)
_laid_filters: List[Any] = []  # those that this process got from the notebook


@_of("warnings", "warnings.filterwarnings")
class _Filters(_Setting):
    def read(self, module: Any) -> List[Tuple[str, str, str, str, int]]:
        """Return the filters that the notebook has set, in order, with patterns and category as strings."""
        filters = []
        for action, message, category, origin, line in module.filters:
            name = "%s.%s" % (category.__module__, category.__qualname__)
            patterns = [getattr(pattern, "pattern", pattern) or "" for pattern in (message, origin)]
            key = (action, name, *patterns)
            # A class defined in the notebook isn't the same class on a rank.
            if key not in _FILTERS and category.__module__ != "__main__":
                filters.append((action, name, *patterns, line))
        return filters

    def set(self, module: Any, value: List[Tuple[str, str, str, str, int]]) -> None:
        for item in _laid_filters:
            if item in module.filters:
                module.filters.remove(item)
        _laid_filters.clear()
        for item in reversed(value):
            home = item[1].rpartition(".")[0]
            _once_imported(home, functools.partial(_add_filter, item))

    def default(self, module: Any) -> Any:
        return []

    def before(self, module: Any, value: Any) -> Any:
        return []  # the other filters have stayed


def _add_filter(item: Tuple[str, str, str, str, int], home: Any) -> None:
    action, name, message, module, line = item
    category: Any = getattr(home, name.rpartition(".")[2], None)  # another version may not have it
    if isinstance(category, type):
        warnings.filterwarnings(action, message, category, module, line)  # type: ignore[arg-type]
        _laid_filters.append(warnings.filters[0])


@_of("_locale", "locale.setlocale")  # C functions follow it, too: not only code that imports Python's module
class _Locales(_Setting):
    def read(self, module: Any) -> Dict[str, str]:
        names = [
            name for name in dir(module) if name.startswith("LC_") and name not in ("LC_ALL", "LC_CTYPE")
        ]
        locales = {name: module.setlocale(getattr(module, name)) for name in names}
        return {name: value for name, value in locales.items() if value != "C"}

    def set(self, module: Any, value: Dict[str, str]) -> None:
        for name in self.read(module):
            module.setlocale(getattr(module, name), "C")
        for name, category in value.items():
            module.setlocale(getattr(module, name), category)


_ARITHMETIC = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")


@_of("decimal", "decimal.setcontext")
class _Context(_Setting):
    def read(self, module: Any) -> Dict[str, Any]:
        context = module.getcontext()
        values = {name: getattr(context, name) for name in _ARITHMETIC}
        values["traps"] = sorted(trap.__name__ for trap, on in context.traps.items() if on)
        return values

    def set(self, module: Any, value: Dict[str, Any]) -> None:
        traps = [getattr(module, name) for name in value["traps"]]
        module.setcontext(module.Context(**{**value, "traps": traps}))

    def default(self, module: Any) -> Dict[str, Any]:
        with module.localcontext(module.DefaultContext):
            return self.read(module)


@_of("multiprocessing", "multiprocessing.set_start_method")
class _StartMethod(_Setting):
    def read(self, module: Any) -> Optional[str]:
        """Return the method that the notebook chose; not the default, which starting a process also sets."""
        method: Optional[str] = module.get_start_method(allow_none=True)
        return None if method == module.get_all_start_methods()[0] else method

    def set(self, module: Any, value: Optional[str]) -> None:
        module.set_start_method(value, force=True)

    def default(self, module: Any) -> None:
        return None


@_of("numpy", "numpy.seterr")
class _Errors(_Setting):
    def read(self, module: Any) -> Any:
        return module.geterr()

    def set(self, module: Any, value: Any) -> None:
        module.seterr(**value)

    def default(self, module: Any) -> Dict[str, str]:
        return {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}


_NUMPY_PRINTS: Dict[str, Any] = {
    "edgeitems": 3,
    "threshold": 1000,
    "precision": 8,
    "suppress": False,
    "linewidth": 75,
    "nanstr": "nan",
    "infstr": "inf",
    "sign": "-",
    "floatmode": "maxprec",
}


@_of("numpy", "numpy.set_printoptions")
class _NumpyPrints(_Setting):
    def read(self, module: Any) -> Dict[str, Any]:
        return {k: v for k, v in module.get_printoptions().items() if k in _NUMPY_PRINTS}

    def set(self, module: Any, value: Dict[str, Any]) -> None:
        module.set_printoptions(**value)

    def default(self, module: Any) -> Dict[str, Any]:
        return _NUMPY_PRINTS


_PRINTED = {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80, "sci_mode": None}


@_of("torch", "torch.set_printoptions")
class _TorchPrints(_Setting):
    def read(self, module: Any) -> Dict[str, Any]:
        return {k: v for k, v in vars(torch_versions.PRINT_OPTIONS.get()).items() if k in _PRINTED}

    def set(self, module: Any, value: Dict[str, Any]) -> None:
        module.set_printoptions(**value)

    def default(self, module: Any) -> Dict[str, Any]:
        return _PRINTED


@_of("matplotlib", "matplotlib.rcParams")
class _Rc(_Setting):
    def read(self, module: Any) -> Dict[str, Any]:
        default = module.rcParamsOrig
        own = dict.items(module.rcParams)  # reading it the usual way would choose a backend
        skipped = ("backend", "backend_fallback", "interactive")
        return {name: value for name, value in own if name not in skipped and value != default.get(name)}

    def set(self, module: Any, value: Dict[str, Any]) -> None:
        module.rcParams.update(value)

    def before(self, module: Any, value: Any) -> Dict[str, Any]:
        return {name: option for name, option in dict.items(module.rcParams) if name in value}


@_of("pandas", "pandas.set_option")
class _Options(_Setting):
    def read(self, module: Any) -> Dict[str, Any]:
        registered = sys.modules["pandas._config.config"]._registered_options
        with _unwarned():
            options = {name: module.get_option(name) for name in registered}
        return {name: value for name, value in options.items() if value != registered[name].defval}

    def set(self, module: Any, value: Dict[str, Any]) -> None:
        with _unwarned():
            for name, option in value.items():
                module.set_option(name, option)

    def before(self, module: Any, value: Any) -> Dict[str, Any]:
        registered = sys.modules["pandas._config.config"]._registered_options
        with _unwarned():
            return {name: module.get_option(name) for name in value if name in registered}


@contextlib.contextmanager
def _unwarned() -> Iterator[None]:
    """Suppress warnings of pandas (3.1) about deprecated options: it isn't the user who reads those."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


_before: Dict[str, Tuple[Any, Any]] = {}  # of applied settings: the module, and the old value
_awaited: Dict[str, List[Callable[[Any], None]]] = {}  # what to call with modules once they are imported


def changed() -> Dict[str, Any]:
    """Return this process's settings that differ from a fresh process's, by name, as plain data."""
    values: Dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        module = sys.modules.get(setting.module)
        if module is None:
            continue
        try:
            value = setting.read(module)
            if value != setting.default(module):
                values[name] = value
        except Exception:  # another module of that name, or an unknown version
            continue
    return values


def lay(values: Dict[str, Any]) -> None:
    """Apply what :func:`changed` returned, now or once its module is imported, and restore the others."""
    for actions in _awaited.values():
        actions.clear()
    while _before:
        name, (module, value) = _before.popitem()
        SETTINGS[name].set(module, value)
    for name, value in values.items():
        _once_imported(SETTINGS[name].module, functools.partial(_set, name, value))


def _once_imported(home: str, act: Callable[[Any], None]) -> None:
    """Pass a module to a function, now or once it is imported, unless other settings are applied by then."""
    if home in sys.modules or home in sys.builtin_module_names:
        act(importlib.import_module(home))
        return
    if home not in _awaited:
        actions = _awaited[home] = []

        def imported(module: Any) -> None:
            for action in actions:
                action(module)

        onimport.change({home: imported})
    _awaited[home].append(act)


def _set(name: str, value: Any, module: Any) -> None:
    try:
        _before[name] = module, SETTINGS[name].before(module, value)
        SETTINGS[name].set(module, value)
    except Exception as exc:  # the module's version isn't the notebook's
        print("nbtorchjob: %s isn't as in the notebook: %s" % (name, exc), file=sys.__stderr__)


# Loggers of the process that runs a notebook; the notebook's code doesn't write to them.
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
_undo: List[Callable[[], Any]] = []  # functions that restore logging, the newest last


class HandlerSetup(NamedTuple):
    """A handler of the notebook: its class, the stream it writes to, and its other attributes."""

    type: Any
    stream: str
    attributes: Dict[str, Any]


class LoggerSetup(NamedTuple):
    """How a logger is set up; ``library`` if an installed module may add handlers to it by itself."""

    level: int
    propagate: bool
    disabled: bool
    filters: List[Any]
    handlers: List[HandlerSetup]
    library: str


def changed_logging() -> Tuple[Dict[str, Any], List[str]]:
    """Return this process's set-up where it differs from a new Python's, and classes of handlers that stay.

    The set-up holds formatters and filters as objects.
    """
    loggers: Dict[str, LoggerSetup] = {}
    stay: List[str] = []
    registry: Dict[str, Any] = {"": logging.root}
    registry.update(logging.root.manager.loggerDict)
    for name, logger in registry.items():
        top = name.partition(".")[0]
        if not isinstance(logger, logging.Logger) or top in _KERNEL:
            continue
        if name in _OF_TORCH or (top == "torch" and (logger.level in _UNTOLD or "__" in name)):
            continue
        library = top if importable.installed(sys.modules.get(top)) else ""
        handlers = [] if library else [_handler(item, stay) for item in logger.handlers]
        setup = LoggerSetup(
            logger.level,
            logger.propagate,
            logger.disabled,
            [item for item in logger.filters if not _of_library(item)],
            [item for item in handlers if item is not None],
            library,
        )
        default = logging.WARNING if logger is logging.root else logging.NOTSET
        if library:  # a library may keep its records to itself
            setup = setup._replace(propagate=True)
        if setup[:5] != (default, True, False, [], []):
            loggers[name] = setup._replace(propagate=logger.propagate)
    disabled, warned = logging.root.manager.disable, logging._warnings_showwarning is not None  # type: ignore[attr-defined]
    if not (loggers or disabled or warned):
        return {}, stay
    return {"loggers": loggers, "disable": disabled, "warnings": warned}, stay


def _handler(handler: logging.Handler, stay: List[str]) -> Optional[HandlerSetup]:
    type_ = type(handler)
    if type_ is logging.NullHandler or type_.__module__.startswith("_pytest"):
        return None
    own = {name: value for name, value in vars(handler).items() if name not in ("lock", "stream", "_name")}
    # A library's own formatter or filter may be missing in the image, which isn't worth a refusal.
    if _of_library(own.get("formatter")):
        own["formatter"] = None
    own["filters"] = [item for item in own.get("filters", ()) if not _of_library(item)]
    is_own = type_.__module__ == "__main__" or not importable.installed(sys.modules.get(type_.__module__))
    stream = getattr(handler, "stream", None)
    names = [name for name in _STREAMS if stream is not None and getattr(sys, name) is stream]
    if (type_ is logging.StreamHandler or is_own) and (
        names or not isinstance(handler, logging.StreamHandler)
    ):
        return HandlerSetup(type_, names[0] if names else "", own)
    python = type_.__module__.partition(".")[0] == "logging"
    if python or isinstance(handler, logging.StreamHandler):
        stay.append(type_.__name__)  # it writes to a file, or to another process
        return None
    plain: Dict[str, Any] = {name: own[name] for name in ("level", "filters", "formatter") if name in own}
    return HandlerSetup(
        logging.StreamHandler, "stderr", plain
    )  # one that draws in a terminal: its text is still logged


def _of_library(obj: Any) -> bool:
    """Whether the class of a formatter or filter belongs to an installed distribution."""
    module = type(obj).__module__
    # With ``python -m``, ``__main__`` is a file of a library.
    others = module.partition(".")[0] in ("__main__", "logging", "builtins")
    return not others and bool(importable.installed(sys.modules.get(module)))


def lay_logging(setup: Dict[str, Any]) -> None:
    """Apply what :func:`changed_logging` returned, in place of what was applied before."""
    while _undo:
        _undo.pop()()
    if not setup:
        return
    warned = logging._warnings_showwarning is not None  # type: ignore[attr-defined]
    _undo.append(functools.partial(logging.captureWarnings, warned))
    _undo.append(functools.partial(logging.disable, logging.root.manager.disable))
    logging.disable(setup["disable"])
    logging.captureWarnings(setup["warnings"])
    for name, logger_setup in setup["loggers"].items():
        if logger_setup.library == "torch" and os.environ.get("TORCH_LOGS"):
            continue  # that variable has set torch's levels here
        logger = logging.getLogger(name or None)
        before = logger.level, logger.propagate, logger.disabled, logger.filters[:]
        _undo.append(functools.partial(_set_logger, logger, *before))
        _set_logger(logger, *logger_setup[:4])
        for handler_setup in logger_setup.handlers:
            handler = handler_setup.type.__new__(handler_setup.type)
            if isinstance(handler, logging.StreamHandler):
                logging.StreamHandler.__init__(handler, getattr(sys, handler_setup.stream))
            else:
                logging.Handler.__init__(handler)
            vars(handler).update(handler_setup.attributes)
            logger.addHandler(handler)
            _undo.append(functools.partial(logger.removeHandler, handler))


def _set_logger(
    logger: logging.Logger, level: int, propagate: bool, disabled: bool, filters: List[Any]
) -> None:
    logger.setLevel(level)
    logger.propagate, logger.disabled = propagate, disabled
    logger.filters[:] = filters
