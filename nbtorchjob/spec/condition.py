"""The conditions of ``--stop-when``: ``epoch >= 3 and loss > 2 * best_loss``.

Conditions have a grammar of their own, so that none, typed or recorded with a job, can run code. In order of
increasing precedence: ``or``, ``and``, ``not``; comparisons, chained as in Python; ``+ -``; ``* /``; a sign;
then numbers, names and parentheses. A name is a metric as passed to ``report()``; with ``best_`` or
``median_`` in front it is the group's; in backticks it is a metric, whatever characters it has.

Comparisons with values that aren't known yet are neither true nor false: a condition with one holds only if
the rest decides it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias, TypeVar

from nbtorchjob.errors import SpecError
from nbtorchjob.frozen import FrozenDataclass

V = TypeVar("V")

OWN, BEST, MEDIAN = "", "best", "median"

_MOST, _DEEPEST = (
    500,
    50,
)  # characters; nested parentheses and signs, each of which takes some of Python's stack
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[^\W\d]\w*)|`(?P<quoted>[^`]+)`"
    r"|(?P<sign><=|>=|==|!=|\*\*|//|&&|\|\||\S))"
)
_COMPARED: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_SUMS: Mapping[str, Callable[[float, float], float]] = {"+": operator.add, "-": operator.sub}
_PRODUCTS: Mapping[str, Callable[[float, float], float]] = {"*": operator.mul, "/": operator.truediv}
_INSTEAD = {"=": "==", "&": "and", "&&": "and", "|": "or", "||": "or", "!": "not", "~": "not"}
_WORDS = ("and", "or", "not")


class Name(NamedTuple):
    """A metric of the run (``OWN``), or of the group: the ``BEST`` one, or the ``MEDIAN``."""

    of: str
    metric: str

    def __str__(self) -> str:
        return f"{self.of}_{self.metric}" if self.of else self.metric


LookUp: TypeAlias = Callable[[Name], "float | None"]
_Number: TypeAlias = Callable[[LookUp], "float | None"]
_Truth: TypeAlias = Callable[[LookUp], "bool | None"]


class Condition(FrozenDataclass):
    """A parsed condition, and the names in it."""

    text: str
    names: frozenset[Name]
    _truth: _Truth

    def holds(self, look_up: LookUp) -> bool:
        """Whether the condition is true for these values of its names; None is an unknown value."""
        return self._truth(look_up) is True


def parse(text: str, field: str = "stop_when") -> Condition:
    """Parse a condition; raises ``SpecError``, which says what is wrong, and where."""
    return _Parser(text, field).condition()


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Parser:
    def __init__(self, text: str, field: str) -> None:
        self._text, self._field = text, field
        self._names: set[Name] = set()
        self._deep = 0
        if not isinstance(text, str) or not text.strip():
            raise self._error("it is empty")
        if len(text) > _MOST:
            raise self._error(f"it has {len(text):,} characters, at most {_MOST:,}")
        scanned: list[_Token] = []
        at, end = 0, len(self._text.rstrip())
        while at < end:
            token = _TOKEN.match(self._text, at)
            assert token is not None
            assert token.lastgroup is not None
            scanned.append(
                _Token(token.lastgroup, token[token.lastgroup], token.end() - len(token[0].lstrip()))
            )
            at = token.end()
        scanned.append(_Token("end", "", end))
        self._tokens = scanned
        self._next = 0

    def condition(self) -> Condition:
        result = self._or()
        if self._token.kind != "end":
            raise self._unexpected("an operator, or the end")
        return Condition(self._text, frozenset(self._names), self._truth(result))

    # In order of increasing precedence. Each returns a truth or a number, and where it began.

    def _or(self) -> _Part:
        return self._joined("or", self._and, decisive=True)

    def _and(self) -> _Part:
        return self._joined("and", self._not, decisive=False)

    def _joined(self, word: str, part: Callable[[], _Part], decisive: bool) -> _Part:
        result = part()
        while self._takes(word):
            result = _Part(result.at, truth=_combined(self._truth(result), self._truth(part()), decisive))
        return result

    def _not(self) -> _Part:
        at = self._token.at
        if not self._takes("not"):
            return self._comparison()
        truth = self._truth(self._deeper(self._not))
        return _Part(at, truth=lambda look_up: _not(truth(look_up)))

    def _comparison(self) -> _Part:
        first = self._sum()
        left, truth = first, None
        while self._token.text in _COMPARED and self._token.kind == "sign":
            compare = _COMPARED[self._take().text]
            right = self._sum()
            comparison = _applied(compare, self._number(left), self._number(right))
            truth = comparison if truth is None else _combined(truth, comparison, decisive=False)
            left = right
        return first if truth is None else _Part(first.at, truth=truth)

    def _sum(self) -> _Part:
        return self._computed(_SUMS, self._product)

    def _product(self) -> _Part:
        return self._computed(_PRODUCTS, self._signed)

    def _computed(
        self, signs: Mapping[str, Callable[[float, float], float]], part: Callable[[], _Part]
    ) -> _Part:
        result = part()
        while self._token.kind == "sign" and self._token.text in signs:
            compute = signs[self._take().text]
            result = _Part(result.at, number=_applied(compute, self._number(result), self._number(part())))
        return result

    def _signed(self) -> _Part:
        at = self._token.at
        if self._takes("+"):
            return _Part(at, number=self._number(self._deeper(self._signed)))
        if self._takes("-"):
            number = self._number(self._deeper(self._signed))
            return _Part(at, number=_applied(lambda zero, x: zero - x, lambda _: 0.0, number))
        token = self._token
        if token.kind == "number":
            value = float(self._take().text)
            return _Part(token.at, number=lambda _: value)
        if token.kind == "quoted" or (token.kind == "name" and token.text not in _WORDS):
            of, _, metric = self._take().text.partition("_")
            grouped = token.kind == "name" and of in (BEST, MEDIAN) and metric
            name = Name(of, metric) if grouped else Name(OWN, token.text)
            self._names.add(name)
            return _Part(token.at, number=lambda look_up: look_up(name))
        if not self._takes("("):
            raise self._unexpected("a number, a metric's name or '('")
        result = self._deeper(self._or)
        if not self._takes(")"):
            raise self._unexpected(f"')' for the '(' at character {token.at + 1}")
        return result

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _takes(self, text: str) -> bool:
        """Take the word or sign ``text`` if it comes next; return whether it did."""
        is_next = self._token.text == text and self._token.kind in ("sign", "name")
        self._next += is_next
        return is_next

    def _deeper(self, part: Callable[[], _Part]) -> _Part:
        self._deep += 1
        if self._deep > _DEEPEST:
            raise self._error(f"more than {_DEEPEST} nested parentheses", self._token.at)
        result = part()
        self._deep -= 1
        return result

    def _truth(self, part: _Part) -> _Truth:
        if part.truth is None:
            raise self._error("a number, where a comparison is needed", part.at)
        return part.truth

    def _number(self, part: _Part) -> _Number:
        if part.number is None:
            raise self._error("true or false, where a number is needed", part.at)
        return part.number

    def _unexpected(self, expected: str) -> SpecError:
        token = self._token
        if token.kind == "end":
            return self._error(f"it ends where {expected} is expected")
        if token.text in _INSTEAD and token.kind == "sign":
            return self._error(f"{token.text!r} is written {_INSTEAD[token.text]!r}", token.at)
        return self._error(f"{token.text!r}, where {expected} is expected", token.at)

    def _error(self, problem: str, at: int | None = None) -> SpecError:
        where = "" if at is None else f"at character {at + 1}: "
        allowed = f"a condition, as 'loss > 2 * best_loss' ({where}{problem})"
        return SpecError(self._field, str(self._text)[:_MOST], allowed)


class _Part(FrozenDataclass):
    """A parsed part that begins at character ``at``: a truth, or a number."""

    at: int
    truth: _Truth | None = None
    number: _Number | None = None


def _applied(do: Callable[[float, float], V], left: _Number, right: _Number) -> Callable[[LookUp], V | None]:
    def run(look_up: LookUp) -> V | None:
        a, b = left(look_up), right(look_up)
        try:
            return None if a is None or b is None else do(a, b)
        except ZeroDivisionError:
            return None

    return run


def _combined(left: _Truth, right: _Truth, decisive: bool) -> _Truth:
    """Combine two truths: a ``decisive`` one (True for "or", False for "and") decides alone."""

    def run(look_up: LookUp) -> bool | None:
        sides = (left(look_up), right(look_up))
        return decisive if decisive in sides else None if None in sides else not decisive

    return run


def _not(truth: bool | None) -> bool | None:
    return None if truth is None else not truth
