"""A job's code, including what was swapped in: what it defines, and which parts of it can change (pure).

Only its text is known, so conclusions reach only as far as the text decides: the ranks check the rest
(``runtime/rank/swapped``).
"""

from __future__ import annotations

import ast
import difflib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from itertools import chain, repeat, takewhile
from types import CodeType
from typing import Any, TypeAlias

from nbtorchjob.capture import cells
from nbtorchjob.errors import SwapError
from nbtorchjob.runtime.facts.secret import is_secret
from nbtorchjob.runtime.objects import codenames
from nbtorchjob.runtime.rank.names import FUNCTIONS, loaded_in, loops_in, read_by, set_by, stored_in
from nbtorchjob.runtime.rank.optimizers import VALUES
from nbtorchjob.state import JobState, turns
from nbtorchjob.text.hints import hint

AS_SUBMITTED = "as submitted"
PLAIN = (bool, int, float, str)
_MOST_TEXT = 80  # characters of a value that is offered for change
_POINTS = ("swap_point(", "leaving(", "report(", "Trainer(")  # calls that pass a point, as far as text tells
_ENUMS = {"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"}

Source: TypeAlias = tuple[str, str]  # a label, and the text
Definition: TypeAlias = tuple[str, ast.stmt, str]  # the label of its source, and its text


def of(state: JobState) -> JobCode:
    """Return the code of a job as it is now."""
    own = [(label, text) for label, text in state.info.sources.values()]
    own += [(turn.name, turn.fact.text) for turn in turns.turns(state) if turn.fact.text]
    own += ((f"swap {swap.number}", swap.text) for swap in state.swapped if not swap.back)
    captured = {name: pair[0] for name, pair in (state.info.captured or {}).items()}
    return _of(tuple(own), tuple(captured.items()))


def may_swap(state: JobState) -> bool:
    """Whether a running job is likely to reach a call at which its code can change."""
    texts = [text for _, text in of(state).sources]
    passes = state.spoken.points or any(point in text for text in texts for point in _POINTS)
    return bool(texts and passes)


@lru_cache(maxsize=16)  # a card asks each time it is drawn
def _of(sources: tuple[Source, ...], captured: tuple[tuple[str, str], ...]) -> JobCode:
    return JobCode(sources, dict(captured))


class JobCode:
    """The code of a job, from its ``sources``, newest last, and the values it ``captured``, as text."""

    def __init__(self, sources: Iterable[Source], captured: Mapping[str, str]) -> None:
        self.sources = tuple(sources)
        self._captured = captured
        self._parsed: list[tuple[str, str, ast.Module, CodeType]] = []
        for label, text in self.sources:
            with suppress(SyntaxError, ValueError):
                compiled = compile(text, "<source>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
                self._parsed.append((label, text, ast.parse(text), compiled))

    @property
    def whole(self) -> bool:
        """Whether all of its text is known, and is valid Python."""
        return bool(self.sources) and len(self._parsed) == len(self.sources)

    @cached_property
    def names(self) -> frozenset[str]:
        """The names that it sets or captured."""
        names = {*self._captured}
        for _, _, tree, code in self._parsed:
            names |= {i.argval for i in codenames.instructions(code) if i.opname == "STORE_GLOBAL"}
            for statement in tree.body:
                names |= set_by(statement)
                names |= {name for loop in loops_in(statement) for name in stored_in(loop)}
        return frozenset(names)

    @cached_property
    def definitions(self) -> Mapping[str, Definition]:
        """The newest definition of each name, at the top of a source."""
        newest: dict[str, Definition] = {}
        for label, text, tree, _ in self._parsed:
            for statement, span in zip(tree.body, cells.spans(text, tree.body), strict=True):
                newest.update(dict.fromkeys(set_by(statement), (label, statement, text[span])))
        return newest

    @cached_property
    def rereads(self) -> frozenset[str]:
        """The names that it looks up again in each function call or loop iteration."""
        names: set[str] = set()
        for _, _, tree, code in self._parsed:
            functions = [inner for inner in codenames.nested(code) if inner.co_flags & inspect.CO_OPTIMIZED]
            names.update(*map(codenames.names_read, functions))
            for loop in chain.from_iterable(map(loops_in, tree.body)):
                again = [*loop.body, *([loop.test] if isinstance(loop, ast.While) else [])]
                names.update(*map(loaded_in, again))
        return frozenset(names)

    @cached_property
    def _changes(self) -> frozenset[str]:
        """The names whose values the code itself changes while it runs."""
        changes = set()
        for _, _, tree, code in self._parsed:
            changes |= {i.argval for i in codenames.instructions(code) if i.opname == "STORE_GLOBAL"}
            for statement in tree.body:
                changes |= {name for loop in loops_in(statement) for name in stored_in(loop)}
                if isinstance(statement, ast.AugAssign):
                    changes |= stored_in(statement)
        return frozenset(changes)

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """The known plain values of globals that it reads repeatedly, by name."""
        plain: dict[str, Any] = {}
        for name in sorted(self.rereads - self._changes):
            texts = [self._captured[name]] if name in self._captured else []
            label, statement, _ = self.definitions.get(name, ("", None, ""))
            literal = _assigned(statement, name) if statement is not None else None
            if literal is not None:
                texts = [literal] if _is_swap(label) else [*texts, literal]
            elif statement is not None:
                continue
            values = [_plain(text) for text in texts]
            # If there are two and only the ranks know which is the later one, neither is offered.
            if values and values[0] is not None and values.count(values[0]) == len(values):
                plain[name] = values[0]
        return {name: value for name, value in plain.items() if not (is_secret(name) and str(value) == value)}

    @property
    def swapped(self) -> list[str]:
        """The names whose newest definition is a swap's."""
        return [name for name, (label, *_) in self.definitions.items() if _is_swap(label)]

    def defined(self, name: str) -> tuple[str, str]:
        """Return the text that defines a name, and a short form of it; "" if unknown."""
        label, statement, text = self.definitions.get(name, ("", None, ""))
        if statement is None:
            return (self._captured.get(name, ""),) * 2
        return text, _assigned(statement, name) or (label if _is_swap(label) else AS_SUBMITTED)

    def definitions_in(self, text: str, job: str, *, edited: bool = False) -> str:
        """Return a cell's definitions that differ from this code's, on their lines in the cell.

        A cell that isn't one of the job's is returned whole; ``edited`` says that it is one, with changes.
        The rest of such a cell has to be what the job runs: raises ``SwapError`` for the first line that
        differs.
        """
        tree = ast.parse(text)
        head = ast.get_docstring(tree) is not None
        does = [s for s in tree.body[head:] if not cells.defines(s)]
        dumps = {ast.dump(s) for _, _, source, _ in self._parsed for s in source.body}
        if not (edited or any(ast.dump(s) in dumps for s in does)):
            return text
        for statement in does:
            if ast.dump(statement) not in dumps:
                line = text.split("\n")[statement.lineno - 1].strip()
                raise SwapError(
                    f"line {statement.lineno} of the cell ({line[:60]}) isn't what {job} runs, and does more "
                    "than define something: a swap takes functions, classes, imports, and values of names"
                )
        kept, at, differ = "", 0, False
        for statement, span in zip(tree.body, cells.spans(text, tree.body), strict=True):
            # Whether it differs from all definitions of its names in the newest source that has any
            differs = cells.defines(statement) and any(
                ast.dump(statement) not in self._dumps.get(name, ()) for name in set_by(statement)
            )
            differ |= differs
            if differs or _is_future(statement):  # the latter says how the rest is compiled
                kept += "\n" * text.count("\n", at, span.start) or ("; " if at else "")
                kept, at = kept + text[span], span.stop
        if not differ:
            raise SwapError(f"{job} runs this cell as it is: there is nothing to swap")
        return kept + "\n" * text.count("\n", at)

    @cached_property
    def _dumps(self) -> Mapping[str, set[str]]:
        newest: dict[str, set[str]] = {}
        for _, _, tree, _ in self._parsed:
            dumps: dict[str, set[str]] = {}
            for statement in tree.body:
                for name in set_by(statement):
                    dumps.setdefault(name, set()).add(ast.dump(statement))
            newest.update(dumps)
        return newest

    def refuse(self, text: str, job: str) -> None:
        """Raise ``SwapError`` for the first definition in ``text`` that has no effect or can't be swapped."""
        new = JobCode([("the new code", text)], {})
        statements = new._parsed[0][2].body if new._parsed else []
        for statement in statements:
            for name in sorted(set_by(statement)):
                self._refuse_local(name, new, job)
                if isinstance(statement, ast.Assign | ast.AnnAssign):
                    self._refuse_read_once(name, new, job)
                if name in self.definitions and not isinstance(statement, ast.Import | ast.ImportFrom):
                    _refuse_class(name, self.definitions[name][1], statement, self._is_certain)
        if all(isinstance(statement, ast.Assign | ast.AnnAssign) for statement in statements):
            # Values alone change nothing if no code looks them up.
            names = sorted(new.names)
            for name in names if self.whole else ():
                if name not in self.names and name not in self._looked_up:
                    near = difflib.get_close_matches(name, self.rereads, n=1)
                    meant = f"; did you mean {near[0]}?" if near else ""
                    raise SwapError(f"no code of {job} reads a global {name}{meant}{_optimizers(name, job)}")

    @cached_property
    def _looked_up(self) -> frozenset[str]:
        return frozenset().union(*(codenames.names_read(code) for *_, code in self._parsed))

    def _refuse_local(self, name: str, new: JobCode, job: str) -> None:
        """Refuse a name that is only a local variable in the job's code: a swap wouldn't reach it."""
        if name in self._looked_up | new._looked_up or name in self.definitions:
            return
        for label, *_, whole in (*self._parsed, *new._parsed):
            for code in codenames.nested(whole):
                if code is not whole and name in (*code.co_varnames, *code.co_cellvars):
                    raise SwapError(
                        f"{name} is a local variable of {code.co_name}() ({label}, line "
                        f"{code.co_firstlineno}), which {job} runs: a swap changes globals, so have the code "
                        f"read {name} as one, or swap {code.co_name}(){_optimizers(name, job)}"
                    )

    def _refuse_read_once(self, name: str, new: JobCode, job: str) -> None:
        """Refuse a value that is read only at the top level of a cell, by lines that ran once."""
        if not self.whole or name in self.rereads | new.rereads or name not in self._looked_up:
            return
        for _, _, tree, _ in self._parsed:
            trains = [at for at, statement in enumerate(tree.body) if self._passes_point(statement)]
            if trains and any(name in loaded_in(statement) for statement in tree.body[trains[-1] + 1 :]):
                return  # a line that runs after the training
        for label, _, tree, _ in self._parsed:
            for statement in tree.body:
                if name in loaded_in(statement):
                    raise SwapError(
                        f"{name} is read only on line {statement.lineno} of {label}, which has already "
                        f"run: a new value would change nothing{_optimizers(name, job)}"
                    )

    def _passes_point(self, statement: ast.stmt) -> bool:
        """Whether code can change while a statement runs, by its text and that of what it names."""
        if isinstance(statement, (ast.ClassDef, *FUNCTIONS)):
            return False
        named = [self.definitions[name][2] for name in loaded_in(statement) if name in self.definitions]
        return any(point in text for text in (ast.unparse(statement), *named) for point in _POINTS)

    def _is_certain(self, base: ast.expr) -> bool:
        """Whether a base is written with its class's own name, not with an alias."""
        if not isinstance(base, ast.Name):
            return isinstance(base, ast.Attribute)
        _, statement, _ = self.definitions.get(base.id, ("", None, ""))
        if isinstance(statement, ast.ImportFrom):
            return all(alias.asname is None for alias in statement.names)
        return isinstance(statement, ast.ClassDef)

    def diff(self, text: str) -> str:
        """Return how definitions differ from those of the same names here, as a unified diff."""
        new = JobCode([("", text)], {})
        pieces: list[str] = []
        for name, (_, _, after) in new.definitions.items():
            before = self.definitions.get(name, ("", None, ""))[2]
            pieces += difflib.unified_diff(
                before.splitlines(), after.splitlines(), name, name, lineterm="", n=2
            )
        return "\n".join(pieces)


def as_swapped(text: str, swaps: Sequence[str]) -> str:
    """Return a cell's text with the definitions of swaps in place of its own.

    New ones come first, or after the last statement ahead of the cell's last loop that sets what they read.
    """
    new = ""
    for _, swap, tree, _ in JobCode([("", swap) for swap in swaps], {})._parsed:
        for statement, span in zip(tree.body, cells.spans(swap, tree.body), strict=True):
            names, definition = set_by(statement), swap[span]
            if (replaced := _replaced(text, names, definition)) is not None:
                text = replaced
            elif (replaced := _replaced(new, names, definition)) is not None:
                new = replaced
            elif names:
                new = f"{new}\n{definition}" if new else definition
    if not new:
        return text
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a magic or a shell command: the statements' places can't be told
        return f"{text}\n{new}"
    firsts = [ast.get_docstring(tree) is not None, *(n for n, s in enumerate(tree.body, 1) if _is_future(s))]
    head = max(map(int, firsts))
    last = max((n for n, s in enumerate(tree.body) if any(loops_in(s))), default=len(tree.body))
    after: dict[str, int] = {}  # by name, how many of the cell's statements come before it is set
    for at, statement in enumerate(tree.body[:last], 1):
        after.update(dict.fromkeys(set_by(statement), at))
    places: dict[int, list[str]] = {}
    added = ast.parse(new).body
    called: dict[str, set[str]] = {}  # by a new function or class, what may be read when it is called
    pairs = zip(added, cells.spans(new, added), strict=True)
    for statement, span in sorted(pairs, key=lambda pair: not _is_future(pair[0])):
        # A star import may set any name.
        reads = {"*", *read_by(statement)}
        reads = reads.union(*(called.get(name, ()) for name in reads))
        at = max([head, *(after.get(name, 0) for name in reads)])
        after.update(dict.fromkeys(set_by(statement), at))
        if isinstance(statement, (ast.ClassDef, *FUNCTIONS)):
            inner = loaded_in(statement)
            called |= dict.fromkeys(set_by(statement), inner.union(*map(called.get, inner, repeat(()))))
        places.setdefault(at, []).append(new[span])
    spans = [*cells.spans(text, tree.body)]
    for at, rows in sorted(places.items(), reverse=True):
        anchor = spans[at - 1]
        text = cells.spliced(text, anchor, [text[anchor], *rows]) if at else "\n".join([*rows, text])
    return text


def _replaced(text: str, names: set[str], definition: str) -> str | None:
    """Return a text with its definitions of ``names`` replaced; None if it sets none of them."""
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return None
    places: list[tuple[slice, list[str]]] = []
    earlier: set[str] = set()
    for statement, span in zip(body, cells.spans(text, body), strict=True):
        if not (overlap := set_by(statement) & names):
            continue
        # A statement that does more than define these names stays, and the definition follows it.
        stays = [] if cells.defines(statement) and set_by(statement) <= names else [text[span]]
        again = stays or not earlier or overlap & earlier
        places.append((span, [*stays, definition] if again else []))
        earlier |= overlap
    for span, rows in reversed(places):
        text = cells.spliced(text, span, rows)
    return text if places else None


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _is_swap(label: str) -> bool:
    return label.startswith("swap ")


def _optimizers(name: str, job: str) -> str:
    """Return advice for a name that optimizers use for a value of their own; "" for others."""
    if name not in VALUES:
        return ""
    return f"; {hint('set', job, f'optimizer.{name}=VALUE')} sets its optimizer's {name}"


def _assigned(statement: ast.stmt, name: str) -> str | None:
    """Return the expression that a statement assigns to a name, also in ``a, b = 1, 2``."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return None
    value = statement.value
    for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
        pairs: list[tuple[ast.expr, ast.expr]] = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = [*zip(target.elts, value.elts, strict=False)]
        # From a star on, its place doesn't tell which value a name gets.
        for part, item in takewhile(lambda pair: not any(isinstance(e, ast.Starred) for e in pair), pairs):
            if isinstance(part, ast.Name) and part.id == name:
                return ast.unparse(item)
    return None


def _plain(text: str) -> Any:
    """Return the value of a literal of a plain type; None for anything else."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return value if type(value) in PLAIN and len(str(value)) <= _MOST_TEXT else None


def _refuse_class(name: str, old: ast.stmt, new: ast.stmt, certain: Any) -> None:
    """Refuse a class that can't replace the old one, as ``runtime/rank/swapped`` does, if text shows it."""
    if not isinstance(old, ast.ClassDef):
        return
    other = "give it another name"
    if _ENUMS & {_last(base) for base in old.bases}:
        raise SwapError(f"{name} is an enum, whose members can't be changed: {other}")
    if not isinstance(new, ast.ClassDef):
        raise SwapError(f"{name} is a class, and can't become anything else: {other}")
    before, after = ([base for base in cls.bases if _last(base) != "object"] for cls in (old, new))
    sure = len(before) != len(after) or any(
        _last(was) != _last(now) and certain(was) and certain(now)
        for was, now in zip(before, after, strict=True)
    )
    if sure and not any(isinstance(base, ast.Starred) for base in (*before, *after)):
        bases = [", ".join(map(ast.unparse, some)) or "none" for some in (after, before)]
        raise SwapError(
            f"{name} has other bases now ({bases[0]}, not {bases[1]}), which existing objects can't get: "
            f"{other}"
        )
    if _slots(old) != _slots(new):
        raise SwapError(f"{name} has other __slots__ now, which existing objects can't get: {other}")


def _last(base: ast.expr) -> str:
    return ast.unparse(base).rpartition(".")[2]


def _slots(cls: ast.ClassDef) -> str | None:
    for statement in cls.body:
        if isinstance(statement, ast.Assign) and "__slots__" in set_by(statement):
            with suppress(ValueError):
                slots = ast.literal_eval(statement.value)
                return repr((slots,) if isinstance(slots, str) else tuple(slots))
            return ast.dump(statement.value)
    return None
