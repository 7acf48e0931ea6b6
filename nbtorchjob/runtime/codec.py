"""A value as a JSON tree and raw buffers, so that plain data comes home without running a pickle.

Numbers, strings, containers, tensors and numpy arrays are written as data. Whatever else a value
holds is collected and pickled together, once. Big memory is never copied here: the buffers are
views, to be written to a file and mapped from it.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
from array import array
from collections import OrderedDict
from typing import Any, Callable, ClassVar, Dict, List, Sequence

# Takes an object and a callback for its out-of-band buffers (PEP 574), gives the pickle.
Dump = Callable[[Any, Callable[[pickle.PickleBuffer], Any]], bytes]
Load = Callable[[Any, Sequence[memoryview]], Any]

_ATOMS = (type(None), bool, int, float, str)
_TAG = "$"
# From here on a list of floats is kept as float64: JSON would spend 400 ms on a million of them.
_MANY = 256


class _NotPlainError(Exception):
    """The value has a shape that a tree can't show: an object that is in it twice, or a cycle."""


class Encoder:
    """Encodes one value. Buffers listed in ``pickles`` are pickles, to be authenticated."""

    def __init__(self, dump: Dump) -> None:
        self.buffers: List[memoryview] = []
        self.pickles: List[int] = []
        self._dump = dump
        self._others: List[Any] = []
        self._seen: Dict[int, Any] = {}  # keeps what it names alive, so an id stays unique

    def encode(self, value: Any) -> Any:
        """Give a tree that ``json.dumps`` takes; raises what pickling the other objects raises."""
        try:
            tree = self._tree(value)
        except (_NotPlainError, RecursionError):
            self.__init__(self._dump)  # type: ignore[misc]  # start again, with all of it pickled
            tree = self._other(value)
        if self._others:
            oob: List[pickle.PickleBuffer] = []
            data = self._dump(self._others, oob.append)
            main = self._buffer(memoryview(data))
            self.pickles.append(main)
            parts = [self._buffer(raw.raw()) for raw in oob]
            tree = {_TAG: "with", "pickle": main, "parts": parts, "tree": tree}
        return tree

    def _tree(self, value: Any) -> Any:
        kind = type(value)
        if kind in _ATOMS:
            # Python refuses to write integers of more than 4300 digits as text.
            return self._other(value) if kind is int and value.bit_length() > 1024 else value
        encode = self._KINDS.get(kind) or self._foreign(kind)
        if encode is None:
            return self._other(value)
        if id(value) in self._seen and kind is not tuple:
            raise _NotPlainError
        self._seen[id(value)] = value
        return encode(self, value)

    def _other(self, value: Any) -> Any:
        self._others.append(value)
        return {_TAG: "pickled", "index": len(self._others) - 1}

    def _buffer(self, view: memoryview) -> int:
        self.buffers.append(view.cast("B") if view.nbytes else memoryview(b""))
        return len(self.buffers) - 1

    def _list(self, value: List[Any]) -> Any:
        if len(value) >= _MANY and all(type(item) is float for item in value):
            return {_TAG: "floats", "buffer": self._buffer(memoryview(array("d", value)))}
        return [self._tree(item) for item in value]

    def _dict(self, value: Dict[Any, Any]) -> Any:
        if all(type(key) is str for key in value) and _TAG not in value:
            return {key: self._tree(item) for key, item in value.items()}
        return {_TAG: "dict", "items": [[self._tree(k), self._tree(v)] for k, v in value.items()]}

    def _ordered(self, value: Any) -> Any:
        items = [[self._tree(k), self._tree(v)] for k, v in value.items()]
        # A state_dict carries its modules' versions as an attribute.
        return {_TAG: "ordered", "items": items, "vars": self._tree(vars(value))}

    def _group(self, value: Any) -> Any:
        return {_TAG: type(value).__name__, "items": [self._tree(item) for item in value]}

    def _bytes(self, value: Any) -> Any:
        return {_TAG: type(value).__name__, "buffer": self._buffer(memoryview(value))}

    def _complex(self, value: complex) -> Any:
        return {_TAG: "complex", "parts": [value.real, value.imag]}

    def _array(self, value: Any) -> Any:
        if value.dtype.hasobject or value.dtype.names or value.dtype.kind not in "biufcSUmM":
            return self._other(value)
        shape = list(value.shape)
        flat = value.reshape(-1)  # a view, or the one copy that a strided array needs
        flat = flat if flat.flags.c_contiguous else flat.copy()
        at = self._buffer(memoryview(flat.view("u1")) if flat.nbytes else memoryview(b""))
        return {_TAG: "array", "dtype": value.dtype.str, "shape": shape, "buffer": at}

    def _scalar(self, value: Any) -> Any:
        at = self._buffer(memoryview(value.tobytes()))
        return {_TAG: "scalar", "dtype": value.dtype.str, "buffer": at}

    def _tensor(self, value: Any) -> Any:
        import torch

        if not _dense(value) or value.grad_fn is not None or vars(value):
            return self._other(value)
        at = self._buffer(_bytes_of(value))
        return {
            _TAG: "tensor",
            "dtype": str(value.dtype).rpartition(".")[2],
            "shape": list(value.shape),
            "grad": bool(value.requires_grad),
            "parameter": type(value) is torch.nn.Parameter,
            "buffer": at,
        }

    _KINDS: ClassVar[Dict[type, Callable[[Any, Any], Any]]] = {
        list: _list,
        dict: _dict,
        OrderedDict: _ordered,
        tuple: _group,
        set: _group,
        frozenset: _group,
        bytes: _bytes,
        bytearray: _bytes,
        complex: _complex,
    }

    def _foreign(self, kind: type) -> Any:
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None:
            if kind is numpy.ndarray:
                return Encoder._array
            if issubclass(kind, (numpy.number, numpy.bool_)):
                return Encoder._scalar
        if torch is not None and kind in (torch.Tensor, torch.nn.Parameter):
            return Encoder._tensor
        return None


def decode(tree: Any, buffers: Sequence[memoryview], load: Load) -> Any:
    """Rebuild a value from its tree; arrays and tensors share the memory of ``buffers``.

    Raises ``ImportError`` where the value needs numpy or torch and they aren't here, and whatever
    ``load`` raises for what was pickled.
    """
    return _Decoder(buffers, load).value(tree)


class _Decoder:
    def __init__(self, buffers: Sequence[memoryview], load: Load) -> None:
        self._buffers = buffers
        self._load = load
        self._others: List[Any] = []

    def value(self, tree: Any) -> Any:
        if isinstance(tree, list):
            return [self.value(item) for item in tree]
        if not isinstance(tree, dict):
            return tree
        if _TAG not in tree:
            return {key: self.value(item) for key, item in tree.items()}
        return getattr(self, "_" + tree[_TAG])(tree)

    def _with(self, tree: Any) -> Any:
        parts = [self._buffers[i] for i in tree["parts"]]
        self._others = self._load(self._buffers[tree["pickle"]], parts)
        return self.value(tree["tree"])

    def _pickled(self, tree: Any) -> Any:
        return self._others[tree["index"]]

    def _floats(self, tree: Any) -> Any:
        return array("d", bytes(self._buffers[tree["buffer"]])).tolist()

    def _dict(self, tree: Any) -> Any:
        return {self.value(k): self.value(v) for k, v in tree["items"]}

    def _ordered(self, tree: Any) -> Any:
        found = OrderedDict((self.value(k), self.value(v)) for k, v in tree["items"])
        vars(found).update(self.value(tree["vars"]))
        return found

    def _tuple(self, tree: Any) -> Any:
        return tuple(self.value(item) for item in tree["items"])

    def _set(self, tree: Any) -> Any:
        return {self.value(item) for item in tree["items"]}

    def _frozenset(self, tree: Any) -> Any:
        return frozenset(self.value(item) for item in tree["items"])

    def _bytes(self, tree: Any) -> Any:
        return bytes(self._buffers[tree["buffer"]])

    def _bytearray(self, tree: Any) -> Any:
        return bytearray(self._buffers[tree["buffer"]])

    def _complex(self, tree: Any) -> Any:
        return complex(*tree["parts"])

    def _array(self, tree: Any) -> Any:
        import numpy

        flat = numpy.frombuffer(self._buffers[tree["buffer"]], dtype=numpy.dtype(tree["dtype"]))
        return flat.reshape(tree["shape"])

    def _scalar(self, tree: Any) -> Any:
        import numpy

        return numpy.frombuffer(self._buffers[tree["buffer"]], dtype=numpy.dtype(tree["dtype"]))[0]

    def _tensor(self, tree: Any) -> Any:
        import torch

        data = rebuild_tensor(
            self._buffers[tree["buffer"]], getattr(torch, tree["dtype"]), tree["shape"], False
        )
        if tree["parameter"]:
            return torch.nn.Parameter(data, requires_grad=tree["grad"])
        return data.requires_grad_(tree["grad"])


def _dense(tensor: Any) -> bool:
    import torch

    return bool(
        tensor.layout == torch.strided
        and tensor.device.type != "meta"
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _bytes_of(tensor: Any) -> memoryview:
    """A view of the tensor's bytes, which it keeps alive; needs no numpy and takes every dtype."""
    plain = tensor.detach().cpu().contiguous()
    size = plain.numel() * plain.element_size()
    if not size:
        return memoryview(b"")
    raw = (ctypes.c_ubyte * size).from_address(plain.data_ptr())
    raw._tensor = plain  # the memory lives as long as this view
    return memoryview(raw).cast("B")


def tensor_reduce(tensor: Any) -> Any:
    """Give pickle a way to carry a tensor's memory out of band; NotImplemented for unusual ones."""
    import torch

    usual = type(tensor) is torch.Tensor and tensor.device.type == "cpu" and _dense(tensor)
    if not usual or vars(tensor) or tensor._backward_hooks:
        return NotImplemented
    data = pickle.PickleBuffer(_bytes_of(tensor))
    return rebuild_tensor, (data, tensor.dtype, tuple(tensor.shape), tensor.requires_grad)


def rebuild_tensor(data: Any, dtype: Any, shape: Sequence[int], requires_grad: bool) -> Any:
    """Make a tensor over the memory of ``data``, without a copy."""
    import torch

    view = memoryview(data)
    if not view.nbytes:
        return torch.empty(tuple(shape), dtype=dtype, requires_grad=requires_grad)
    if view.readonly:
        view = memoryview(bytearray(view))
    return torch.frombuffer(view, dtype=dtype).reshape(tuple(shape)).requires_grad_(requires_grad)
