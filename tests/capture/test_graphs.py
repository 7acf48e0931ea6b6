"""Object graphs with sharing and cycles are the same at the other end."""

import pickle
import sys
import types

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtorchjob.capture import pickling
from tests.capture.portrait import portrait

_main = types.ModuleType("__main__")
exec(
    """
class Thing: pass
class Slot: __slots__ = ("inner", "__dict__")
def closures(value):
    def put(new):
        nonlocal value
        value = new
    return put, (lambda: value)
def method(value):
    def f(self=value): return f, value
    return f
""",
    vars(_main),
)


def _made(kind, parts):
    """Make one object of the graph out of others."""
    if kind in ("list", "tuple", "cycle"):
        items = parts if kind != "tuple" else tuple(parts)
        return [*items, items] if kind != "cycle" else parts
    if kind == "dict":
        return dict(enumerate(parts))
    if kind in ("Thing", "Slot"):
        thing = getattr(_main, kind)()
        thing.inner = parts
        thing.first = parts[0] if parts else None
        return thing
    if kind == "closures":
        return list(_main.closures(parts))
    if kind == "method":
        return _main.method(parts)
    base = torch.arange(12.0).reshape(3, 4)
    return {"view": [base, base[1:, ::2], base.t()], "array": [base.numpy(), base.numpy()[::-1], parts]}[kind]


_KINDS = st.sampled_from(
    ["list", "tuple", "dict", "Thing", "Slot", "closures", "method", "view", "array", "cycle"]
)


@st.composite
def graphs(draw):
    """Draw objects that refer to earlier ones; at the end a cycle's list gets itself and the last one."""
    items: list[object] = [1, "text"]
    cycles = []
    for kind in draw(st.lists(_KINDS, min_size=1, max_size=8)):
        chosen = draw(st.lists(st.sampled_from(range(len(items))), max_size=3))
        parts = [items[index] for index in chosen]
        item = _made(kind, parts)
        if kind == "cycle":
            cycles.append(item)
        items.append(item)
    for cycle in cycles:
        cycle += [cycle, items[-1]]
    return items


def _look(value):
    """Return the value and the contents of its functions."""
    seen: dict[int, object] = {}

    def inside(graph):
        if id(graph) in seen:
            return
        seen[id(graph)] = graph
        if isinstance(graph, types.FunctionType):
            cells = [cell.cell_contents for cell in graph.__closure__ or ()]
            functions.append((graph, graph.__closure__, cells, graph.__defaults__))
            for part in (*cells, *(graph.__defaults__ or ())):
                inside(part)
        for part in (
            graph
            if isinstance(graph, list | tuple)
            else vars(graph).values()
            if hasattr(graph, "inner")
            else ()
        ):
            inside(part)

    functions: list[object] = []
    inside(value)
    return [value, functions]


@settings(max_examples=100)
@given(graphs())
def test_a_graph_is_the_same_at_the_other_end(graph):
    before, sys.modules["__main__"] = sys.modules["__main__"], _main
    try:
        pickled = pickling.dump({"graph": graph})
        twin = pickle.loads(pickled.data, buffers=pickled.buffers)["graph"]
        # A change through one name shows through the others, at both ends.
        for copy in (graph, twin):
            for part in copy:
                if isinstance(part, list) and part and isinstance(part[0], torch.Tensor | np.ndarray):
                    part[0][0] = 99
                elif isinstance(part, list) and part and isinstance(part[0], types.FunctionType):
                    part[0]("new")
        assert portrait(_look(twin), {}) == portrait(_look(graph), {})
    finally:
        sys.modules["__main__"] = before
