"""What travels to a cluster is the program that runs here, in less room."""

import ast

import pytest

from nbtorchjob import capture
from nbtorchjob.backends.kubernetes.payload.package import pack
from nbtorchjob.payload import program
from nbtorchjob.spec.jobspec import JobSpec

MODULES = dict(program.modules())


@pytest.mark.parametrize("name", MODULES)
def test_without_its_words_a_module_is_the_same_code_on_the_same_lines(name):
    whole, small = MODULES[name], program.bare(MODULES[name])

    assert undocumented(small) == undocumented(whole)
    assert len(small) <= len(whole)
    assert (b"Copyright" in small) == (b"Copyright" in whole)


def undocumented(source):
    """Return the syntax of a module without its docstrings, with where each part begins."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, program.DOCUMENTED) and ast.get_docstring(node) is not None:
            del node.body[0]
        for end in ("end_lineno", "end_col_offset"):  # what ended with a docstring ends earlier
            if hasattr(node, end):
                setattr(node, end, None)
    return ast.dump(tree, include_attributes=True)


@pytest.mark.parametrize(
    ("source", "left"),
    [
        (
            b'def f():\n    """Say\n    more."""\n    return "# no"  # yes\n',
            b'def f():\n    ""\n\n    return "# no"\n',
        ),
        (b'class A:\n    """Only this."""\n', b'class A:\n    ""\n'),
        ('x = "\u00e9"  # \u00e9\n'.encode(), 'x = "\u00e9"\n'.encode()),
        (b'"""Of a module."""; y = 1\n', b'""; y = 1\n'),
    ],
)
def test_what_is_left_out(source, left):
    assert program.bare(source) == left


def test_a_trivial_cell_takes_less_than_110_kb_to_a_cluster():
    packed = pack(capture.from_cell("1", {}), JobSpec(backend="kubernetes"))

    assert len(packed.data) < 110_000
