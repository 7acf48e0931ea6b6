"""The digests that tell captured values apart, in a record.

The same cell over the same values has the same fingerprint, also in a new kernel.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from nbtorchjob import JobSpec, SpecError, api, capture, submission
from nbtorchjob.capture import captured, from_function, report
from nbtorchjob.capture.identity import of as fingerprint
from nbtorchjob.runtime.objects import memory
from nbtorchjob.runtime.rank import settings as rank_settings
from nbtorchjob.state.info import SAMPLED
from tests.programs import program


def digests(**kwargs):
    """Return the digest of each argument of a call."""
    rows = captured(from_function(print, (), kwargs))
    return {name: digest for name, (_, digest) in rows.items()}


# They differ in the bytes after 0x95, the opcode that begins a frame of a pickle.
WITH_THE_BYTE_OF_A_FRAME = [
    (405, 661),
    (0.0206, 0.0213),
    ([149, 1], [149, 2]),
    ("ЕЛЕНА", "ЕВГЕН"),
    (np.array([149, *[0] * 20], "u1"), np.array([149, *[9] * 8, *[0] * 12], "u1")),
    ([149, b"x" * 70_000, 149, 1], [149, b"x" * 70_000, 149, 2]),  # the bytes object lies between frames
]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.1, 0.2),
        ({"a": [1, 2]}, {"a": [1, 3]}),
        (np.arange(10.0), np.arange(10.0) + 1),
        (np.arange(10.0), np.arange(10.0).reshape(2, 5)),
        (torch.zeros(3), torch.ones(3)),
        ({"w": torch.zeros(3), "b": torch.ones(3)}, {"w": torch.ones(3), "b": torch.zeros(3)}),
        (b"x" * 3_000_000, b"y" * 3_000_000),
        ("x" * 3_000_000, "x" * 2_000_000 + "y" * 1_000_000),
        *WITH_THE_BYTE_OF_A_FRAME,
    ],
)
def test_a_digest_tells_values_apart_as_far_as_it_looks(one, other):
    hashes = digests(one=one, same=one, other=other)

    assert hashes["one"] == hashes["same"]
    if hashes["one"].startswith(SAMPLED) and isinstance(one, str):
        assert hashes["one"] == hashes["other"]  # they differ after the sampled part, as the prefix states
    else:
        assert hashes["one"] != hashes["other"]


def test_of_a_big_array_samples_are_looked_at():
    big = np.zeros(2_000_000)
    changed = big.copy()
    changed[::1000] = 1.0

    hashes = digests(big=big, again=big.copy(), changed=changed)

    assert hashes["big"].startswith(SAMPLED)
    assert hashes["big"] == hashes["again"] != hashes["changed"]


def test_of_a_gpus_memory_only_what_is_looked_at_is_copied(monkeypatch):
    monkeypatch.setattr(memory, "_device", lambda tensor: "cpu")  # as if it were a GPU's tensor
    copied = []
    view_of = memory.view_of

    def counted(place, start, end, owners):
        copied.append(end - start)
        return view_of(place, start, end, owners)

    monkeypatch.setattr(report, "view_of", counted)
    base = torch.zeros(2_000_000)

    hashes = digests(views=[base[:] for _ in range(20)], same=[base[:] for _ in range(20)])
    assert hashes["views"] == hashes["same"]
    assert 0 < sum(copied) < base.nbytes


def test_what_else_is_captured_doesn_t_matter():
    numbers = list(range(2_000_000))

    assert digests(one=numbers)["one"] == digests(one=numbers, other=1)["one"]


def test_it_is_the_same_in_another_process():
    code = "\n".join(
        [
            "import sys, torch; sys.path[:0] = [sys.argv[1]]",
            "from tests.capture.test_identity import digests",
            "print(digests(x=[torch.arange(5), {'lr': 0.1}, torch.zeros(2)])['x'])",
        ]
    )
    argv = [sys.executable, "-c", code, str(Path(__file__).parents[2])]
    digest = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()

    assert digests(x=[torch.arange(5), {"lr": 0.1}, torch.zeros(2)])["x"] == digest


def test_nothing_is_kept_of_what_is_called_a_secret():
    rows = captured(from_function(print, (), {"api_key": "zzz", "sizes": [1, 2]}))

    assert rows["api_key"][1] == ""
    assert "zzz" not in str(rows)
    assert rows["sizes"][1]


def test_local_modules_have_one_too(tmp_path, monkeypatch):
    def of(text):
        (tmp_path / "digested.py").write_text(text)
        import digested  # type: ignore[import-not-found]

        return captured(from_function(digested.f, root=tmp_path))["digested.py"]

    monkeypatch.syspath_prepend(tmp_path)
    first, second = of("def f(): return 1\n"), of("def f(): return 2\n")

    assert first[0] == second[0] == "module, 1 file, 18 B"
    assert first[1] != second[1]


def fingerprint_in_kernel(*, pid="17", count="3", lr="0.1"):
    done = subprocess.run(program("cells", pid, count, lr), check=True, capture_output=True, text=True)
    return done.stdout


def test_a_new_kernel_and_another_prompt_number_change_nothing():
    assert fingerprint_in_kernel() == fingerprint_in_kernel(pid="123456", count="41")


def test_another_value_is_another_call():
    assert fingerprint_in_kernel() != fingerprint_in_kernel(lr="0.2")


@pytest.mark.parametrize(("left", "right"), [("a + 1", "a + 2"), ("a", "a  # said")])
def test_another_text_is_another_call(left, right):
    first, second = (capture.from_cell(text, {"a": 1}) for text in (left, right))
    assert fingerprint(first) != fingerprint(second)


@pytest.mark.parametrize(("one", "other"), WITH_THE_BYTE_OF_A_FRAME)
def test_calls_with_values_that_hold_the_byte_of_a_frame_differ(one, other):
    calls = [capture.from_function(print, (value,)) for value in (one, one, other)]
    first, again, others = map(fingerprint, calls)
    assert first == again != others


def test_memory_that_travels_beside_the_pickle_counts():
    numpy = pytest.importorskip("numpy")
    calls = [capture.from_function(sum, (numpy.full(4096, value),)) for value in (1.0, 1.0, 2.0)]
    same, again, other = map(fingerprint, calls)
    assert same == again != other


TOLD = {
    "dtype": "float64",
    "device": "meta",
    "grad": False,
    "deterministic": 1,
    "matmul": "high",
    "anomaly": True,
    "cudnn.enabled": False,
    "cudnn.benchmark": True,
    "cudnn.deterministic": True,
}


@pytest.fixture(autouse=True)
def as_it_starts():
    """Check that torch has the default settings known here, and restore them."""
    assert rank_settings.changed() == {}
    yield
    rank_settings.lay({name: setting.default for name, setting in rank_settings._SETTINGS.items()})
    torch.set_default_device(None)  # also removes the mode that applies it to each operation


def test_what_torch_was_told_is_read_laid_and_put_in_words():
    rank_settings.lay(TOLD)

    assert rank_settings.changed() == TOLD
    assert rank_settings.words(rank_settings.changed()) == [
        "torch.set_default_dtype(torch.float64)",
        "torch.set_default_device('meta')",
        "torch.set_grad_enabled(False)",
        "torch.set_deterministic_debug_mode(1)",
        "torch.set_float32_matmul_precision('high')",
        "torch.autograd.set_detect_anomaly(True)",
        "torch.backends.cudnn.enabled = False",
        "torch.backends.cudnn.benchmark = True",
        "torch.backends.cudnn.deterministic = True",
    ]
    for statement in rank_settings.words(TOLD):
        exec(statement)
    assert rank_settings.changed() == TOLD


def test_what_changes_numbers_is_a_note():
    torch.set_grad_enabled(False)
    note = "ranks don't get torch.set_grad_enabled(False): --carry-settings takes it along"

    assert submission.cautions(JobSpec()) == (note,)
    assert submission.cautions(JobSpec(carry_settings=True)) == ()
    assert f"# note: {note}" in api.dry_run(len, "x")


class Counted(TorchFunctionMode):  # type: ignore[misc]  # torch has no types for it
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_a_mode_that_was_entered_is_a_note_whatever_goes_along():
    torch.set_default_device("cpu")  # a mode, too, but one that is carried
    with Counted(), FakeTensorMode():
        noted = "ranks don't get Counted, FakeTensorMode, entered here: enter them in the cell"
        assert submission.cautions(JobSpec(carry_settings=True)) == (noted,)
    with torch.autocast("cpu"), torch.inference_mode():
        assert rank_settings.modes() == ["torch.autocast('cpu')", "torch.inference_mode()"]
    assert rank_settings.modes() == []


def test_it_is_on_or_off():
    with pytest.raises(SpecError, match="carry_settings"):
        JobSpec(carry_settings="yes")  # type: ignore[arg-type]
