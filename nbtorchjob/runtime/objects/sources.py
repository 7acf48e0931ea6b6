"""Code from another Python: compiled from its source, at the same lines.

Bytecode is for one minor version of Python. A pickle holds the bytecode of its functions, and numbers each
code object. If another Python may load the pickle, a *table* comes with it: the statements that define the
functions, with blank lines in between, and for each number, which of the functions in them it is, in the
order of the syntax tree. Both ends find the code of a function in a tree in the same way (:func:`functions`);
the process that makes the table checks that the source compiles to that very bytecode.

Code without a source becomes a function that raises an error when it is called; a table with such code
(``lacking``) is refused before it is sent to a node.
"""

from __future__ import annotations
import __future__

import ast
import dis
import io
import json
import linecache
import pickle
import sys
import threading
import tokenize
import types
import warnings
import weakref
from functools import lru_cache
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

HERE = "%d.%d" % sys.version_info[:2]
home = HERE  # the Python that this process's values go to
ANCHOR = "<cell>"  # the function whose globals are those that a cell reads: it is never called

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_LOAD_CONST = dis.opmap["LOAD_CONST"]
# Generators and coroutines, *args and **kwargs: the values are the same in each Python (inspect.CO_...).
_KINDS = 0x04 | 0x08 | 0x20 | 0x80 | 0x100 | 0x200

_SAME = ("co_name", "co_firstlineno", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_freevars")
_NAMES = ("co_names", "co_varnames", "co_cellvars", "co_freevars")
# Names that Python 3.14 adds to compile `"%s" % x`, `any(... for ...)` and the like.
_ADDED = frozenset(("format", "all", "any", "tuple", "list", "set"))

_loading = threading.local()
_stubs: Any = weakref.WeakKeyDictionary()


class SourceError(Exception):
    """Code from another Python can't be compiled by this one; the message is one line that says why."""


# Functions in a source


@lru_cache(maxsize=64)
def functions(text: str, filename: str, features: Tuple[str, ...] = ()) -> List[Optional[types.CodeType]]:
    """Return the code of each function and lambda in a module's ``text``, in the order of its syntax tree.

    None stands for one that Python leaves out (below ``if 0``). ``features`` are those of ``__future__`` to
    turn on although the text doesn't. Raises ``SyntaxError`` and ``ValueError`` as ``compile`` does.
    """
    flags = _FLAGS
    for name in features:
        flags |= getattr(__future__, name).compiler_flag
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(text, filename)
        real = compile(tree, filename, "exec", flags, True)
        # Again, with a unique name or line for each: functions may be equal or share a line.
        last = text.count("\n") + 2
        nodes = list(_functions(tree))
        for index, node in enumerate(nodes):
            if isinstance(node, ast.Lambda):
                node.lineno, node.end_lineno = last + index, last + index + 1
            else:
                node.name = "<%d>" % index
        marked = compile(tree, filename, "exec", flags, True)
    codes: List[Optional[types.CodeType]] = [None] * len(nodes)
    for mark, code in _pairs(marked, real):
        if mark.co_name == "<lambda>":
            if mark.co_firstlineno >= last:
                codes[mark.co_firstlineno - last] = code
        elif mark.co_name.startswith("<") and mark.co_name[1:-1].isdigit():
            codes[int(mark.co_name[1:-1])] = code
    return codes


def _functions(node: ast.AST) -> Iterator[Any]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _FUNCTIONS):
            yield child
        for inner in _functions(child):
            yield inner


def _pairs(first: types.CodeType, second: types.CodeType) -> Iterator[Tuple[types.CodeType, types.CodeType]]:
    """Yield the code objects that two compilations of one tree load, in pairs."""
    loaded = list(_loaded(first)), list(_loaded(second))
    if len(loaded[0]) == len(loaded[1]):
        for pair in zip(*loaded):
            yield pair
            for inner in _pairs(*pair):
                yield inner


def _loaded(code: types.CodeType) -> Iterator[types.CodeType]:
    above = 0
    for opcode, argument in zip(code.co_code[::2], code.co_code[1::2]):
        argument |= above
        above = argument << 8 if opcode == dis.EXTENDED_ARG else 0
        if opcode == _LOAD_CONST and isinstance(code.co_consts[argument], types.CodeType):
            yield code.co_consts[argument]


# In the process that sends code


class Codes:
    """The code in one pickle, by number."""

    def __init__(self) -> None:
        self._codes: List[types.CodeType] = []
        self._inner: Set[int] = set()  # ids of code that is part of other code
        self._generated: Set[int] = set()  # ids of code that class makers generated, and generate again

    def add(self, code: types.CodeType) -> int:
        """Record code that is pickled; return its number."""
        self._codes.append(code)
        self._inner.update(
            id(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)
        )
        return len(self._codes) - 1

    def add_generated(self, code: types.CodeType) -> None:
        """Record the code of a method that another Python's class makers generate anew (``generated.py``)."""
        self._generated.add(id(code))

    def table(self, *cells: Tuple[str, str]) -> Dict[str, Any]:
        """Return the table as JSON data; ``cells`` are the names and texts of cells that are sent as text."""
        together: Dict[Tuple[str, Tuple[str, ...]], List[int]] = {}
        for number, code in enumerate(self._codes):
            if id(code) not in self._generated:
                features = tuple(
                    name
                    for name in __future__.all_feature_names
                    if code.co_flags & getattr(__future__, name).compiler_flag and name != "nested_scopes"
                )
                together.setdefault((code.co_filename, features), []).append(number)
        files: List[Dict[str, Any]] = []
        places: List[Any] = [None] * len(self._codes)
        for (filename, features), numbers in together.items():
            codes = [self._codes[number] for number in numbers]
            lines = {code.co_firstlineno for code in codes}
            best: Tuple[str, List[Optional[int]]] = "", [None] * len(codes)
            # Since Python 3.12, a method call on a name that the same module imports compiles differently: a
            # script's functions were compiled with the imports, a cell's statements each by itself.
            for text, imports in ((text, imports) for text in _texts(filename) for imports in (False, True)):
                try:
                    less = _only(text, lines, imports)
                    compiled = functions(less, filename, features)
                except (SyntaxError, ValueError, RecursionError):
                    continue
                indices = [
                    next((index for index, other in enumerate(compiled) if other == code), None)
                    for code in codes
                ]
                if indices.count(None) < best[1].count(None):
                    best = less, indices
            text, indices = best
            for number, index in zip(numbers, indices):
                places[number] = None if index is None else [len(files), index]
            if text:
                files.append({"name": filename, "text": text, "features": features})
        files += [{"name": filename, "text": text, "features": ()} for filename, text in cells]
        lacking = {
            "%s (line %d of %s)"
            % (getattr(code, "co_qualname", code.co_name), code.co_firstlineno, code.co_filename)
            for code, place in zip(self._codes, places)
            if place is None
            and (not (id(code) in self._inner or id(code) in self._generated or code.co_name == ANCHOR))
        }
        return {"python": HERE, "files": files, "places": places, "lacking": sorted(lacking)}


def front(table: Dict[str, Any]) -> bytes:
    """Return the bytes to put before a pickle whose code is in ``table``."""
    return ahead(_Front(json.dumps(table)))


def ahead(value: Any, out_of_band: Any = None) -> bytes:
    """Return the pickle of ``value`` to put before another pickle, so that the two load as one."""
    out = io.BytesIO()
    pickler = pickle.Pickler(out, protocol=5, buffer_callback=out_of_band)
    pickler.fast = True  # without a memo: the following pickle uses the same memo numbers
    pickler.dump(value)
    return out.getvalue()[:-1] + pickle.POP


class _Front:
    def __init__(self, text: str) -> None:
        self._text = text

    def __reduce__(self) -> Any:
        return begin, (self._text,)


def _texts(filename: str) -> Iterator[str]:
    lines = linecache.getlines(filename)
    if lines:
        yield "".join(lines)
    try:
        with tokenize.open(filename) as file:
            text = file.read()
    except (OSError, SyntaxError, ValueError):  # no file, or not Python
        return
    if text != "".join(lines):  # it was edited since, and imported again
        yield text


def _only(text: str, numbers: Set[int], imports: bool = False) -> str:
    """Return ``text`` with only the statements at the lines ``numbers``, at their original lines.

    With ``imports``, top-level statements of the module that import something stay, too.
    """
    spans = []
    for statement in ast.parse(text).body:
        if imports:
            defines = isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            if not defines and any(
                isinstance(node, (ast.Import, ast.ImportFrom)) for node in ast.walk(statement)
            ):
                numbers = numbers | {statement.lineno}
        first = min(part.lineno for part in (statement, *getattr(statement, "decorator_list", ())))
        spans.append((first, statement.end_lineno or first))
    kept: Set[int] = set()
    before = -1
    while len(kept) != before:  # statements that share a line with a kept one are kept as well
        before = len(kept)
        for first, last in spans:
            lines = range(first, last + 1)
            if not numbers.isdisjoint(lines) or first in kept or last in kept:
                kept.update(lines)
    numbered = enumerate(text.split("\n"), 1)
    return "\n".join(line if number in kept else "" for number, line in numbered).rstrip() + "\n"


# In the process that loads it


class Missing:
    """Code that isn't available here: its attributes in the other Python, and why it is missing."""

    def __init__(self, described: Dict[str, Any], why: str) -> None:
        self.described = described
        self._why = why

    def function(self, space: Dict[str, Any]) -> Any:
        """Make a function that raises the reason when it is called; :func:`stands_in` recognizes it."""
        name = self.described["co_name"]
        namespace: Dict[str, Any] = {}
        exec("def made(*args, **kwargs):\n    raise RuntimeError(%r)" % self._why, namespace)
        names = namespace["made"].__code__.co_names + tuple(self.described["co_names"])
        code = namespace["made"].__code__.replace(
            co_name=name, co_names=names, co_filename=self.described["co_filename"]
        )
        function = types.FunctionType(code, space)
        _stubs[function] = self._why
        return function


def stands_in(function: Any) -> bool:
    """Whether ``function`` was made in place of one whose code is missing."""
    return isinstance(function, types.FunctionType) and function in _stubs


class _Table:
    def __init__(self, table: Dict[str, Any]) -> None:
        self._python = table["python"]
        self._files = table["files"]
        self._places = table["places"]
        self.left = len(self._places)

    def code(self, number: int, described: Dict[str, Any]) -> Any:
        self.left -= 1
        place = self._places[number]
        if place is None:
            return Missing(described, _without_source(described, self._python))
        at, index = place
        file = self._files[at]
        try:
            compiled = functions(file["text"], file["name"], tuple(file["features"]))[index]
        except (SyntaxError, ValueError) as exc:
            raise SourceError(_refused(file, exc, HERE)) from exc
        if compiled is None or not _alike(described, compiled):
            raise SourceError(
                "%s (line %d of %s) compiles to different code on Python %s than on Python %s"
                % (described["co_name"], described["co_firstlineno"], file["name"], HERE, self._python)
            )
        return compiled


def show(text: str, filename: str) -> None:
    """Make tracebacks, and ``inspect.getsource``, show the lines of a source that lies in no file here."""
    # The lines are those that Python counts: ``str.splitlines`` would end some at a form feed, too.
    lines = io.StringIO(text, newline=None).readlines()
    linecache.cache[filename] = (len(text), None, lines, filename)


def begin(text: str) -> None:
    """Register the table of the pickle that this thread is loading."""
    table = json.loads(text)
    for file in table["files"]:
        if file["name"] not in linecache.cache:
            show(file["text"], file["name"])
    if table["python"] != HERE and table["places"]:
        _loading.__dict__.setdefault("tables", []).append(_Table(table))


def forget() -> None:
    """Forget the tables of pickles that this thread failed to load."""
    _loading.__dict__.clear()


def code(python: str, number: int, described: Dict[str, Any]) -> Any:
    """Return the code with that number in the pickle that is being loaded; ``Missing`` if it has no source.

    ``described`` are its attributes in ``python``. Raises ``SourceError`` if its source gives other code.
    """
    tables = _loading.__dict__.get("tables")
    if not tables:
        return Missing(described, _without_source(described, python))
    loaded = tables[-1].code(number, described)
    if not tables[-1].left:  # each code is requested once, so this was the last
        tables.pop()
    return loaded


def check(table: Dict[str, Any], python: str = HERE) -> None:
    """Raise ``SourceError`` if ``python`` can't compile the code of ``table``.

    For a Python other than this one, only syntax that it lacks is detected, not all that it refuses.
    """
    names = table["lacking"]
    if names:
        more = " and %d more" % (len(names) - 3) if len(names) > 3 else ""
        have = "has" if len(names) == 1 else "have"
        raise SourceError(
            "%s%s %s no source that another Python could compile" % (", ".join(names[:3]), more, have)
        )
    major, minor = map(int, python.split("."))
    for file in table["files"]:
        try:
            if python == HERE:
                functions(file["text"], file["name"], tuple(file["features"]))
            else:
                ast.parse(file["text"], file["name"], feature_version=(major, minor))
        except (SyntaxError, ValueError) as exc:
            raise SourceError(_refused(file, exc, python)) from exc


def _refused(file: Dict[str, Any], exc: Exception, python: str) -> str:
    line = getattr(exc, "lineno", None) or 0
    lines = file["text"].split("\n")
    shown = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    return "line %d of %s isn't Python %s's: %s%s" % (
        line,
        file["name"],
        python,
        getattr(exc, "msg", exc),
        ": %s" % shown if shown else "",
    )


def _without_source(described: Dict[str, Any], python: str) -> str:
    return "%s (line %d of %s) is Python %s's bytecode, and has no source that Python %s could compile" % (
        described.get("co_qualname") or described["co_name"],
        described["co_firstlineno"],
        described["co_filename"],
        python,
        HERE,
    )


def _alike(described: Dict[str, Any], code: types.CodeType) -> bool:
    """Whether another Python's code and this Python's have the same place, parameters and names."""
    if any(described[name] != getattr(code, name) for name in _SAME):
        return False
    many = code.co_argcount + code.co_kwonlyargcount
    if described["co_varnames"][:many] != code.co_varnames[:many]:
        return False
    other_kind = (described["co_flags"] ^ code.co_flags) & _KINDS
    return not other_kind and _names(described) == _names(code)


def _names(code: Any) -> Set[str]:
    """Return the names that code and its nested code use, except those that some Pythons' compilers add."""
    if isinstance(code, Missing):
        code = code.described
    if not isinstance(code, dict):
        code = {name: getattr(code, name) for name in (*_NAMES, "co_consts")}
    names = {name for table in _NAMES for name in code[table]}
    for constant in code["co_consts"]:
        if isinstance(constant, (Missing, types.CodeType)):
            names |= _names(constant)
    return {name for name in names if not name.startswith((".", "__")) and name not in _ADDED}
