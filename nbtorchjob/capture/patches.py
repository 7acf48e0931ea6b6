"""Patches: the notebook's replacements for functions and methods of Python or of installed packages.

Ranks import those packages afresh, without the patches, so a capture names each patch. Any variable of a
module, and any attribute of a class, may be one: torch has 45,000, and checking them takes 10 ms. So their
values are remembered, and a package is searched again only once one of them has changed.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, compress, repeat
from operator import is_, not_
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from nbtorchjob.runtime.objects import importable, rebuilt

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_mro = type.__dict__["__mro__"].__get__  # bypasses metaclasses, which may do anything
_WRAPPERS = (property, staticmethod, classmethod, MethodType)

_looks: dict[str, _Look] = {}  # the latest one of each package


def patched(names: Iterable[str], captured: Mapping[str, Any]) -> Iterator[str]:
    """Describe the notebook's replacements for functions and methods of Python or of installed modules.

    ``names`` are the modules that the pickle refers to: their whole packages are searched, as one module's
    functions call those of others. A module that the notebook made is not searched: it exists nowhere else.
    """
    # Every pickle refers to the module that rebuilds it.
    tops = {name.partition(".")[0] for name in {*names} - {rebuilt.__name__}} - {"__main__"}
    for package in [*_looks]:
        if package not in sys.modules:
            _looks.pop(package, None)  # another thread may be capturing, too
    for package, spaces in _spaces(tops).items():
        look = _looks.get(package)
        if look is None or not look.holds(spaces):
            look = _looks[package] = _Look(package, spaces)
        for name in look.suspects:
            for key in _patches(name, spaces[name], captured, top=name == package):
                yield f"{name}.{key} was set in the notebook: ranks have {name}'s own"


def _spaces(packages: Iterable[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the variables of builtins and of the packages' installed modules, by package and module."""
    spaces: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in ("builtins", *sorted(packages))}
    for name, module in sys.modules.copy().items():  # there may be thousands
        package = name.partition(".")[0]
        if package in spaces and importable.installed(module):
            spaces[package][name] = importable.attributes(module)
    return {**spaces, "builtins": {"builtins": vars(builtins)}}


def _patches(name: str, space: Mapping[str, Any], captured: Mapping[str, Any], *, top: bool) -> list[str]:
    """Return the members of a module, and of its classes, that are the notebook's and aren't captured."""
    space = dict(space)
    replaced = [key for key, value in _of_notebook(space) if captured.get(key) is not value]
    if top:  # within packages it is common: numpy's array_function_dispatch
        # The original with some arguments set: ``torch.load = partial(torch.load, …)``
        partials = {key: value for key, value in space.items() if type(value) is partial}
        replaced += [key for key, value in partials.items() if getattr(value.func, "__name__", "") == key]
    for key, attributes in _classes(name, space):
        replaced += [f"{key}.{method}" for method, _ in _of_notebook(dict(attributes))]
    return replaced


def _classes(name: str, space: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the attributes of each class that a module defines and that can be changed."""
    for key, value in space.items():
        if _can_change(value) and type.__getattribute__(value, "__module__") == name:
            yield key, type.__getattribute__(value, "__dict__")


def _can_change(value: Any) -> bool:
    """Whether a value is a class whose attributes can be set."""
    # Bypass metaclasses: theirs may run any code on attribute access.
    return issubclass(type(value), type) and bool(type.__getattribute__(value, "__flags__") & _HEAP_TYPE)


def _of_notebook(space: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the members of a module or class that the notebook defined, also those renamed by ``wraps``."""
    members = []
    for key, value in space.items():
        function = _function(value)
        if type(function) is FunctionType:
            if function.__globals__.get("__name__") == "__main__":
                members.append((key, value))
        elif _is_callable_of_notebook(type(value)) or (
            _can_change(value) and type.__getattribute__(value, "__module__") == "__main__"
        ):
            members.append((key, value))
    return members


def _is_callable_of_notebook(kind: type) -> bool:
    """Whether instances of a type are callable, and the type is a class of the notebook."""
    home = type.__getattribute__(kind, "__module__")
    return home == "__main__" and any("__call__" in type.__getattribute__(c, "__dict__") for c in _mro(kind))


def _function(value: Any) -> Any:
    """Return the function of a property or of a method of any kind; anything else as it is."""
    kind = type(value)
    if kind is property:
        return value.fget
    return value.__func__ if kind in _WRAPPERS else value


def edited(module: ModuleType, code: CodeType) -> bool:
    """Whether an imported function differs from the one that is now in the file."""
    now = {constant.co_name: constant for constant in code.co_consts if isinstance(constant, CodeType)}
    return any(
        name not in now or _form(now[name]) != _form(value.__code__)
        for name, value in vars(module).items()
        if type(value) is FunctionType
        and value.__globals__ is vars(module)
        and (value.__name__, value.__code__.co_filename) == (name, code.co_filename)
    )


def _form(code: CodeType) -> tuple[Any, ...]:
    # The order of a set's items is another one in a file of bytecode.
    constants = (sorted(map(repr, c)) if isinstance(c, frozenset) else c for c in code.co_consts)
    inner = tuple(_form(c) if isinstance(c, CodeType) else repr(c) for c in constants)
    return code.co_code, code.co_names, code.co_varnames, inner


def made_in(value: Any) -> str:
    """Return the name of the module that defines a function, a class, or another object's class.

    The object's own attributes aren't read: it may warn (torch's reduce_op), or return anything.
    """
    if issubclass(type(value), FunctionType):
        return str(value.__module__)
    cls = value if issubclass(type(value), type) else type(value)
    return str(type.__getattribute__(cls, "__module__"))


class _Look:
    """A search of a package: its ``suspects``, and the variables of the modules without patches.

    Whatever may be or have a patch is compared by identity: a function's origin never changes. For all other
    variables only the types are remembered: a variable may hold gigabytes, which must be freed once the
    package replaces it.
    """

    def __init__(self, package: str, spaces: Mapping[str, dict[str, Any]]) -> None:
        self._spaces = spaces
        self.suspects: list[str] = []  # modules to look through each time
        self._remember(spaces)
        partials = any(type(value) is partial for value in [*spaces.get(package, {}).values()])
        if partials or self._has_patches():
            with_patches = (name for name, space in spaces.items() if _patches(name, space, {}, top=False))
            self.suspects = [*dict.fromkeys((*with_patches, *([package] if partials else [])))]
            self._remember({name: spaces[name] for name in spaces if name not in self.suspects})

    def _remember(self, spaces: Mapping[str, dict[str, Any]]) -> None:
        # Views always show the current values.
        self._views: list[Iterable[Any]] = []
        for name, space in spaces.items():
            self._views.append(space.values())
            self._views += (attributes.values() for _, attributes in _classes(name, dict(space)))
        values = [*chain.from_iterable(self._views)]
        kinds = [*map(type, values)]
        self._is_definition = [
            kind is FunctionType or kind in _WRAPPERS or issubclass(kind, type) for kind in kinds
        ]
        self._is_other = [*map(not_, self._is_definition)]
        self._definitions = [*compress(values, self._is_definition)]
        self._types = [*compress(kinds, self._is_other)]
        functions = [value for value in map(_function, self._definitions) if type(value) is FunctionType]
        self._globals = [*{id(f.__globals__): f.__globals__ for f in functions}.values()]
        self._classes = [*{id(value): value for value in self._definitions if _can_change(value)}.values()]
        self._homes = self._homes_now()
        self._calls = any(map(_is_callable_of_notebook, {id(kind): kind for kind in self._types}.values()))

    def holds(self, spaces: Mapping[str, dict[str, Any]]) -> bool:
        """Whether modules other than the suspects are sure to have no patches."""
        if [*spaces] != [*self._spaces] or not all(map(is_, spaces.values(), self._spaces.values())):
            return False
        values = [*chain.from_iterable(self._views)]
        return (
            len(values) == len(self._is_definition)
            and all(map(is_, compress(values, self._is_definition), self._definitions))
            and all(map(is_, map(type, compress(values, self._is_other)), self._types))
            and all(map(is_, self._homes_now(), self._homes))
            and not self._has_patches()
        )

    def _has_patches(self) -> bool:
        """Whether a function, a class or a callable object is the notebook's."""
        return (
            self._calls
            or "__main__" in self._homes
            or any(space.get("__name__") == "__main__" for space in self._globals)
        )

    def _homes_now(self) -> list[Any]:
        return [*map(type.__getattribute__, self._classes, repeat("__module__"))]
