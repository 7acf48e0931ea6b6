"""Objects that Python's own libraries generate for the notebook's code, slightly different in each Python.

Dataclasses, named tuples, enums and protocols have methods without a source, and tables that only their own
Python understands. If such a class comes from another Python, this Python's class makers generate them again
from the class's own description: its fields or its members. Objects that ``functools`` makes are treated the
same way. Nothing that the notebook's own code did is repeated.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import functools
import inspect
import operator
import sys
import types
import typing
from typing import Any, Dict, Iterator

from nbtorchjob.runtime.objects.sources import SourceError, stands_in

_NAMEDTUPLE = ("__new__", "_make", "_replace", "__repr__", "_asdict", "__getnewargs__", "__replace__")
_OPTIONS = ("default", "default_factory", "init", "repr", "hash", "compare", "metadata", "kw_only", "doc")
_WRITES = ("init", "repr", "eq", "order", "unsafe_hash", "frozen")  # options of `dataclass` that add methods
_PROTOCOL = ("__protocol_attrs__", "__callable_proto_members_only__", "__non_callable_proto_members__")
# What the metaclass of enums keeps in a class, slightly different in each Python.
_TABLES = (
    "_member_names_", "_member_map_", "_value2member_map_", "_hashable_values_", "_unhashable_values_",
    "_unhashable_values_map_", "_member_type_", "_value_repr_", "_flag_mask_", "_singles_mask_", "_all_bits_",
    "_inverted_", "_new_member_", "_use_args_", "_iter_member_", "_boundary_", "__new__",
)  # fmt: skip


def methods(cls: type) -> Iterator[types.FunctionType]:
    """Yield the methods of ``cls`` that a class maker generated, which :func:`renew` generates again."""
    own = vars(cls)
    functions = [f for f in map(_function, own.values()) if isinstance(f, types.FunctionType)]
    if "__dataclass_params__" in own:
        for function in functions:
            inner = getattr(function, "__wrapped__", function)  # a repr is wrapped, against recursion
            if isinstance(inner, types.FunctionType) and inner.__code__.co_filename == "<string>":
                yield inner
                yield function
    elif own.get("_is_protocol"):
        for function in functions:
            if function.__module__ == "typing" or function.__globals__ is vars(typing):
                yield function
    elif _is_namedtuple(cls, own):
        for function in functions:
            if str(function.__globals__.get("__name__")).startswith(("collections", "namedtuple_")):
                yield function


def renew(cls: Any, attributes: Dict[str, Any]) -> None:
    """Generate again what another Python generated in ``cls``, which was just given ``attributes``."""
    for name, value in attributes.items():
        if _function(value) is ABSENT:
            type.__delattr__(cls, name)
    absent = [name for name, value in attributes.items() if stands_in(_function(value))]
    if attributes.get("_is_protocol"):
        for name in (*absent, *_PROTOCOL):
            if name in vars(cls):
                type.__delattr__(cls, name)
        typing.Protocol.__init_subclass__.__func__(cls)  # type: ignore[attr-defined]
        if sys.version_info >= (3, 12):
            attrs: Any = typing._get_protocol_attrs(cls)
            cls.__protocol_attrs__ = attrs
            if sys.version_info[:2] == (3, 12):
                methods_only = all(callable(getattr(cls, attr, None)) for attr in attrs)
                cls.__callable_proto_members_only__ = methods_only
        if attributes.get("_is_runtime_protocol"):
            typing.runtime_checkable(cls)
        return
    if "__subclasshook__" in absent and typing.Protocol in cls.__mro__:
        # It implements a protocol: typing gives it a hook of its own, as the inherited one asks the protocol.
        type.__delattr__(cls, "__subclasshook__")
        absent.remove("__subclasshook__")
        typing.Protocol.__init_subclass__.__func__(cls)  # type: ignore[attr-defined]
    if absent and "__dataclass_params__" in attributes:
        for name in absent:
            type.__delattr__(cls, name)
        _renew_dataclass(cls, attributes)
    elif absent and _is_namedtuple(cls, attributes):
        defaults = attributes["_field_defaults"].values()
        fields = attributes["_fields"]
        new_class: Any = collections.namedtuple(cls.__name__, fields, rename=True, defaults=defaults)  # type: ignore[misc]
        for name in _NAMEDTUPLE:
            if name in vars(new_class) and (name in absent or name not in attributes):
                type.__setattr__(cls, name, vars(new_class)[name])


def _renew_dataclass(cls: Any, attributes: Dict[str, Any]) -> None:
    """Have ``dataclass`` generate its methods from the class's own fields, then restore the fields."""
    annotations = attributes.get("__annotations__", {})
    fields = {k: field for k, field in attributes["__dataclass_fields__"].items() if k in annotations}
    before = {name: vars(cls)[name] for name in fields if name in vars(cls)}
    for name, field in fields.items():
        if field._field_type.name != "_FIELD_CLASSVAR":
            type.__setattr__(cls, name, copy.copy(field))
    type.__setattr__(cls, "__annotations__", {name: _annotation(field) for name, field in fields.items()})
    params = attributes["__dataclass_params__"]
    try:
        dataclasses.dataclass(**{name: getattr(params, name) for name in _WRITES})(cls)
    finally:
        for name in fields:
            if name in vars(cls):
                type.__delattr__(cls, name)
        before.update({k: attributes[k] for k in ("__dataclass_fields__", "__dataclass_params__")})
        for name, value in {**before, "__annotations__": annotations}.items():
            type.__setattr__(cls, name, value)


# Names that not every Python has


def _dataclass_getstate(self: Any) -> Any:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _dataclass_setstate(self: Any, state: Any) -> None:
    for field, value in zip(dataclasses.fields(self), state):
        object.__setattr__(self, field.name, value)


ABSENT = object()  # stands for a function that only another Python has
_HERE = {
    "_dataclass_getstate": _dataclass_getstate,
    "_dataclass_setstate": _dataclass_setstate,
}  # Python 3.10
_RENAMED = {
    ("enum", "EnumType"): ("enum", "EnumMeta"),  # Python 3.11
    ("_thread", "lock"): ("threading", "Lock"),  # Python 3.13: before, a function makes them
}
_MOVED = {"pathlib._local": "pathlib"}  # Python 3.13 only


def reduce_name(cls: type) -> Any:
    """Reduce a class by name; if its name differs between Pythons, by the one that works in all of them."""
    own = cls.__module__, cls.__qualname__
    module, name = _RENAMED.get(own, (_MOVED.get(own[0], own[0]), own[1]))
    if (module, name) == own:
        return NotImplemented
    return getattr, (sys.modules[module], name)


def reduce_private(function: Any) -> Any:
    """Reduce a function by name; some private ones that end up in classes don't exist in every Python."""
    if function.__module__ in ("dataclasses", "enum", "typing") and function.__name__.startswith("_"):
        return private, (sys.modules[function.__module__], function.__qualname__)
    return NotImplemented


def private(module: Any, name: str) -> Any:
    """Return a function of ``module`` by name, or its equivalent; ``ABSENT`` if there is neither."""
    return functools.reduce(
        lambda owner, step: getattr(owner, step, _HERE.get(name, ABSENT)), name.split("."), module
    )


def reduce_union(union: Any) -> Any:
    """Reduce ``int | str``."""
    return make_union, union.__args__


def make_union(*types_: Any) -> Any:
    """Make ``int | str``, or before Python 3.10 ``Union[int, str]``."""
    try:
        return functools.reduce(operator.or_, types_)
    except TypeError:
        return typing.Union[types_]


# functools


def is_dispatching(function: Any) -> bool:
    """Whether a function was made by ``singledispatch``."""
    return hasattr(function, "registry") and function.__globals__ is vars(functools)


def make_dispatching(function: Any) -> Any:
    """Make a ``singledispatch`` function around another, which may not be complete yet."""
    return functools.singledispatch(function)


def fill_dispatching(dispatcher: Any, state: Any) -> None:
    """Fill in a dispatcher's implementations and its attributes."""
    function, registry, own = state
    functools.update_wrapper(dispatcher, function)
    for cls, implementation in registry.items():
        dispatcher.register(cls, implementation)
    vars(dispatcher).update(own)


def reduce_dispatched_method(method: Any) -> Any:
    """Reduce a ``singledispatchmethod``."""
    state = dict(method.dispatcher.registry)
    return functools.singledispatchmethod, (method.func,), state, None, None, fill_dispatched_method


def fill_dispatched_method(method: Any, registry: Dict[Any, Any]) -> None:
    """Fill in the implementations that a method dispatches to."""
    for cls, implementation in registry.items():
        method.dispatcher.register(cls, implementation)


def reduce_partialmethod(method: Any) -> Any:
    """Reduce a ``partialmethod``."""
    return make_partialmethod, (method.func, method.args, method.keywords)


def make_partialmethod(function: Any, args: Any, keywords: Dict[str, Any]) -> Any:
    """Make a ``partialmethod``."""
    return functools.partialmethod(function, *args, **keywords)


# Classes


def _function(value: Any) -> Any:
    """Return the function in a class's attribute, also if that is a static or class method."""
    return getattr(value, "__func__", value)


def _is_namedtuple(cls: type, own: Any) -> bool:
    return "_fields" in own and tuple in cls.__bases__


# Dataclasses


def reduce_field(field: Any) -> Any:
    """Reduce a dataclass's field to its options: its attributes differ between Pythons."""
    options = {name: getattr(field, name) for name in _OPTIONS if hasattr(field, name)}
    return make_field, (options, field.name, field.type, field._field_type.name)


def make_field(options: Dict[str, Any], name: str, type_: Any, kind: str) -> Any:
    """Make a dataclass's field; raises ``SourceError`` if this Python doesn't support fields of that kind."""
    parameters = inspect.signature(dataclasses.field).parameters
    if options.get("kw_only") is True and "kw_only" not in parameters:
        raise SourceError(
            "the field %s is keyword-only, which dataclasses support from Python 3.10 on" % name
        )
    field: Any = dataclasses.field(**{key: value for key, value in options.items() if key in parameters})
    field.name, field.type, field._field_type = name, type_, getattr(dataclasses, kind)
    return field


def reduce_params(params: Any) -> Any:
    """Reduce the options that a dataclass was made with."""
    return make_params, ({name: getattr(params, name) for name in params.__slots__},)


def make_params(options: Dict[str, Any]) -> Any:
    """Make the record of the options that a dataclass was made with."""
    params: Any = object.__new__(dataclasses._DataclassParams)  # type: ignore[attr-defined]
    for name in params.__slots__:
        setattr(params, name, options.get(name, name == "match_args"))
    return params


def reduce_sentinel(sentinel: Any) -> Any:
    """Reduce ``dataclasses.MISSING`` or ``KW_ONLY`` by its name: such sentinels are compared by identity."""
    return getattr, (dataclasses, SENTINELS[type(sentinel)])


SENTINELS = {
    type(getattr(dataclasses, name)): name for name in ("MISSING", "KW_ONLY") if hasattr(dataclasses, name)
}


def _annotation(field: Any) -> Any:
    # A string would be looked up in the notebook's module, which doesn't exist yet.
    if field._field_type.name == "_FIELD_CLASSVAR":
        return typing.ClassVar
    if field._field_type.name == "_FIELD_INITVAR" and isinstance(field.type, str):
        return dataclasses.InitVar
    return field.type


# Enums


def reduce_redirect(redirect: Any) -> Any:
    """Reduce an ``enum.property`` (Python 3.11), which finds an enum's member or an attribute of its name."""
    own = dict(vars(redirect))
    return (
        make_redirect,
        (redirect.fget, redirect.fset, redirect.fdel, redirect.__doc__),
        own,
        None,
        None,
        fill_redirect,
    )


def make_redirect(*functions: Any) -> Any:
    """Make an ``enum.property``, or before Python 3.11 its predecessor."""
    return getattr(enum, "property", types.DynamicClassAttribute)(*functions)


def fill_redirect(redirect: Any, own: Dict[str, Any]) -> None:
    """Set the attributes of an ``enum.property``."""
    vars(redirect).update(own)


def reduce_boundary(boundary: Any) -> Any:
    """Reduce an ``enum.FlagBoundary``: what a flag does with bits that it doesn't define."""
    return make_boundary, (boundary.name,)


def make_boundary(name: str) -> Any:
    """Return an ``enum.FlagBoundary`` by its name; None before Python 3.11."""
    return getattr(getattr(enum, "FlagBoundary", None), name, None)


def fill_enum(cls: Any, attributes: Dict[str, Any]) -> Dict[str, Any]:
    """Put the members of an enum from another Python into ``cls``; return its other attributes."""
    members: Dict[str, Any] = attributes["_member_map_"]
    redirects = hasattr(enum, "property")  # since Python 3.11; before, the metaclass finds members itself
    names = [name for name, member in members.items() if member._name_ == name]
    if issubclass(cls, enum.Flag) and redirects:
        names = [name for name in names if _is_bit(members[name]._value_)]
    _set(cls, _member_names_=names, _member_map_=members, _value2member_map_=attributes["_value2member_map_"])
    if issubclass(cls, enum.Flag) and redirects:
        values = [member._value_ for member in members.values()]
        mask = functools.reduce(operator.or_, values, 0)
        bits = functools.reduce(operator.or_, filter(_is_bit, values), 0)
        _set(cls, _flag_mask_=mask, _singles_mask_=bits, _all_bits_=2 ** mask.bit_length() - 1)
        if attributes.get("_boundary_") is not None:
            _set(cls, _boundary_=attributes["_boundary_"])
    if "__new_member__" in attributes and redirects:
        _set(cls, _new_member_=attributes["__new_member__"])
    for index, (name, member) in enumerate(members.items()):
        if redirects:
            vars(member).setdefault("_sort_order_", index)
            # Make ``cls`` find a member by its name, as its metaclass does, even if a base has that name.
            below = [vars(base)[name] for base in cls.__mro__[1:] if name in vars(base)]
            if below:
                functions = [getattr(below[0], attr, None) for attr in ("fget", "fset", "fdel")]
                redirect: Any = make_redirect(*functions)
                redirect.member = member
                redirect.__set_name__(cls, name)
                _set(cls, **{name: redirect})
            else:
                _set(cls, **{name: member})
        tables = vars(cls)
        if type(member._value_).__hash__ is not None:
            tables.get("_hashable_values_", []).append(member._value_)  # Python 3.14
        else:
            tables.get("_unhashable_values_", []).append(member._value_)  # 3.11
            tables.get("_unhashable_values_map_", {}).setdefault(name, []).append(member._value_)
    rest = {}
    for name, value in attributes.items():
        if name in members or name in _TABLES:
            continue
        function = _function(value)
        # The enum metaclass adds methods of Python's own.
        if not (callable(function) and getattr(function, "__module__", None) in (None, "builtins", "enum")):
            rest[name] = value
    return rest


def _set(cls: type, **attributes: Any) -> None:
    for name, value in attributes.items():
        type.__setattr__(cls, name, value)  # not through the metaclass, which forbids it


def _is_bit(value: Any) -> bool:
    return isinstance(value, int) and value > 0 and not value & (value - 1)
