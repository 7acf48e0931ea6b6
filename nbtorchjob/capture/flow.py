"""Which names code has surely set itself, at each of its instructions.

It follows the bytecode's own control flow, so that branches, loops, ``with`` that may swallow what is
raised, ``try``, ``match`` and ``:=`` need no rules of their own. A deleted name counts as set: what it
was before the code ran is gone.
"""

from __future__ import annotations

import dis
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from types import CodeType

_SETS = ("STORE_NAME", "STORE_GLOBAL", "DELETE_NAME", "DELETE_GLOBAL")
_LEAVES = {
    *("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "INTERPRETER_EXIT"),
    *("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE"),
}
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))


class Names:
    """Sets of names as bits of an int: a cell of ten thousand lines may have as many names."""

    def __init__(self) -> None:
        self._bits: dict[str, int] = {}

    def bit(self, name: str) -> int:
        """Give the set of that name alone."""
        return self._bits.setdefault(name, 1 << len(self._bits))


@dataclass
class _Block:
    """Instructions that run one after the other; what raises in them goes to ``handlers``."""

    code: list[dis.Instruction] = field(default_factory=list)
    sets: int = 0
    follows: list[int] = field(default_factory=list)
    handlers: list[int] = field(default_factory=list)
    known: int = -1  # all names, until it is known to be reached


def walk(code: CodeType, names: Names) -> Iterator[tuple[dis.Instruction, int]]:
    """Give each instruction, with the names that ``code`` has surely set before it.

    What can't be reached isn't given.
    """
    blocks = _blocks(code, names)
    _solve(blocks)
    for block in blocks.values():
        known = block.known
        if known < 0:
            continue
        for each in block.code:
            yield each, known
            if each.opname in _SETS:
                known |= names.bit(each.argval)


def _blocks(code: CodeType, names: Names) -> dict[int, _Block]:
    """Give the blocks of ``code`` by the offset that they begin at."""
    listing = list(dis.get_instructions(code))
    # Before 3.11 there is no table: SETUP_FINALLY and the like read as jumps.
    table = getattr(dis.Bytecode(code), "exception_entries", ())
    starts = {each.argval for each in listing if each.opcode in _JUMPS}
    starts.update(offset for entry in table for offset in (entry.start, entry.end, entry.target))
    blocks: dict[int, _Block] = {}
    block, ended, falls = _Block(), True, False
    for each in listing:
        if ended or each.offset in starts:
            if falls:
                block.follows.append(each.offset)
            block = blocks[each.offset] = _Block()
        block.code.append(each)
        if each.opname in _SETS:
            block.sets |= names.bit(each.argval)
        if each.opcode in _JUMPS:
            block.follows.append(each.argval)
        falls = each.opname not in _LEAVES
        ended = each.opcode in _JUMPS or not falls
    offsets = sorted(blocks)
    for entry in table:
        for offset in offsets[bisect_left(offsets, entry.start) : bisect_left(offsets, entry.end)]:
            blocks[offset].handlers.append(entry.target)
    return blocks


def _solve(blocks: dict[int, _Block]) -> None:
    """Find what is known at the beginning of each block, whichever way it is reached."""
    waiting = [min(blocks)]
    blocks[waiting[0]].known = 0
    while waiting:
        block = blocks[heappop(waiting)]
        # It may raise before it has set anything.
        ways = [(each, block.known | block.sets) for each in block.follows]
        ways += [(each, block.known) for each in block.handlers]
        for offset, known in ways:
            target = blocks[offset]
            if target.known & known != target.known:
                target.known &= known
                if offset not in waiting:
                    heappush(waiting, offset)
