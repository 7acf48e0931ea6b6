"""What travels, with its size: the names that a call takes along."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pickle import PickleBuffer
from types import BuiltinFunctionType, FunctionType, MappingProxyType, ModuleType
from typing import Any

from nbtorchjob.capture import identity
from nbtorchjob.capture.identity import Buffer
from nbtorchjob.capture.model import NO_ITEMS, Ship
from nbtorchjob.capture.modules import LocalFile
from nbtorchjob.capture.pickling import Pickler
from nbtorchjob.runtime.facts.described import hidden
from nbtorchjob.runtime.facts.secret import has_password
from nbtorchjob.runtime.objects.memory import HOST, Memory, Place, view_of
from nbtorchjob.state.info import SAMPLED
from nbtorchjob.text import words

# Sizing pickles each object once more, so it stops here and takes the rest from the whole's size.
_LIMIT = 2_000_000
_LOOKED = 400_000  # bytes of a pickle that a digest covers
_LINE = 160
_MOST_NAMES = 200  # in a record
_CODE = ("function", "class")
_IMPORTED = ("module", "imported function", "imported class")
# Classes whose objects find out when they are created which process of how many they are in (torch,
# accelerate 1.15, transformers 5.23, Lightning 2.6).
_OF_A_PROCESS = frozenset(
    (
        "torch.utils.data.distributed.DistributedSampler",
        "accelerate.accelerator.Accelerator",
        "accelerate.data_loader.DataLoaderShard",
        "accelerate.optimizer.AcceleratedOptimizer",
        "accelerate.state.PartialState",
        "transformers.trainer.Trainer",
        "transformers.training_args.TrainingArguments",
        "lightning.fabric.fabric.Fabric",
        "lightning.pytorch.trainer.trainer.Trainer",
        "lightning_fabric.fabric.Fabric",
        "pytorch_lightning.trainer.trainer.Trainer",
    )
)


def ships(
    objects: Mapping[str, Any],
    whole: int,
    sources: Mapping[str, str] = MappingProxyType({}),
    parameters: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Ship, ...]:
    """Measure each of ``objects``; ``whole`` is the size in bytes of all of them together.

    ``sources`` are the texts of the notebook's files whose code is in them; ``parameters`` are a function's
    names for its positional arguments (``args[0]``).
    """
    secret = {name for name, value in objects.items() if is_secret(parameters.get(name, name), value)}
    alone = len(objects) == 1 and whole > _LIMIT
    gauges = {name: _Gauge(value, _LOOKED if alone else _LIMIT) for name, value in objects.items()}
    sizes = {name: whole if alone else gauge.size for name, gauge in gauges.items() if alone or gauge.whole}
    rest = max(0, whole - sum(sizes.values()))
    over = max(_LIMIT, rest // max(1, len(gauges) - len(sizes)))
    return tuple(
        Ship(
            name,
            kind := type_name(value),
            sizes.get(name, over),
            "" if name in secret else _short(value),  # cards are saved with the notebook
            gauges[name].digest(sources) if kind not in (*_CODE, *_IMPORTED) and name not in secret else "",
        )
        for name, value in objects.items()
    )


def of_a_process(objects: Mapping[str, Any], parameters: Mapping[str, str]) -> dict[str, str]:
    """Return those of ``objects`` that were created for the notebook's process: names with their types'."""
    return {
        parameters.get(name, name): type(value).__name__
        for name, value in objects.items()
        if any(f"{base.__module__}.{base.__qualname__}" in _OF_A_PROCESS for base in type(value).__mro__)
    }


def captured(all_ships: Iterable[Ship], files: Iterable[LocalFile]) -> dict[str, tuple[str, str]]:
    """Return the record of data and local modules: by name, a description and the digest."""
    rows = {
        ship.name: (ship.value or f"{ship.type}, {ship.human}", ship.digest)
        for ship in all_ships
        if ship.type not in (*_CODE, *_IMPORTED)
    }
    for top, some in _by_module(files).items():
        size = words.size(sum(len(file.data) for file in some))
        rows[top] = (f"module, {words.count(len(some), 'file')}, {size}", identity.of_files(some))
    return dict([*rows.items()][:_MOST_NAMES])


def digest(value: Any) -> str:
    """Return a digest that changes with a value, and tells it from other values in this process.

    The digest of a big value consists of samples and its identity, as samples alone can't tell all values
    apart.
    """
    try:
        content_digest = _Gauge(value, _LOOKED).digest(NO_ITEMS)
    except Exception:  # whatever an object's own code raises while it is pickled
        content_digest = SAMPLED
    return f"{content_digest} {id(value)}" if content_digest.startswith(SAMPLED) else content_digest


def line(all_ships: Iterable[Ship], files: Iterable[LocalFile]) -> str:
    """Describe in one line what travels: code first, then the biggest; at most 160 characters."""
    own_ships = [ship for ship in all_ships if ship.type not in _IMPORTED]
    code = [ship.name for ship in own_ships if ship.type in _CODE]
    data = sorted((ship for ship in own_ships if ship.type not in _CODE), key=lambda s: -s.size)
    modules = _by_module(files).items()
    local = [f"{top} ({words.size(sum(len(file.data) for file in some))})" for top, some in modules]
    parts = [*code, *map(_word, data), *local]
    if parts:
        text = f"ships {parts[0]}"
        for index, word in enumerate(parts[1:], 1):
            more = f", and {len(parts) - index} more"
            if len(text) + len(word) + 2 + len(more) > _LINE:
                return text[: _LINE - len(more)] + more
            text += f", {word}"
        return text[:_LINE]
    return "sent with the cell: nothing but its code"


def type_name(value: Any) -> str:
    """Name the type of a value, with its shape and dtype if it has them: ``Tensor 3x4 int64``."""
    if isinstance(value, ModuleType):
        return "module"
    if isinstance(value, type | FunctionType | BuiltinFunctionType):
        word = "class" if isinstance(value, type) else "function"
        return word if value.__module__ == "__main__" else f"imported {word}"
    shape, dtype = _attribute(value, "shape"), _attribute(value, "dtype")
    words = [type(value).__name__]
    if isinstance(shape, tuple) and shape:
        words.append("x".join(map(str, shape)))
    if dtype is not None:
        words.append(str(dtype).rpartition(".")[2])
    return " ".join(words)


def _attribute(value: Any, name: str) -> Any:
    if not hasattr(type(value), name):
        return None
    try:
        return getattr(value, name)
    except Exception:  # a property's own code; a type is only a word
        return None


def is_secret(name: str, value: Any) -> bool:
    """Whether only the type of a value of that name may be shown; an address may hold a password."""
    return hidden(value, name) or (isinstance(value, str) and has_password(value))


def _short(value: Any) -> str:
    plain = value is None or type(value) in (bool, float, str)
    # Python refuses to write integers of more than 4300 digits as text.
    plain = plain or (type(value) is int and value.bit_length() < 64)
    return text if plain and len(text := repr(value)) <= 20 else ""


def _word(ship: Ship) -> str:
    if ship.value:
        return f"{ship.name}={ship.value}"
    return f"{ship.name} ({ship.type}, {ship.human})" if ship.size >= 1000 else ship.name


def _by_module(files: Iterable[LocalFile]) -> dict[str, list[LocalFile]]:
    by_module: dict[str, list[LocalFile]] = {}
    for file in files:
        by_module.setdefault(file.path.partition("/")[0], []).append(file)
    return by_module


class _TooBigError(Exception):
    """The object is bigger than the limit."""


class _Memory(Memory):
    """Memory of arrays and tensors; its buffers are in the pickle's order, not in address order."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers: list[Buffer] = []

    def add(self, start: int, end: int, owner: Any, floor: int, place: Place = HOST) -> int:
        # Views are made only when read: each view of a GPU's memory is a copy.
        def read(first: int, last: int) -> memoryview:
            return view_of(place, start + first, start + last, [owner])

        self.buffers.append(Buffer(end - start, read))
        return super().add(start, end, owner, floor, place)


class _Sizer(Pickler):
    """Pickles functions without the globals that they read: these are measured separately."""

    def __init__(self, file: Any, buffer_callback: Any) -> None:
        super().__init__(file, buffer_callback)
        self.memory: _Memory = _Memory()

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is FunctionType and obj.__module__ == "__main__":  # a proxy may have lost its class
            state = (obj.__code__, obj.__defaults__, obj.__kwdefaults__, obj.__closure__)
            return object, (), (*state, obj.__dict__)
        return super().reducer_override(obj)


class _Gauge:
    """Measures a value's pickle, up to ``most`` bytes; ``whole`` is whether that was all of it."""

    def __init__(self, value: Any, most: int) -> None:
        self.size = 0
        self._most = most
        self.whole = True
        self._parts: list[bytes] = []
        buffers: list[Buffer] = []

        def keep(buffer: PickleBuffer) -> None:
            view = buffer.raw()
            buffers.append(Buffer(view.nbytes, lambda first, last: view[first:last]))

        sizer = _Sizer(self, keep)
        try:
            sizer.dump(value)
        except _TooBigError:
            self.whole = False
        self._seen = self.size <= _LOOKED
        self.size += sum(buffer.size for buffer in buffers) + sizer.memory.size
        self._buffers = (*buffers, *sizer.memory.buffers)

    def write(self, data: bytes) -> None:
        """Count ``data``; raises ``_TooBigError`` beyond the limit."""
        self._parts.append(bytes(data[: max(0, _LOOKED - self.size)]))
        self.size += len(data)
        if self.size > self._most:
            raise _TooBigError

    def digest(self, sources: Mapping[str, str]) -> str:
        """Return the value's digest."""
        # For a longer pickle only its beginning counts, so the digest is the same wherever pickling stopped.
        buffers = self._buffers if self._seen else ()
        return identity.of_value(b"".join(self._parts), buffers, sources, whole=self._seen)
