"""What is here becomes requirements of the same versions; torch is the image's own."""

from importlib.metadata import version

from nbtorchjob.environment import pins


def test_a_distribution_is_pinned_to_its_version_here():
    assert pins.pins(["ipython", "nothing-of-that-name"]) == (f"ipython=={version('ipython')}",)


def test_what_belongs_to_torch_or_travels_anyway_is_left_out():
    assert pins.pins(["torch", "triton", "nvidia-cudnn-cu13", "nbtorchjob", "cloudpickle"]) == ()


def test_a_closure_has_what_is_needed_directly_or_not():
    found = pins.closure(["ipython"])

    assert {"ipython", "jedi", "parso"} <= set(found)  # jedi needs parso
    assert found == sorted(found)
    assert "nothing-of-that-name" in pins.closure(["nothing-of-that-name"])
