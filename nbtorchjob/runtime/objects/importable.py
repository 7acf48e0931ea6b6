"""Which modules an import finds in another process, and how, whatever their class.

A library may put an object of its own into ``sys.modules`` (``torch.backends.cudnn``, lazy modules), or have
modules that are only attributes of others (``torch.ops.aten``, those inside an extension). Modules are read
through their own dicts: getting an attribute of a lazy module would import it, or fail. Dicts are copied
before iterating: ``list`` may collect garbage, whose finalizers may import.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
import types
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Optional, Tuple, Union

_MAIN = ("__main__", "__mp_main__")


def attributes(module: Any) -> Dict[str, Any]:
    """Return what was set on a module, without what its ``__getattr__`` or a lazy import would add."""
    try:
        own = object.__getattribute__(module, "__dict__")
    except AttributeError:  # an object of another class, with slots
        return {}
    return own if isinstance(own, dict) else {}


def name_of(module: Any) -> str:
    """Return a module's ``__name__``, which needn't be the name that imports it."""
    return str(attributes(module).get("__name__", ""))


def route(module: Any) -> Union[str, Tuple[Any, str], None]:
    """Return the name that imports ``module``, or another module and its attribute that is ``module``.

    None means that code made ``module``, so that no import finds it elsewhere.
    """
    name = name_of(module)
    names = (
        [name]
        if sys.modules.get(name) is module
        else [name for name, entry in sys.modules.copy().items() if entry is module]
    )
    for alias in names:
        if alias not in _MAIN and not made_by_hand(alias):
            return alias
    if names:
        return None
    top, *steps = name.split(".")
    holder = sys.modules.get(top)
    if not steps or holder is None or made_by_hand(top):
        held_by_parent = None
    else:
        for step in steps[:-1]:
            holder = getattr(holder, step, None)
        held_by_parent = (holder, steps[-1]) if attributes(holder).get(steps[-1]) is module else None
    return held_by_parent or _holder_of(module)


def _holder_of(module: Any) -> Optional[Tuple[Any, str]]:
    """Return the imported module and its variable that hold ``module``: in extensions and lazy imports."""
    if type(module) is types.ModuleType:
        own = attributes(module)
        if any(
            type(value) is types.FunctionType and value.__globals__ is own for value in own.copy().values()
        ):
            return None  # made here, and passed to a library
    for name, holder in sys.modules.copy().items():
        if holder is None or name in _MAIN:
            continue
        for attribute, value in attributes(holder).copy().items():
            if value is module and not made_by_hand(name):
                return holder, attribute
    return None


def made_by_hand(name: str) -> bool:
    """Whether the module ``name`` was made by code: no import will find it elsewhere."""
    top = name.partition(".")[0]
    module = sys.modules.get(top)
    if module is None or top in _MAIN:
        return False
    own = attributes(module)
    if any(own.get(name) for name in ("__spec__", "__loader__", "__file__")):
        return False
    return find_spec(top) is None


def find_spec(name: str) -> Any:
    """Return the spec of the top-level module ``name``, or the one that an import would find, or None.

    ``importlib.util.find_spec`` loads a lazy module, and refuses one that put an object in its place.
    """
    spec = attributes(sys.modules.get(name)).get("__spec__")
    if spec is not None:
        return spec
    for finder in list(sys.meta_path):
        try:
            spec = finder.find_spec(name, None)
        except Exception:  # a third-party finder
            continue
        if spec is not None:
            return spec
    return None


def submodules(values: Iterable[Any], names: Iterable[str]) -> List[Any]:
    """Return the imported submodules of modules among ``values`` that ``names`` may lead to: ``a.b.c``."""
    packages = [name_of(value) + "." for value in values if issubclass(type(value), types.ModuleType)]
    tokens = set(names)
    return [
        module
        for package in dict.fromkeys(packages)
        for name, module in sys.modules.copy().items()
        if name.startswith(package) and module is not None
        if tokens.issuperset(name[len(package) :].split("."))
    ]


def types_of_others() -> FrozenSet[type]:
    """Return the classes of the objects in ``sys.modules`` that aren't instances of ``ModuleType``."""
    return _types_of_others(len(sys.modules), next(reversed(sys.modules)))


@functools.lru_cache(maxsize=1)  # it checks thousands of modules: once per import, not for each pickle
def _types_of_others(_count: int, _newest: str) -> FrozenSet[type]:
    others = [
        module for module in sys.modules.copy().values() if not issubclass(type(module), types.ModuleType)
    ]
    return frozenset(map(type, others)) - {type(None)}


def sentinels(type_: type) -> Dict[int, Tuple[Any, str]]:
    """Return where modules hold sentinels of a class, objects that they compare others with, by ``id``.

    A sentinel has no state, or an installed module names it as a constant; an ``object()`` may be anywhere.
    """
    home = sys.modules.get(str(type_.__module__))
    if type_ is object:
        homes = _everywhere()
    elif home is None or type_.__module__ in _MAIN:
        return {}
    else:
        homes = [home]
    return {
        id(value): (module, name)
        for module, name, value in _held_by(homes, type_)
        if _stateless(value) or (name.isupper() and installed(module))
    }


def locations(type_: type) -> Dict[int, Tuple[Any, str]]:
    """Return where a class's own library holds objects of the class, by ``id``.

    That is in the module of the class or in its top-level package, as with loguru's ``logger``.
    """
    names = (str(type_.__module__), str(type_.__module__).partition(".")[0])
    homes = [sys.modules[name] for name in dict.fromkeys(names) if name in sys.modules and name not in _MAIN]
    return {id(value): (module, name) for module, name, value in _held_by(homes, type_)}


def all_locations(type_: type) -> Dict[int, Tuple[Any, str]]:
    """Return where any module holds objects of a class, by ``id``."""
    return {id(value): (module, name) for module, name, value in _held_by(_everywhere(), type_)}


def _everywhere() -> List[Any]:
    return [module for name, module in sys.modules.copy().items() if name not in _MAIN]


def _held_by(homes: Iterable[Any], type_: type) -> Iterator[Tuple[Any, str, Any]]:
    """Yield the objects of a class that importable modules hold, each with its module and its name there."""
    for module in homes:
        values = [(name, value) for name, value in attributes(module).copy().items() if type(value) is type_]
        if values and isinstance(route(module), str):
            yield from ((module, name, value) for name, value in values)


def _stateless(value: Any) -> bool:
    kind: Any = type(value)
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__:
        return False
    try:
        reduced = value.__reduce_ex__(2)
    except Exception:  # whatever its own __getstate__ raises
        return False
    return tuple(reduced[1:]) == ((kind,), None, None, None)


def installed(module: Any) -> bool:
    """Whether a module is Python's own or in a folder that packages are installed in."""
    return str(attributes(module).get("__file__", "")).startswith(_INSTALLED)


_INSTALLED = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
