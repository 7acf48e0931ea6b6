"""What NVIDIA's driver tells of its GPUs by its library NVML, which comes with it: no package is needed."""

from __future__ import annotations

import ctypes
import os
from itertools import takewhile
from typing import Any, List, NamedTuple, Optional

_NAME = "libnvidia-ml.so.1"
_MOST = 64  # GPUs of a node
_NAME_BYTES = 96


class Reading(NamedTuple):
    """One GPU: how much of the last second something ran on it, and bytes of its memory."""

    gpu: int
    percent: int
    used: int
    total: int
    model: str


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Nvml:
    """The library, initialized; ``calls`` are its functions, which return 0 when they could do it."""

    def __init__(self, calls: Any) -> None:
        self._calls = calls

    def read(self) -> List[Reading]:
        """Return a reading of each GPU that ranks see by number; one that can't be read is left out."""
        count = ctypes.c_uint()
        if self._calls.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return []
        found = (self._read(index) for index in range(min(count.value, _MOST)) if _visible(index))
        return [each for each in found if each is not None]

    def _read(self, index: int) -> Optional[Reading]:
        device, use, memory = ctypes.c_void_p(), _Utilization(), _Memory()
        name = ctypes.create_string_buffer(_NAME_BYTES)
        if (
            self._calls.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device))
            or self._calls.nvmlDeviceGetUtilizationRates(device, ctypes.byref(use))
            or self._calls.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
            or self._calls.nvmlDeviceGetName(device, name, len(name))
        ):
            return None
        model = name.value.decode(errors="replace")
        return Reading(index, min(use.gpu, 100), memory.used, memory.total, model)


def _visible(index: int) -> bool:
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    # Names of other kinds (UUIDs) are NVML's to resolve: then all are read.
    if given is None or any(each.isalpha() for each in given):
        return True
    # As CUDA reads it: what comes behind a number that can't be is ignored, and nothing means no GPU.
    numbers = takewhile(str.isdigit, (name.strip() for name in given.split(",")))
    return index in map(int, numbers)


def load(name: str = _NAME) -> Optional[Nvml]:
    """Return the library; None where there is none, or no driver that it could ask."""
    try:
        calls = ctypes.CDLL(name)
        return None if calls.nvmlInit_v2() else Nvml(calls)
    except (OSError, AttributeError):
        return None
