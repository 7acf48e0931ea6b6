"""A cell's text, or a function with its arguments, becomes a call that can travel.

A cell travels as text, with the notebook's variables that it reads. These are the globals of one
small function that is pickled along: cloudpickle lets all functions of one pickle that shared their
globals share them again, so on a rank the cell runs in the very namespace that the notebook's
functions see. The notebook itself is never changed.
"""

from __future__ import annotations
import __future__

import ast
import sys
import time
import traceback
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from types import CodeType, FunctionType, MappingProxyType
from typing import Any

from nbtorchjob.capture import arguments, cells, imported, modules, patches, pickling, report
from nbtorchjob.capture.cells import lookup
from nbtorchjob.capture.cells.lookup import NOTHING, RankNames
from nbtorchjob.capture.model import NO_ITEMS, Call, Part
from nbtorchjob.capture.modules import Imports
from nbtorchjob.errors import CaptureError
from nbtorchjob.machine.folders import working
from nbtorchjob.runtime.objects import codenames, importable
from nbtorchjob.runtime.objects.sources import ANCHOR
from nbtorchjob.runtime.rank import carried
from nbtorchjob.text.words import clip

_LABEL = 60


def from_cell(
    text: str,
    namespace: dict[str, Any],
    *,
    args: Mapping[str, str] = NO_ITEMS,
    argv: Iterable[str] = (),
    filename: str = "<torchjob cell>",
    root: Path | None = None,
    former: Container[str] = (),
    rank_names: RankNames = NOTHING,
    run_values: Mapping[str, Any] = NO_ITEMS,
    swaps: bool = False,
) -> Call:
    """Capture the cell ``text`` below its magic's line, with what it reads from ``namespace``.

    A cell that only defines things calls its last function, with ``args`` (texts by parameter) and, for a
    parameter without a default, the notebook's variable of its name. ``argv`` becomes the cell's
    ``sys.argv``, ``root`` is the folder whose modules travel, and ``former`` are the names that former cells
    set on their ranks. ``rank_names``, which a lab's ranks have, aren't taken along; nor are the values that
    differ between the runs of a group (``run_values`` has the first run's). A cell that ``swaps`` only
    defines names, and calls nothing. Raises ``CaptureError``, and ``SyntaxError`` as Python does.
    """
    # A namespace without a name stands for a notebook: ranks take its definitions for their own.
    namespace = namespace if "__name__" in namespace else {"__name__": "__main__", **namespace}
    # The magic is line 1, so that tracebacks number lines as the notebook does.
    cell = cells.parse(text if swaps else "\n" + text, filename, _future_flags(namespace))
    if swaps:
        cells.check_defines(cell)
        cell = replace(cell, entry=None)
    if run_values:
        arguments.check_apart(run_values, args, "--arg")
        entry = arguments.names(cell.entry) if cell.entry is not None else []
        arguments.check_read(
            run_values,
            lookup.reached([*(read.name for read in cell.reads), *cell.texts, *entry], namespace),
            cell.sets,
            "the cell",
        )
        rank_names = RankNames(frozenset(run_values))
    names, notes = lookup.captured(cell, namespace, former, rank_names)
    stops = _stops(cell, names, filename)
    kwargs: dict[str, Any] = {}
    if cell.entry is not None:
        kwargs = arguments.bind(cell.entry, args, namespace, rank_names.names)
    elif args:
        raise CaptureError(
            f"--arg {next(iter(args))}: this cell isn't a function: it reads the notebook's "
            "variables directly, so set it in the notebook"
        )
    call: dict[str, Any] = {
        "cell": cell.text,
        "filename": filename,
        "flags": _future_flags(namespace),
        "entry": cell.entry and cell.entry.name,
        "kwargs": kwargs,
        "argv": ["cell", *argv],
    }
    if cell.entry is not None and rank_names.names:
        takes = arguments.names(cell.entry) if run_values else arguments.required(cell.entry)
        call["theirs"] = sorted(rank_names.names & set(takes) - kwargs.keys())
    assignments = ", ".join(
        f"{name}={_brief(name, kwargs[name]) if report.is_secret(name, kwargs[name]) else text}"
        for name, text in args.items()
    )
    label = f"{cell.entry.name}({assignments})" if cell.entry else "cell"
    imports = cell.imports | arguments.modules(run_values) if run_values else cell.imports

    def take(names: list[str]) -> Call:
        call["namespace"] = _anchor(names, cell.attributes, namespace)
        objects = {name: namespace[name] for name in names} | kwargs | dict(run_values)
        return _take(call, objects, label, filename, imports, root, namespace, rank_names, (cell.text,))

    notes += dict.fromkeys(lookup.computed(cell.code, "the cell"))
    stays: list[str] = []
    try:
        capture = take(names)
    except CaptureError:
        # The cell may have run here before: a name that it sets is needed only if it reads the name first.
        unsure = cell.sets | cell.texts
        stays = [name for name in names if name in unsure and pickling.fails(namespace[name])]
        if not stays:
            raise
        capture = take([name for name in names if name not in stays])
    notes += (f"{name}: it can't be taken along, so the cell has to set it" for name in stays)
    return replace(
        capture,
        sources=MappingProxyType({**capture.sources, filename: cell.text}),
        notes=(*capture.notes, *notes),
        sets=cell.sets,
        gives=cell.gives,
        plain=cell.plain and "print" not in names,
        text=cell.text,
        arguments=arguments.as_line(args, [*argv]),
        stops=stops or capture.stops,
        parameters=frozenset(run_values),
    )


def from_cells(
    parts: Sequence[Part], namespace: dict[str, Any], label: str, *, root: Path | None = None
) -> Call:
    """Capture cells that run one after the other in one namespace; the value is the last one's.

    A name that one cell sets isn't taken from the notebook for later cells. Raises as :func:`from_cell` does.
    """
    namespace = namespace if "__name__" in namespace else {"__name__": "__main__", **namespace}
    flags = _future_flags(namespace)
    parsed = [cells.parse(part.text, part.filename, flags) for part in parts]
    names: dict[str, None] = {}
    notes: list[str] = []
    before: set[str] = set()
    calls: list[dict[str, Any]] = []
    objects: dict[str, Any] = {}
    for part, cell in zip(parts, parsed, strict=True):
        read, cell_notes = lookup.captured(cell, namespace, (), RankNames(frozenset(before)))
        names.update(dict.fromkeys(read))
        notes += cell_notes
        kwargs: dict[str, Any] = {}
        rank_names: list[str] = []
        if cell.entry is not None:
            kwargs = arguments.bind(cell.entry, part.args, namespace, before)
            rank_names = sorted(before & set(arguments.required(cell.entry)) - kwargs.keys())
        objects |= kwargs
        calls.append(
            {
                "cell": cell.text,
                "filename": part.filename,
                "flags": flags,
                "entry": cell.entry and cell.entry.name,
                "kwargs": kwargs,
                "theirs": rank_names,
                "argv": ["cell", *part.argv],
                "ranks": part.ranks,
            }
        )
        before |= cell.sets
    attributes = {name for cell in parsed for name in cell.attributes}
    imports = {name for cell in parsed for name in cell.imports}
    last = parts[-1]
    call = {"cells": calls, "argv": ["cell"], "namespace": _anchor(list(names), attributes, namespace)}
    objects |= {name: namespace[name] for name in names}
    texts = tuple(cell.text for cell in parsed)
    capture = _take(call, objects, label, last.filename, imports, root, namespace, texts=texts)
    return replace(
        capture,
        sources=MappingProxyType({**capture.sources, **{part.filename: part.text for part in parts}}),
        notes=(*capture.notes, *dict.fromkeys(notes)),
        sets=frozenset(before),
        gives=parsed[-1].gives,
        plain=parsed[-1].plain and "print" not in {*names, *before},
        stops=capture.stops or any(_stops(cell, [*names, *before], last.filename) for cell in parsed),
    )


def _stops(cell: cells.Cell, names: Iterable[str], filename: str) -> bool:
    """Whether a cell stops in the debugger by itself; ``names`` shadow Python's builtins."""
    code = compile(ast.parse(cell.text), filename, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
    return "breakpoint" not in {*names, *cell.sets} and cells.stops(code)


def asked_for(text: str, namespace: Mapping[str, Any], filename: str = "<torchjob cell>") -> list[str]:
    """Return the names that a cell may look up: its own, and those of the notebook's code that it names.

    Raises as :func:`from_cell` does.
    """
    cell = cells.parse("\n" + text, filename, _future_flags(dict(namespace)))
    entry = arguments.required(cell.entry) if cell.entry is not None else []
    return lookup.reached([*(read.name for read in cell.reads), *cell.texts, *entry], namespace)


def asked_for_call(text: str, namespace: dict[str, Any]) -> list[str]:
    """Return the names that a call's code may look up, and those in its text."""
    try:
        code = compile(text.strip(), _EXPRESSION, "eval", 0, True)
    except (SyntaxError, ValueError):  # refused when the call is captured
        return []
    named = [name for name in codenames.names_read(code) if name in namespace]
    return lookup.reached(
        [name for read in named for name in lookup.looked_up(namespace[read], namespace)], namespace
    )


def from_function(
    fn: Callable[..., Any],
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] = MappingProxyType({}),
    *,
    root: Path | None = None,
    rank_names: RankNames = NOTHING,
    run_values: Mapping[str, Any] = NO_ITEMS,
) -> Call:
    """Capture a call of ``fn``, which may be any callable; ``run_values`` are those of a group's first run.

    Raises ``CaptureError`` for what isn't callable or can't travel.
    """
    if not callable(fn):
        raise CaptureError(f"{fn!r} can't be called: give a function, then its arguments")
    arguments.check_apart(run_values, kwargs, "the call")
    args, kwargs = tuple(args), {**kwargs, **run_values}
    if run_values:
        arguments.check_taken(fn, args, kwargs)
    parameters = {f"args[{i}]": name for i, name in enumerate(arguments.positional(fn, len(args)))}
    positional = {f"args[{i}]": arg for i, arg in enumerate(args)}
    words = [_brief(parameters.get(key, key), value) for key, value in positional.items()]
    words += [f"{name}={_brief(name, value)}" for name, value in kwargs.items()]
    objects = {_name(fn): fn, **positional, **kwargs}
    inner: Any = getattr(fn, "func", fn)  # a partial's
    code = getattr(inner, "__code__", None)
    code = code if isinstance(code, CodeType) else None
    space: dict[str, Any] = getattr(inner, "__globals__", {})
    capture = _take(
        {"function": fn, "args": args, "kwargs": kwargs, "argv": [_name(fn)]},
        objects,
        f"{_name(fn)}({', '.join(words)})",
        code.co_filename if code is not None else "",
        (),
        root,
        space if space.get("__name__") == "__main__" else vars(sys.modules["__main__"]),
        rank_names,
        parameters=parameters,
    )
    return replace(capture, imports=replace(capture.imports, code=code), parameters=frozenset(run_values))


_EXPRESSION = "<%torchjob run>"  # the file name of its code
_ONE_CALL = "write one call, as in train(model, lr=0.1), with any options before it"


def from_expression(
    text: str,
    namespace: dict[str, Any],
    *,
    root: Path | None = None,
    rank_names: RankNames = NOTHING,
    run_values: Mapping[str, Any] = NO_ITEMS,
) -> Call:
    """Capture ``f(x, lr=0.1)``: the function and its arguments are evaluated in ``namespace`` here.

    Raises ``CaptureError`` for anything but one call, and for a call whose parts can't be evaluated here.
    Exceptions raised inside the functions that these parts call propagate.
    """
    text = text.strip()
    try:
        call = ast.parse(text, _EXPRESSION, "eval").body
    except SyntaxError as exc:
        raise CaptureError(f"{text!r} isn't Python ({exc.msg}): {_ONE_CALL}") from exc
    if not isinstance(call, ast.Call):
        raise CaptureError(f"{text!r} isn't a call: {_ONE_CALL}")
    keys: list[ast.expr | None]
    keys = [ast.Constant(word.arg) if word.arg else None for word in call.keywords]
    parts = [
        call.func,
        ast.Tuple(call.args, ast.Load()),
        ast.Dict(keys, [word.value for word in call.keywords]),
    ]
    tree = ast.fix_missing_locations(ast.Expression(ast.Tuple(parts, ast.Load())))
    code = compile(tree, _EXPRESSION, "eval", _future_flags(namespace), True)
    try:
        fn, args, kwargs = eval(code, dict(namespace))  # a copy: a walrus must not set variables
    except Exception as exc:
        *_, (last, _) = traceback.walk_tb(exc.__traceback__)
        if last.f_code.co_filename != _EXPRESSION:  # the traceback shows where
            raise
        raise CaptureError(f"{text}: {type(exc).__name__}: {exc}") from exc
    capture = from_function(fn, args, kwargs, root=root, rank_names=rank_names, run_values=run_values)
    named = [*zip(arguments.positional(fn, len(args)), args, strict=False), *kwargs.items()]
    texts = {node.value for node in ast.walk(call) if isinstance(node, ast.Constant)}
    if any(type(v) in (str, bytes) and v in texts and report.is_secret(name, v) for name, v in named):
        return capture  # its label hides the secret that the text spells out
    return replace(capture, label=clip(" ".join(text.split()), _LABEL))


def ships_line(call: Call) -> str:
    """Describe in one line what ``call`` takes along: ``ships train_one, X (ndarray 1797x64 float32, …)``."""
    return report.line(call.ships, call.files)


def captured(call: Call) -> dict[str, tuple[str, str]]:
    """Return the data and local modules that ``call`` takes along: by name, a description and the digest."""
    return report.captured(call.ships, call.files)


def _take(
    call: dict[str, Any],
    objects: dict[str, Any],
    label: str,
    filename: str,
    imports: Iterable[str],
    root: Path | None,
    namespace: Mapping[str, Any],
    rank_names: RankNames = NOTHING,
    texts: tuple[str, ...] = (),
    parameters: Mapping[str, str] = NO_ITEMS,
) -> Call:
    began = time.time()
    objects = {**objects, **rank_names.push}
    call["logging"], handlers = pickling.logging_setup()
    call["carried"] = carried.changed()
    try:
        pickled = pickling.dump(call, namespace, rank_names.names, rank_names.push)
        own_modules = _made_by_hand({*pickled.seen.modules, *imports}, pickled.seen.pickled_modules)
        if own_modules:  # ranks find these by name once they are loaded
            objects |= own_modules
            pickled = pickling.dump(
                {**call, "modules": [*own_modules.values()]}, namespace, rank_names.names, rank_names.push
            )
    except CaptureError:
        raise
    except Exception as exc:  # whatever an object's own code raises while it is pickled
        raise pickling.explain(objects, exc) from exc
    folder = root or working()
    named = frozenset((*pickled.seen.modules, *imports))
    paths, left = modules.local_paths(named, folder)
    values = {**pickled.seen.globals, **objects}
    files = modules.read(paths, folder)
    whole = len(pickled.data) + sum(view.nbytes for view in pickled.buffers)
    return Call(
        label=clip(" ".join(label.split()), _LABEL),
        pickle=pickled.data,
        buffers=pickled.buffers,
        ships=report.ships(values, whole, pickled.seen.sources, parameters),
        files=files,
        sources=MappingProxyType(pickled.seen.sources),
        filename=filename,
        notes=(
            *pickled.seen.notes(values),
            *dict.fromkeys(
                note for code in pickled.seen.codes for note in lookup.computed(code, f"{code.co_name}()")
            ),
            *imported.differences(paths),
            *imported.copies(paths, values, (*texts, *pickled.seen.sources.values())),
            *patches.patched(named, values),
            *left,
            *(handlers if pickling.uses_logging(values, imports) else ()),
        ),
        began=began,
        stops=pickled.seen.stops or any(cells.file_stops(file.data) for file in files),
        imports=Imports(frozenset(pickled.seen.surely), named, texts),
        codes=tuple(pickled.seen.codes),
        code=pickled.seen.code,
        lays=bool(call["carried"] or call["logging"]),
        of_a_process=report.of_a_process(values, parameters),
        paths={name: value for name, value in values.items() if isinstance(value, str | PurePath)},
    )


def _made_by_hand(names: Iterable[str], pickled_modules: Iterable[Any]) -> dict[str, Any]:
    """Return the modules that the notebook put into ``sys.modules`` as ``names`` and that weren't pickled."""
    ids = {id(module) for module in pickled_modules}
    candidates = {name: sys.modules[name] for name in sorted(names) if name in sys.modules}
    return {
        name: module
        for name, module in candidates.items()
        if id(module) not in ids and name != "__main__" and importable.made_by_hand(name)
    }


def _anchor(names: list[str], attributes: Iterable[str], namespace: dict[str, Any]) -> FunctionType:
    """Make a function whose globals, as cloudpickle sees them, are ``names`` of ``namespace``.

    With ``attributes`` among its names cloudpickle also imports ``a.b`` where the cell uses it.
    """
    code: CodeType = eval(f"lambda: [{', '.join(names)}]").__code__
    code = code.replace(co_name=ANCHOR, co_names=(*code.co_names, *sorted(attributes)))
    return FunctionType(code, namespace, ANCHOR)


def _future_flags(namespace: dict[str, Any]) -> int:
    """Return the compiler flags of the ``__future__`` imports that earlier cells made."""
    features = [(name, getattr(__future__, name)) for name in __future__.all_feature_names]
    imported = (f for name, f in features if name in namespace and namespace[name] is f)
    return sum(feature.compiler_flag for feature in imported)


def _name(fn: Any) -> str:
    inner = getattr(fn, "func", fn)  # a partial's
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return str(name).rpartition("<locals>.")[2]


def _brief(name: str, value: Any) -> str:
    plain = value is None or type(value) in (bool, int, float, str)
    plain = plain and not report.is_secret(name, value)
    return repr(value) if plain else report.type_name(value).partition(" ")[0]
