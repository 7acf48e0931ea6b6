"""A process's torch settings: read in the notebook, applied on ranks on request. Its random numbers, too."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from nbtorchjob.runtime import torch_versions


class _Setting(NamedTuple):
    """The statement that sets it, its default, and functions that read and set it, both given ``torch``."""

    call: str
    default: Any
    read: Callable[[Any], Any]
    lay: Callable[[Any, Any], Any]


def _flag(module: str, name: str, default: bool) -> _Setting:
    def home(torch: Any) -> Any:
        return getattr(torch.backends, module)

    return _Setting(
        "torch.backends.%s.%s = %%s" % (module, name),
        default,
        lambda torch: getattr(home(torch), name),
        lambda torch, value: setattr(home(torch), name, value),
    )


# The defaults are those of a fresh process. Values are plain data: they travel as JSON.
_SETTINGS: Dict[str, _Setting] = {
    "dtype": _Setting(
        "torch.set_default_dtype(torch.%s)",
        "float32",
        lambda torch: str(torch.get_default_dtype()).rpartition(".")[2],
        lambda torch, value: torch.set_default_dtype(getattr(torch, value)),
    ),
    "device": _Setting(
        "torch.set_default_device(%r)",
        "cpu",
        torch_versions.default_device,
        lambda torch, value: torch.set_default_device(value),
    ),
    "grad": _Setting(
        "torch.set_grad_enabled(%s)",
        True,
        lambda torch: torch.is_grad_enabled(),
        lambda torch, value: torch.set_grad_enabled(value),
    ),
    "deterministic": _Setting(
        "torch.set_deterministic_debug_mode(%s)",
        0,
        lambda torch: torch.get_deterministic_debug_mode(),
        lambda torch, value: torch.set_deterministic_debug_mode(value),
    ),
    "matmul": _Setting(
        "torch.set_float32_matmul_precision(%r)",
        "highest",
        lambda torch: torch.get_float32_matmul_precision(),
        lambda torch, value: torch.set_float32_matmul_precision(value),
    ),
    "anomaly": _Setting(
        "torch.autograd.set_detect_anomaly(%s)",
        False,
        lambda torch: torch.is_anomaly_enabled(),
        lambda torch, value: torch.autograd.set_detect_anomaly(value),
    ),
    "cudnn.enabled": _flag("cudnn", "enabled", True),
    "cudnn.benchmark": _flag("cudnn", "benchmark", False),
    "cudnn.deterministic": _flag("cudnn", "deterministic", False),
}


def changed() -> Dict[str, Any]:
    """Return this process's torch settings, by name; nothing if torch isn't imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    values = {name: setting.read(torch) for name, setting in _SETTINGS.items()}
    return {name: value for name, value in values.items() if value != _SETTINGS[name].default}


def modes() -> "list[str]":
    """Return which modes of torch this thread has entered, apart from what :func:`changed` returns."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    entered = [
        mode
        for stack in (torch_versions.FUNCTION_MODES.get(), torch_versions.DISPATCH_MODES.get())
        if stack is not None
        for mode in stack()
        if type(mode).__module__ != "torch.utils._device"  # the default device
    ]
    names = [type(mode).__name__ for mode in entered]
    names += ["torch.autocast(%r)" % name for name in ("cpu", "cuda") if torch.is_autocast_enabled(name)]
    return names + ["torch.inference_mode()"] * torch.is_inference_mode_enabled()


def words(values: Dict[str, Any]) -> "list[str]":
    """Return the statements that apply what :func:`changed` returned."""
    return [_SETTINGS[name].call % (value,) for name, value in values.items()]


def lay(values: Dict[str, Any]) -> None:
    """Apply the same settings to this process's torch."""
    if values:
        import torch

        for name, value in values.items():
            _SETTINGS[name].lay(torch, value)


class Randomness:
    """The states of this process's random number generators, so that dropped code has drawn no numbers."""

    def __init__(self) -> None:
        self._states: List[Tuple[Any, Any]] = []  # each with the function that sets it
        for name, get, set_ in (
            ("random", "getstate", "setstate"),
            ("numpy.random", "get_state", "set_state"),
            ("torch", "get_rng_state", "set_rng_state"),
            ("torch.cuda", "get_rng_state_all", "set_rng_state_all"),
        ):
            module = sys.modules.get(name)
            # Getting the state of torch.cuda initializes it, which fails without a GPU.
            if module is not None and getattr(module, "is_initialized", lambda: True)():
                self._states.append((getattr(module, set_), getattr(module, get)()))

    def put_back(self) -> None:
        """Restore the states."""
        for set_, state in self._states:
            set_(state)
