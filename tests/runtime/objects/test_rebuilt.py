import pytest

from nbtorchjob.capture import from_cell, from_function
from nbtorchjob.runtime.objects import rebuilt

BROKEN = """
class A:
    def __setstate__(self, state): raise ValueError("no")
a, c = A(), 2
a.x = 1
b = [a]
d = {"c": b}
def f(): return c
"""


@pytest.mark.parametrize(("text", "name"), [("b", "b"), ("c, b, f()", "b"), ("f(), d", "d"), ("c, a", "a")])
def test_what_cannot_be_made_again_is_called_by_its_variable(text, name):
    namespace: dict[str, object] = {"__name__": "__main__"}
    exec(BROKEN, namespace)
    call = from_cell(text, namespace)

    with pytest.raises(rebuilt.RebuildError) as caught:
        rebuilt.loads(call.pickle, call.buffers)
    assert str(caught.value) == (
        f"the notebook's {name!r} was pickled there, but can't be made again here (ValueError: no); "
        "make it in the cell"
    )


def test_without_a_variable_it_is_the_objects_own_error():
    namespace: dict[str, object] = {"__name__": "__main__"}
    exec(BROKEN, namespace)
    call = from_function(print, (namespace["a"],))

    with pytest.raises(ValueError, match="no"):
        rebuilt.loads(call.pickle, call.buffers)
