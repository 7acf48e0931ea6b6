"""What the notebook's process was told, named where ranks don't have it, and laid on them on request."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from nbtorchjob import JobSpec, SpecError, api, submission
from nbtorchjob.runtime.rank import settings as rank_settings

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
    """Check that torch's defaults are the ones known here, and put them back."""
    assert rank_settings.changed() == {}
    yield
    rank_settings.lay({name: setting.default for name, setting in rank_settings._SETTINGS.items()})
    torch.set_default_device(None)  # also what asks for it at each operation


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
    asked = "ranks don't get torch.set_grad_enabled(False): --carry-settings takes it along"

    assert submission.cautions(JobSpec()) == (asked,)
    assert submission.cautions(JobSpec(carry_settings=True)) == ()
    assert f"# note: {asked}" in api.dry_run(len, "x")


class Counted(TorchFunctionMode):  # type: ignore[misc]  # torch has no types for it
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_a_mode_that_was_entered_is_a_note_whatever_goes_along():
    torch.set_default_device("cpu")  # a mode, too, which is carried
    with Counted(), FakeTensorMode():
        noted = "ranks don't get Counted, FakeTensorMode, entered here: enter them in the cell"
        assert submission.cautions(JobSpec(carry_settings=True)) == (noted,)
    with torch.autocast("cpu"), torch.inference_mode():
        assert rank_settings.modes() == ["torch.autocast('cpu')", "torch.inference_mode()"]
    assert rank_settings.modes() == []


def test_it_is_on_or_off():
    with pytest.raises(SpecError, match="carry_settings"):
        JobSpec(carry_settings="yes")  # type: ignore[arg-type]
