import ast
import importlib.metadata
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from nbtorchjob import capture
from nbtorchjob.capture import report
from nbtorchjob.capture.model import Ship
from nbtorchjob.capture.modules import LocalFile


def notebook(text, **values):
    namespace = {"__name__": "__main__", **values}
    exec(text, namespace)
    return namespace


def test_kinds_are_short_words():
    space = notebook("class A: ...\ndef f(): ...")
    kinds = {
        "ndarray 2x3 float32": np.zeros((2, 3), "float32"),
        "Tensor 4 int64": torch.arange(4),
        "Tensor float32": torch.tensor(1.0),
        "dict": {},
        "class": space["A"],
        "A": space["A"](),
        "function": space["f"],
        "module": math,
        "imported function": math.sqrt,
        "imported class": torch.nn.Linear,
    }
    assert {name: report.type_name(value) for name, value in kinds.items()} == {k: k for k in kinds}


def test_what_was_created_for_one_process_is_noted_for_several_ranks():
    sampler = torch.utils.data.DistributedSampler([1, 2], num_replicas=1, rank=0)
    call = capture.from_cell("list(sampler)", {"sampler": sampler})

    assert call.notes_on(1) == ()
    assert call.notes_on(2) == (
        "sampler (DistributedSampler) was created for one process, so each of 2 ranks works as if it were "
        "the only one: create it in the code that the ranks run",
    )


@pytest.mark.parametrize(
    ("distribution", "file", "name"),
    [
        ("accelerate", "accelerate/accelerator.py", "Accelerator"),
        ("accelerate", "accelerate/data_loader.py", "DataLoaderShard"),
        ("accelerate", "accelerate/optimizer.py", "AcceleratedOptimizer"),
        ("accelerate", "accelerate/state.py", "PartialState"),
        ("transformers", "transformers/trainer.py", "Trainer"),
        ("transformers", "transformers/training_args.py", "TrainingArguments"),
        ("lightning", "lightning/fabric/fabric.py", "Fabric"),
        ("lightning", "lightning/pytorch/trainer/trainer.py", "Trainer"),
    ],
)
def test_frameworks_classes_of_one_process_are_where_they_were(distribution, file, name):
    try:
        path = importlib.metadata.distribution(distribution).locate_file(file)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} isn't installed")
    defined = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    twin = type(name, (), {"__module__": file.removesuffix(".py").replace("/", ".")})

    assert name in defined
    assert report.of_a_process({"made": twin(), "n": 1}, {}) == {"made": name}
    assert report.of_a_process({"args[0]": type("Own", (twin,), {})()}, {"args[0]": "t"}) == {"t": "Own"}


def test_sizes_count_memory_out_of_band():
    ships = report.ships({"x": np.zeros(1000), "y": torch.nn.Linear(100, 100), "n": 1}, 60_000)
    x, y, n = (ship.size for ship in ships)
    assert 8_000 <= x < 8_500
    assert 40_400 <= y < 42_500
    assert n < 20


def test_a_function_is_measured_without_the_variables_it_reads():
    space = notebook("def f(): return big", big=bytes(100_000))
    (ship,) = report.ships({"f": space["f"]}, 0)
    assert ship.size < 1_000


def test_a_function_that_refers_to_itself_is_measured():
    space = notebook("def make():\n    def f(): return f\n    return f\nf = make()")
    assert report.ships({"f": space["f"]}, 0)[0].size < 2_000


def test_what_is_too_big_to_measure_gets_the_rest_of_the_whole():
    ships = report.ships({"big": bytes(20_000_000), "n": 1}, 40_000_000)
    assert ships[0].size == 40_000_000 - ships[1].size


def test_short_plain_values_are_shown():
    ships = report.ships({"n": 10, "s": "adam", "long": "x" * 50, "none": None}, 100)
    assert [ship.value for ship in ships] == ["10", "'adam'", "", "None"]


def test_a_text_that_is_called_a_secret_is_not_shown():
    shown = {ship.name: ship.value for ship in report.ships({"api_key": "zzz", "num_tokens": 512}, 100)}

    assert shown == {"api_key": "", "num_tokens": "512"}


@dataclass
class Login:
    user: str
    password: str


@pytest.mark.parametrize(
    "secret", ["zzz", b"zzz", ["zzz"], {"user": "ann", "pw": "zzz"}, Login("ann", "zzz"), 1 << 100]
)
def test_what_is_called_a_secret_has_no_digest_whatever_its_type(secret):
    (ship,) = report.ships({"credentials": secret}, 100)

    assert (ship.value, ship.digest) == ("", "")


def test_an_address_with_a_password_is_a_secret_whatever_it_is_called():
    (ship,) = report.ships({"db": "pg://me:zzz@host"}, 100)

    assert (ship.value, ship.digest) == ("", "")


def test_numbers_and_arrays_are_no_secrets():
    data = {"num_tokens": 512, "key_scale": 0.5, "token_ids": np.arange(4), "keys": torch.arange(4)}

    assert all(ship.digest for ship in report.ships(data, 100))


def test_the_line_tells_code_first_then_the_biggest():
    ships = [
        Ship("epochs", "int", 5, "10"),
        Ship("X", "ndarray 1797x64 float32", 450_000),
        Ship("Net", "class", 3_000),
        Ship("np", "module", 40),
        Ship("model", "Net", 1_200_000),
        Ship("names", "list", 40),
    ]
    files = [LocalFile("mylib/__init__.py", b"a" * 500), LocalFile("mylib/a.py", b"a" * 600)]
    assert report.line(ships, files) == (
        "ships Net, model (Net, 1.2 MB), X (ndarray 1797x64 float32, 450 kB), names, epochs=10, "
        "mylib (1.1 kB)"
    )


def test_the_line_is_bounded():
    text = report.line([Ship(f"variable_{i}", "list", 2_000 + i) for i in range(40)], [])
    assert len(text) <= 160
    assert text.endswith(" more")
    assert len(report.line([Ship("v" * 500, "list", 1)], [])) <= 160
    assert report.line([], []) == "sent with the cell: nothing but its code"
