"""A value as a JSON tree and raw buffers, so that plain data comes home without unpickling.

Numbers, strings, containers, tensors and numpy arrays are written as data. A value that holds anything
else, or holds an object twice, is pickled as a whole: only then do shared parts stay shared. If that
fails, each part that isn't plain is pickled by itself. Big memory is never copied here: the buffers are
views, to be written to a file and mapped from it.
"""

from __future__ import annotations

import pickle
import sys
from array import array
from collections import OrderedDict
from typing import Any, Callable, Dict, List, Sequence, Tuple, TypeVar

# Takes an object and a callback for its out-of-band buffers (PEP 574), returns the pickle.
Dump = Callable[[Any, Callable[[pickle.PickleBuffer], Any]], bytes]
Load = Callable[[Any, Sequence[memoryview]], Any]

_ATOMS = (type(None), bool, int, float, str)
_TAG = "$"
_NUMBERS = "biufcSUmM"  # and numpy's fixed-size strings and times
# A list of at least this many floats is written as float64: JSON would spend 400 ms on a million of them.
_MANY = 256
_DEEPEST = 100


_Key = TypeVar("_Key")
_Method = TypeVar("_Method", bound=Callable[..., Any])
_ENCODERS: Dict[type, Callable[[Any, Any], Any]] = {}
_DECODERS: Dict[str, Callable[[Any, Any], Any]] = {}


def _one_of(table: Dict[_Key, Callable[[Any, Any], Any]], *keys: _Key) -> Callable[[_Method], _Method]:
    """Register a method that encodes values of exactly these types, or decodes those with these tags."""

    def enter(method: _Method) -> _Method:
        table.update(dict.fromkeys(keys, method))
        return method

    return enter


class _NotPlainError(Exception):
    """The value isn't a tree of plain data: it holds an object twice, a cycle, or another type."""


class Encoder:
    """Encodes one value. Buffers listed in ``pickles`` are pickles, to be authenticated.

    ``lost`` lists the parts that can't be pickled: the path in the value, the part itself, and the error.
    """

    def __init__(self, dump: Dump) -> None:
        self.buffers: List[memoryview] = []
        self.pickles: List[int] = []
        self.lost: List[Tuple[str, Any, Exception]] = []
        self._dump = dump
        self._seen: Dict[int, Any] = {}  # keeps the objects alive, so that their ids stay unique
        self._spans: List[Tuple[int, int]] = []  # the memory of arrays and tensors
        self._piecemeal = False
        self._path: List[str] = []

    def encode(self, value: Any) -> Any:
        """Return a tree for ``json.dumps``; raises whatever pickling the value as a whole raises."""
        try:
            tree = self._tree(value)
            last = 0
            overlap = False
            for start, end in sorted(self._spans):
                if start < last:
                    overlap = True
                    break
                last = end
            if not overlap:
                return tree
        except (_NotPlainError, RecursionError):
            pass
        self.__init__(self._dump)  # type: ignore[misc]  # start again
        try:
            return self._pickle(value)
        except Exception:  # whatever a user's __reduce__ raises
            if type(value) not in _ENCODERS:
                raise
            self.__init__(self._dump)  # type: ignore[misc]
            self._piecemeal = True
            try:
                return self._tree(value)
            except RecursionError:
                pass
            raise

    def _pickle(self, value: Any) -> Any:
        oob: List[pickle.PickleBuffer] = []
        data = self._dump(value, oob.append)
        main = self._buffer(memoryview(data))
        self.pickles.append(main)
        return {_TAG: "pickle", "pickle": main, "parts": [self._buffer(raw.raw()) for raw in oob]}

    def _tree(self, value: Any) -> Any:
        type_ = type(value)
        if type_ in _ATOMS:
            # Python refuses to write integers of more than 4300 digits as text.
            return self._other(value) if type_ is int and value.bit_length() > 1024 else value
        encode = _ENCODERS.get(type_) or self._foreign(type_)
        if encode is None:
            return self._other(value)
        if id(value) in self._seen:
            if not self._piecemeal:
                raise _NotPlainError
            if len(self._path) > _DEEPEST:  # a cycle of objects that can't be pickled
                raise RecursionError
        self._seen[id(value)] = value
        return encode(self, value)

    def _other(self, value: Any) -> Any:
        if not self._piecemeal:
            raise _NotPlainError
        try:
            return self._pickle(value)
        except Exception as exc:  # whatever a user's __reduce__ raises
            self.lost.append(("".join(self._path), value, exc))
            return {_TAG: "lost", "index": len(self.lost) - 1}

    def _item(self, step: str, value: Any) -> Any:
        self._path.append(step)
        tree = self._tree(value)
        self._path.pop()
        return tree

    def _items(self, values: Any) -> List[Any]:
        if not self._piecemeal:
            return [self._tree(item) for item in values]
        return [self._item("[%d]" % index, item) for index, item in enumerate(values)]

    def _pairs(self, value: Any) -> List[Any]:
        if not self._piecemeal:
            return [[self._tree(k), self._tree(v)] for k, v in value.items()]
        return [[self._tree(k), self._item("[%r]" % (k,), v)] for k, v in value.items()]

    def _buffer(self, view: memoryview) -> int:
        self.buffers.append(view.cast("B") if view.nbytes else memoryview(b""))
        return len(self.buffers) - 1

    @_one_of(_ENCODERS, list)
    def _list(self, value: List[Any]) -> Any:
        if len(value) >= _MANY and all(type(item) is float for item in value):
            return {_TAG: "floats", "buffer": self._buffer(memoryview(array("d", value)))}
        return self._items(value)

    @_one_of(_ENCODERS, dict)
    def _dict(self, value: Dict[Any, Any]) -> Any:
        if all(type(key) is str for key in value) and _TAG not in value:
            return dict(zip(value, (item for _, item in self._pairs(value))))
        return {_TAG: "dict", "items": self._pairs(value)}

    @_one_of(_ENCODERS, OrderedDict)
    def _ordered(self, value: Any) -> Any:
        items = self._pairs(value)
        # A state_dict carries its modules' versions as an attribute.
        return {_TAG: "ordered", "items": items, "vars": self._tree(vars(value))}

    @_one_of(_ENCODERS, tuple, set, frozenset)
    def _group(self, value: Any) -> Any:
        return {_TAG: type(value).__name__, "items": self._items(value)}

    @_one_of(_ENCODERS, bytes, bytearray)
    def _bytes(self, value: Any) -> Any:
        return {_TAG: type(value).__name__, "buffer": self._buffer(memoryview(value))}

    @_one_of(_ENCODERS, complex)
    def _complex(self, value: complex) -> Any:
        return {_TAG: "complex", "parts": [value.real, value.imag]}

    def _array(self, value: Any) -> Any:
        if (
            value.dtype.hasobject
            or value.dtype.names
            or value.dtype.kind not in _NUMBERS
            or value.dtype.metadata
        ):
            return self._other(value)
        if not value.flags.c_contiguous or not value.flags.writeable:
            return self._other(value)
        shape = list(value.shape)
        flat = value.reshape(-1)
        start = value.__array_interface__["data"][0]
        self._spans.append((start, start + value.nbytes))
        at = self._buffer(memoryview(flat.view("u1")) if flat.nbytes else memoryview(b""))
        return {_TAG: "array", "dtype": value.dtype.str, "shape": shape, "buffer": at}

    def _scalar(self, value: Any) -> Any:
        at = self._buffer(memoryview(value.tobytes()))
        return {_TAG: "scalar", "dtype": value.dtype.str, "buffer": at}

    def _tensor(self, value: Any) -> Any:
        import torch

        if not _dense(value) or value.grad_fn is not None or vars(value):
            return self._other(value)
        start = value.data_ptr()  # on GPUs, too: no two GPUs share an address
        self._spans.append((start, start + value.numel() * value.element_size()))
        # A view of the tensor's bytes, which it keeps alive; needs no numpy and takes every dtype
        plain = value.detach().cpu().contiguous()
        size = plain.numel() * plain.element_size()
        if not size:
            bytes_of = memoryview(b"")
        else:
            import ctypes  # imported late: listing jobs reads no tensors

            raw = (ctypes.c_ubyte * size).from_address(plain.data_ptr())
            raw._tensor = plain  # the memory lives as long as this view
            bytes_of = memoryview(raw).cast("B")
        at = self._buffer(bytes_of)
        return {
            _TAG: "tensor",
            "dtype": str(value.dtype).rpartition(".")[2],
            "shape": list(value.shape),
            "grad": bool(value.requires_grad),
            "parameter": type(value) is torch.nn.Parameter,
            "buffer": at,
            **({"inference": True} if value.is_inference() else {}),
        }

    def _foreign(self, type_: type) -> Any:
        numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
        if numpy is not None:
            if type_ is numpy.ndarray:
                return Encoder._array
            if issubclass(type_, (numpy.number, numpy.bool_)):
                return Encoder._scalar
        if torch is not None and type_ in (torch.Tensor, torch.nn.Parameter):
            return Encoder._tensor
        return None


def decode(tree: Any, buffers: Sequence[memoryview], load: Load, lost: Sequence[Any] = ()) -> Any:
    """Rebuild a value from its tree; arrays and tensors share the memory of ``buffers``.

    The items of ``lost`` take the place of parts that couldn't be pickled.

    Raises ``ImportError`` if the value needs numpy or torch and they can't be imported, and whatever
    ``load`` raises for pickled parts.
    """
    return _Decoder(buffers, load, lost).value(tree)


class _Decoder:
    def __init__(self, buffers: Sequence[memoryview], load: Load, lost: Sequence[Any]) -> None:
        self._missing = lost
        self._buffers = dict(enumerate(buffers))
        self._load = load

    def value(self, tree: Any) -> Any:
        if isinstance(tree, list):
            return [self.value(item) for item in tree]
        if not isinstance(tree, dict):
            return tree
        if _TAG not in tree:
            return {key: self.value(item) for key, item in tree.items()}
        return _DECODERS[tree[_TAG]](self, tree)

    def _buffer(self, index: int) -> memoryview:
        # Each buffer is for one use: a small file that names one many times would fill the memory.
        return self._buffers.pop(index)

    @_one_of(_DECODERS, "pickle")
    def _pickle(self, tree: Any) -> Any:
        parts = [self._buffer(i) for i in tree["parts"]]
        return self._load(self._buffer(tree["pickle"]), parts)

    @_one_of(_DECODERS, "lost")
    def _lost(self, tree: Any) -> Any:
        return self._missing[tree["index"]]

    @_one_of(_DECODERS, "floats")
    def _floats(self, tree: Any) -> Any:
        return array("d", bytes(self._buffer(tree["buffer"]))).tolist()

    @_one_of(_DECODERS, "dict")
    def _dict(self, tree: Any) -> Any:
        return {self.value(k): self.value(v) for k, v in tree["items"]}

    @_one_of(_DECODERS, "ordered")
    def _ordered(self, tree: Any) -> Any:
        mapping = OrderedDict((self.value(k), self.value(v)) for k, v in tree["items"])
        vars(mapping).update(self.value(tree["vars"]))
        return mapping

    @_one_of(_DECODERS, "tuple", "set", "frozenset")
    def _group(self, tree: Any) -> Any:
        kinds: Dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}
        return kinds[tree[_TAG]](self.value(item) for item in tree["items"])

    @_one_of(_DECODERS, "bytes", "bytearray")
    def _bytes(self, tree: Any) -> Any:
        data = self._buffer(tree["buffer"])
        return bytes(data) if tree[_TAG] == "bytes" else bytearray(data)

    @_one_of(_DECODERS, "complex")
    def _complex(self, tree: Any) -> Any:
        return complex(*tree["parts"])

    @_one_of(_DECODERS, "array")
    def _array(self, tree: Any) -> Any:
        import numpy

        flat = numpy.frombuffer(self._buffer(tree["buffer"]), dtype=_numbers(tree["dtype"]))
        return flat.reshape(tree["shape"])

    @_one_of(_DECODERS, "scalar")
    def _scalar(self, tree: Any) -> Any:
        import numpy

        return numpy.frombuffer(self._buffer(tree["buffer"]), dtype=_numbers(tree["dtype"]))[0]

    @_one_of(_DECODERS, "tensor")
    def _tensor(self, tree: Any) -> Any:
        import torch

        dtype = getattr(torch, tree["dtype"])
        if not isinstance(dtype, torch.dtype):
            raise ValueError("torch has no dtype %s" % tree["dtype"])
        with torch.inference_mode(bool(tree.get("inference"))):
            # Over the buffer's own memory, without a copy
            view = memoryview(self._buffer(tree["buffer"]))
            if view.readonly and view.nbytes:
                view = memoryview(bytearray(view))
            data = torch.frombuffer(view, dtype=dtype) if view.nbytes else torch.empty(0, dtype=dtype)
            data = data.reshape(tuple(tree["shape"])).requires_grad_(False)
            if tree["parameter"]:
                return torch.nn.Parameter(data, requires_grad=tree["grad"])
            return data.requires_grad_(tree["grad"])


def _numbers(text: str) -> Any:
    import numpy

    dtype = numpy.dtype(text)
    if dtype.kind not in _NUMBERS or dtype.names:
        raise ValueError("%s isn't written as data" % dtype)
    return dtype


def _dense(tensor: Any) -> bool:
    import torch

    return bool(
        tensor.layout == torch.strided
        and not tensor.is_nested
        and tensor.is_contiguous()
        and tensor.device.type != "meta"
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
    )
