"""Which names code is sure to have set, at each of its instructions, and which it is sure to read.

The analysis follows the bytecode's control flow, so that branches, loops, ``with`` that may swallow
exceptions, ``try``, ``match`` and ``:=`` need no rules of their own. A deleted name counts as set: its value
from before the code ran is gone.
"""

from __future__ import annotations

import dis
import functools
import re
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
# Instructions that jump to an exception handler (before Python 3.11), or behind a finished loop.
_SKIPS = re.compile("SETUP_|FOR_ITER")
_ENDS = ("RETURN_VALUE", "RETURN_CONST")


class Names:
    """Sets of names as bits of an int: a cell of ten thousand lines may have that many names."""

    def __init__(self) -> None:
        self._bits: dict[str, int] = {}

    def bit(self, name: str) -> int:
        """Return the set that contains only ``name``."""
        return self._bits.setdefault(name, 1 << len(self._bits))


@dataclass
class _Block:
    """Instructions that run one after the other; exceptions in them go to ``handlers``."""

    code: list[dis.Instruction] = field(default_factory=list)
    sets: int = 0
    follows: list[int] = field(default_factory=list)
    handlers: list[int] = field(default_factory=list)
    start_names: int = -1  # all names, until it is known to be reached


def walk(code: CodeType, names: Names) -> Iterator[tuple[dis.Instruction, int]]:
    """Yield each instruction, with the names that ``code`` is sure to have set before it.

    Instructions that can't be reached aren't yielded.
    """
    blocks = _blocks(code, names)
    # Find the names that are set at the beginning of each block, whichever way it is reached.
    waiting = [min(blocks)]
    blocks[waiting[0]].start_names = 0
    while waiting:
        block = blocks[heappop(waiting)]
        # A block may raise before it has set anything.
        ways = [(at, block.start_names | block.sets) for at in block.follows]
        ways += [(at, block.start_names) for at in block.handlers]
        for offset, bits in ways:
            target = blocks[offset]
            if target.start_names & bits != target.start_names:
                target.start_names &= bits
                if offset not in waiting:
                    heappush(waiting, offset)
    for block in blocks.values():
        bits = block.start_names
        if bits < 0:
            continue
        for instruction in block.code:
            yield instruction, bits
            if instruction.opname in _SETS:
                bits |= names.bit(instruction.argval)


def _blocks(code: CodeType, names: Names) -> dict[int, _Block]:
    """Return the blocks of ``code`` by their start offsets."""
    listing = list(dis.get_instructions(code))
    # Before 3.11 there is no table: SETUP_FINALLY and the like read as jumps.
    table = getattr(dis.Bytecode(code), "exception_entries", ())
    starts = {instruction.argval for instruction in listing if instruction.opcode in _JUMPS}
    starts.update(offset for entry in table for offset in (entry.start, entry.end, entry.target))
    blocks: dict[int, _Block] = {}
    block, ended, falls = _Block(), True, False
    for instruction in listing:
        if ended or instruction.offset in starts:
            if falls:
                block.follows.append(instruction.offset)
            block = blocks[instruction.offset] = _Block()
        block.code.append(instruction)
        if instruction.opname in _SETS:
            block.sets |= names.bit(instruction.argval)
        if instruction.opcode in _JUMPS:
            block.follows.append(instruction.argval)
        falls = instruction.opname not in _LEAVES
        ended = instruction.opcode in _JUMPS or not falls
    offsets = sorted(blocks)
    for entry in table:
        for offset in offsets[bisect_left(offsets, entry.start) : bisect_left(offsets, entry.end)]:
            blocks[offset].handlers.append(entry.target)
    return blocks


def surely(code: CodeType) -> Iterator[dis.Instruction]:
    """Yield the instructions that every path through ``code`` to its end executes.

    Loops are assumed to run at least once, and nothing to raise: code checks for what may be missing where it
    needs it. In code that never returns, raising counts as an end, and so does jumping back in a loop.
    """
    blocks = _blocks(code, Names())
    bits = {offset: 1 << index for index, offset in enumerate(blocks)}
    passed = {min(blocks): 0}  # by block: the blocks on every path to it
    waiting = [*passed]
    while waiting:
        offset = heappop(waiting)
        path_bits = passed[offset] | bits[offset]
        # Where a block leads: into the body of its loop, and from the body's end behind the loop.
        last = blocks[offset].code[-1]
        follows = [
            target
            for target in blocks[offset].follows
            if target != last.argval or not _SKIPS.match(last.opname)
        ]
        loops = {target: blocks[target].code[-1] for target in follows if target <= offset}
        for target in follows:
            loop = loops.get(target)
            way = loop.argval if loop is not None and loop.opname == "FOR_ITER" else target
            previous = passed.get(way, -1)
            if previous & path_bits != previous:
                passed[way] = previous & path_bits
                if way not in waiting:
                    heappush(waiting, way)
    ends = [offset for offset in passed if blocks[offset].code[-1].opname in _ENDS]
    if not ends:
        ways = {offset: blocks[offset].follows for offset in passed}
        ends = [offset for offset, following in ways.items() if not following or min(following) <= offset]
    always = functools.reduce(int.__and__, (passed[offset] | bits[offset] for offset in ends), -1)
    for offset in passed:
        if always & bits[offset]:
            yield from blocks[offset].code
