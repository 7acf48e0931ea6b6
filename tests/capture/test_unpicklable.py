import functools
import pickle
import socket
import threading
import warnings

import pytest
import torch

from nbtorchjob.capture import pickling

NEVER = "which never works on another machine; delete it or create it inside the cell"


def thread():
    return threading.Thread()


class Box:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Slots:
    __slots__ = ("inner",)

    def __init__(self, inner):
        self.inner = inner


class Hides(Box):
    def __getstate__(self):
        return {k: v for k, v in self.__dict__.items() if k != "thread"}


def notebook(text, **values):
    namespace = {"__name__": "__main__", **values}
    exec(text, namespace)
    return namespace


def explain(**objects):
    with pytest.raises(Exception) as caught:  # noqa: PT011 any: it is explained below
        pickling.dump(objects)
    return str(pickling.explain(objects, caught.value))


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Box(loader=Box(thread=thread())), "x.loader.thread"),
        ({"a": [1, (thread(),)]}, "x['a'][1][0]"),
        (Slots(Slots(thread())), "x.inner.inner"),
        (functools.partial(print, thread()), "x"),
        (Box(run=Box(thread=thread()).__str__), "x.run"),
        (Hides(thread=thread(), other=Box(thread=thread())), "x.other.thread"),
    ],
)
def test_the_way_to_the_culprit_is_told(value, path):
    text = explain(fine=1, x=value)
    assert text.startswith(f"can't take 'x' along: {path}")
    assert text.endswith(f"is a thread (threading.Thread), {NEVER}")


def test_a_modules_part_is_named_as_an_attribute():
    model = torch.nn.Sequential(torch.nn.ReLU())
    model[0].thread = thread()
    assert "x.0.thread is a thread" in explain(x=model)


def test_a_function_leads_to_what_it_reads():
    space = notebook("def f(): return g()\ndef g(): return worker", worker=thread())
    assert "f → g → worker is a thread" in explain(f=space["f"])
    space = notebook("def make():\n    def f(): return worker\n    return f", worker=thread())
    assert "f → worker is a thread" in explain(f=space["make"]())
    space = notebook("def f(a=worker): ...", worker=thread())
    assert "f.__defaults__[0] is a thread" in explain(f=space["f"])


def test_a_notebooks_class_leads_to_its_attributes():
    space = notebook("class A:\n    worker = worker\n    def m(self): return A", worker=thread())
    assert "A.worker is a thread" in explain(A=space["A"])


def test_a_cycle_ends():
    box = Box(thread=thread())
    box.__dict__.update(itself=box, list=[box])
    assert "x.thread is a thread" in explain(x=box)


def kinds():
    yield threading.Thread(), "a thread (threading.Thread)"
    with socket.socket() as sock:
        yield sock, "a socket (socket.socket)"
    with open(__file__) as file:
        yield file, "an open file (_io.TextIOWrapper)"
    with open(__file__, "rb") as file:
        yield file, "an open file (_io.BufferedReader)"


def test_what_never_travels_is_called_by_its_name():
    for value, word in kinds():
        assert explain(x=value) == f"can't take 'x' along: it is {word}, {NEVER}"


def refused():
    yield iter(torch.utils.data.DataLoader([1, 2])), "iterate over it inside the cell"
    yield (i for i in range(3)), "make a list of it, or create it inside the cell"
    model = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2))
    yield model, "send its state_dict() and build it inside the cell, or remove them first with "
    yield torch.nn.Sequential(model), "x.0 is a module with parametrizations"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit's (2.13)
        yield torch.jit.script(torch.nn.Linear(2, 2)), "compile it inside the cell, or torch.jit.save it"
        yield torch.jit.script(_twice), "compile it inside the cell, or torch.jit.save it"


def _twice(x):
    return x * 2


def test_what_libraries_refuse_to_pickle_is_called_by_its_name_with_a_cure():
    for value, cure in refused():
        assert cure in explain(x=value)


def test_an_operator_of_the_notebook_is_called_by_its_name():
    operator = torch.library.custom_op(
        "of_a_notebook::twice", _twice, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    assert explain(x=operator).endswith("register it inside the cell, or in a module beside the notebook")


def test_an_objects_own_refusal_is_quoted():
    class Shy:
        def __reduce__(self):
            raise ValueError("not me\nnor you")

    text = explain(x=[Shy()])
    assert "x[0] (" in text
    assert ".Shy) can't be pickled: not me; delete it" in text


def test_deep_nesting_is_told_as_such():
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert "it is nested too deeply" in explain(x=deep)


def test_an_error_of_no_single_object_is_quoted():
    text = str(pickling.explain({"x": 1}, pickle.PicklingError("out of luck")))
    assert text == "can't take the code along: out of luck"
