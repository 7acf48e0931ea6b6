"""Pickles memory that arrays and tensors share: what overlaps at one end overlaps at the other.

By themselves, arrays and tensors each pickle their own copy, so a view would no longer see changes to its
base. A pickle that holds some begins with a table of all their memory, which :func:`begin` registers: the
region of each and the offset in it, and the bytes of the regions. GPU memory travels like the host's, and
goes back to the GPU of that number on a rank; the values of calls stay in the host's memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import pickle
import threading
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from nbtorchjob.runtime import torch_versions
from nbtorchjob.runtime.objects.rebuilt import fill_plainly
from nbtorchjob.runtime.objects.sources import ahead

# Each buffer costs its own entry and hash in the payload; small ones are cheaper in the pickle.
SMALL = 4096
_LINE = 64
# Torch can't resize memory that it doesn't own, so smaller regions are copied; mapped gigabytes aren't.
_COPIED = 1 << 20

# Devices whose storages have addresses. Tensors on others, such as XLA, are left to torch's own pickling.
_ADDRESSED = ("cpu", "cuda", "xpu")

_loading = threading.local()


class Place(NamedTuple):
    """Where memory lies: host memory has no device; GPU memory can only be read as part of its storage."""

    device: str = ""
    storage: int = 0  # its address


HOST = Place()


class _Span(NamedTuple):
    place: Place
    low: int  # where the bytes to send begin: below `start` if needed to keep its alignment
    start: int
    end: int
    owner: Any


class Memory:
    """The memory of the arrays and tensors of one pickle."""

    def __init__(self) -> None:
        self.spans: List[_Span] = []

    def add(self, start: int, end: int, owner: Any, floor: int, place: Place = HOST) -> int:
        """Record the bytes from address ``start`` to ``end``; return the number to find them by.

        ``owner`` keeps them alive, and also owns those from ``floor`` on.
        """
        low = start - (start - floor) % _LINE
        self.spans.append(_Span(place, low, start, end, owner))
        return len(self.spans) - 1

    def begin(self, out_of_band: Callable[[pickle.PickleBuffer], Any]) -> bytes:
        """Return the table to put before the pickle; ``out_of_band`` gets the big regions."""
        if not self.spans:
            return b""
        slots, regions = self.regions()
        buffers: List[Any] = []
        for region in regions:
            view = view_of(region.place, region.start, region.end, region.owners)
            buffers.append(bytearray(view) if view.nbytes < SMALL else pickle.PickleBuffer(view))
        return ahead(_Table(slots, buffers), lambda buffer: bool(out_of_band(buffer)))

    @property
    def size(self) -> int:
        """The number of bytes, each counted once."""
        return sum(region.end - region.start for region in self.regions()[1])

    def regions(self) -> Tuple[List[Tuple[int, int]], List[_MemoryUse]]:
        """Return the region and offset of each number, and all regions: overlapping memory is one region."""
        slots = [(0, 0)] * len(self.spans)
        regions: List[_MemoryUse] = []
        for index in sorted(range(len(self.spans)), key=lambda index: self.spans[index][:2]):
            place, low, start, end, owner = self.spans[index]
            if not regions or regions[-1].place != place or low >= regions[-1].end:
                regions.append(_MemoryUse(place, low, end, []))
            regions[-1].owners.append(owner)
            regions[-1].end = max(regions[-1].end, end)
            slots[index] = (len(regions) - 1, start - regions[-1].start)
        return slots, regions


@dataclass
class _MemoryUse:
    """Memory that one array or tensor uses, or several whose memory overlaps."""

    place: Place
    start: int
    end: int
    owners: List[Any]


def view_of(place: Place, start: int, end: int, owners: List[Any]) -> memoryview:
    """Return the bytes from address ``start`` to ``end``, which ``owners`` own; for a GPU, a copy."""
    if place.device:
        import torch

        tensor = torch.empty(0, dtype=torch.uint8, device=owners[0].device)
        tensor = tensor.set_(owners[0].untyped_storage(), start - place.storage, (end - start,))
        owners = [tensor.to("cpu", copy=True)]
        start, end = owners[0].data_ptr(), owners[0].data_ptr() + end - start
    raw: Any = (ctypes.c_ubyte * (end - start)).from_address(start)
    raw._owners = owners  # the memory lives as long as this view
    return memoryview(raw).cast("B")


class _Table:
    def __init__(self, slots: List[Tuple[int, int]], regions: List[Any]) -> None:
        self._args = (slots, regions)

    def __reduce__(self) -> Any:
        return begin, self._args


class _Region:
    """Memory of arrays or of a tensor's storage, depending on which requests it first."""

    def __init__(self, data: Any) -> None:
        self._data = memoryview(data)
        self._view: Any = None
        self._storage: Any = None
        self._copies: Dict[str, Any] = {}  # copies on devices

    @property
    def view(self) -> memoryview:
        """The memory as a buffer for arrays."""
        if self._view is None:
            self._view = memoryview(bytearray(self._data)) if self._data.readonly else self._data
        memory: memoryview = self._view
        return memory

    @property
    def storage(self) -> Any:
        """The memory as torch's storage, which all tensors that share it use."""
        import torch

        if self._storage is None and self._view is None and len(self._data) < _COPIED:
            self._storage = torch.empty(len(self._data), dtype=torch.uint8).untyped_storage()
            raw: Any = (ctypes.c_ubyte * len(self._data)).from_address(self._storage.data_ptr())
            raw._storage = self._storage
            self._view = memoryview(raw).cast("B")
            self._view[:] = self._data
        elif self._storage is None:
            self._storage = torch.frombuffer(self.view, dtype=torch.uint8).untyped_storage()
        return self._storage

    def on(self, device: str) -> Any:
        """The memory as a storage on a device, which all tensors there that share it use.

        Raises ``RuntimeError`` if this process has no such device.
        """
        import torch

        if device not in self._copies:
            tensor = torch.empty(0, dtype=torch.uint8).set_(self.storage)
            try:
                self._copies[device] = tensor.to(device, copy=True).untyped_storage()
            except (RuntimeError, AssertionError) as exc:  # the latter from a torch without CUDA
                reason = str(exc).partition("\n")[0]
                raise RuntimeError("it was on %s, which isn't here: %s" % (device, reason)) from exc
        return self._copies[device]


@contextlib.contextmanager
def in_host_memory() -> Iterator[None]:
    """Load tensors that were on a GPU into the host's memory: this process hasn't requested a GPU's."""
    _loading.hosted = True
    try:
        yield
    finally:
        _loading.hosted = False


class Unpickler(pickle.Unpickler):
    """Loads a pickle that may contain torch's own pickles of GPU storages, into the host's memory."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the object that the pickle names; torch's own loader of storages would need the same GPU."""
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            import torch

            return lambda data: torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
        return super().find_class(module, name)


def begin(slots: Sequence[Tuple[int, int]], regions: Sequence[Any]) -> None:
    """Register the table of the pickle that this thread is loading."""
    memories = [_Region(data) for data in regions]
    tables: List[Dict[int, Tuple[_Region, int]]] = _loading.__dict__.setdefault("tables", [])
    tables.append({index: (memories[region], offset) for index, (region, offset) in enumerate(slots)})


def forget() -> None:
    """Forget the tables of pickles that this thread failed to load."""
    _loading.__dict__.clear()


def _take(index: int) -> Tuple[_Region, int]:
    tables = _loading.tables
    region_and_offset: Tuple[_Region, int] = tables[-1].pop(index)
    if not tables[-1]:  # each number is requested once, so this was the last
        tables.pop()
    return region_and_offset


def reduce_array(memory: Memory, array: Any) -> Any:
    """Reduce a numpy array to a slot of shared memory, for pickle; NotImplemented for unusual ones."""
    if array.dtype.hasobject or not array.nbytes:
        return NotImplemented
    start: int = array.__array_interface__["data"][0]
    contiguous = array.flags.c_contiguous
    low, high = (0, array.nbytes) if contiguous else _reach(array.shape, array.strides, array.itemsize)
    floor, root = start + low, array
    while type(root.base) is type(array):
        root = root.base
        # A base may be a view of foreign memory (of a tensor, a file): its address is where that begins.
        floor = min(floor, root.__array_interface__["data"][0])
    index = memory.add(start + low, start + high, array, floor)
    strides = None if contiguous else array.strides
    return make_array, (index, -low, array.dtype, array.shape, strides, array.flags.writeable)


def _reach(shape: Sequence[int], strides: Sequence[int], size: int) -> Tuple[int, int]:
    """Return the range of bytes that an array touches, relative to its first item."""
    steps = [(count - 1) * stride for count, stride in zip(shape, strides)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0) + size


def make_array(index: int, first: int, dtype: Any, shape: Any, strides: Any, writeable: bool) -> Any:
    """Make a numpy array over the memory at ``index``, whose first item lies ``first`` bytes in."""
    import numpy

    region, offset = _take(index)
    array = numpy.ndarray(shape, dtype, region.view, offset + first, strides)
    if not writeable:
        array.flags.writeable = False
    return array


def reduce_tensor(memory: Memory, tensor: Any) -> Any:
    """Reduce a tensor to a slot of shared memory, for pickle; NotImplemented for unusual ones."""
    if not _plain(tensor) or not tensor.numel():
        return NotImplemented
    start = tensor.data_ptr()
    size = tensor.element_size()
    strides = [stride * size for stride in tensor.stride()]
    high = _reach(tensor.shape, strides, size)[1]
    floor, device = tensor.untyped_storage().data_ptr(), _device(tensor)
    index = memory.add(start, start + high, tensor, floor, Place(device, floor) if device else HOST)
    form = (tuple(tensor.shape), tensor.stride(), tensor.is_conj(), tensor.is_neg())
    rest = (tensor.is_inference(), device) if device else (True,) if tensor.is_inference() else ()
    return (
        make_tensor,
        (index, tensor.dtype, *form, tensor.requires_grad, *rest),
        vars(tensor) or None,
        None,
        None,
        fill_plainly,
    )


def _device(tensor: Any) -> str:
    """Return the device that a tensor is on; "" for the host."""
    return "" if tensor.device.type == "cpu" else str(tensor.device)


def _plain(tensor: Any) -> bool:
    import torch

    is_wrapped = torch_versions.IS_WRAPPED.get()
    return bool(
        tensor.device.type in _ADDRESSED
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and is_wrapped is not None
        and not is_wrapped(tensor)
    )


def make_tensor(
    index: int,
    dtype: Any,
    shape: Any,
    strides: Any,
    conjugate: bool,
    negative: bool,
    requires_grad: bool,
    inference: bool = False,
    device: str = "",
) -> Any:
    """Make a tensor over the memory at ``index``."""
    import torch

    if inference:
        with torch.inference_mode():
            return make_tensor(
                index, dtype, shape, strides, conjugate, negative, requires_grad, device=device
            )
    region, offset = _take(index)
    device = "" if getattr(_loading, "hosted", False) else device
    if not offset % dtype.itemsize:
        storage = region.on(device) if device else region.storage
        tensor = torch.empty(0, dtype=dtype, device=storage.device)
        tensor = tensor.set_(storage, offset // dtype.itemsize, shape, strides)
    else:  # the offset is in the middle of an item, seen from the beginning of the shared region
        rest = (len(region.view) - offset) // dtype.itemsize
        tensor = torch.frombuffer(region.view, dtype=dtype, offset=offset, count=rest)
        tensor = tensor.as_strided(shape, strides).to(device or "cpu")
    tensor = tensor.conj() if conjugate else tensor
    negate = torch_versions.NEGATIVE_VIEW.get() or torch.neg
    tensor = negate(tensor) if negative else tensor
    return tensor.requires_grad_(requires_grad)


def reduce_view(view: memoryview) -> Any:
    """Reduce a ``memoryview``: with the object that it views if it shows all of that, else with its bytes."""
    base: Any = view.obj
    if type(base).__name__ not in _HOLDERS or not view.c_contiguous or memoryview(base).nbytes != view.nbytes:
        base = bytes(view) if view.readonly else bytearray(view)
    return make_view, (base, view.format, view.shape, view.readonly)


_HOLDERS = ("bytes", "bytearray", "array", "ndarray")  # that can be pickled


def make_view(base: Any, form: str, shape: Any, readonly: bool) -> memoryview:
    """Return a view of memory as :func:`reduce_view` found it."""
    view = memoryview(base)
    if (view.format, view.shape) != (form, shape):
        view = view.cast("B").cast(form, shape)  # type: ignore[call-overload]
    return view.toreadonly() if readonly else view
