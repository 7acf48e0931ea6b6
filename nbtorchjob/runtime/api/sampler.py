"""``GlobalBatchSampler``: the order in which a training sees its samples, however many ranks share them.

An epoch's order depends only on the seed and the epoch, and is cut into global batches. Ranks divide
each global batch among themselves, in its order, so a training that goes on with more or fewer ranks sees
the same samples at the same steps. If a batch doesn't divide evenly, each share has a weight: the
average over ranks of ``weight * loss`` is then the mean loss of the global batch.
"""

from __future__ import annotations

import hashlib
import operator
import os
import random
import sys
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sized, Tuple

try:
    from torch.utils.data import Dataset, Sampler
except ImportError:  # a host that only submits, and creates no sampler
    Dataset = Sampler = object


class Share(NamedTuple):
    """A rank's part of a global batch in one pass: ``size`` samples from place ``begin`` of the epoch."""

    begin: int
    size: int
    weight: float  # of its mean loss, before losses are averaged over ranks
    seed: int  # of the rank's random numbers
    last: bool  # whether the rank's optimizer steps after it


class GlobalBatchSampler(Sampler):  # type: ignore[misc]
    """A batch sampler whose global batches don't depend on the number of ranks.

    Pass it as ``DataLoader(dataset, batch_sampler=sampler)``. Each rank gets its share of every global
    batch of ``batch_size`` samples, as lists of indices. ``microbatch_size`` cuts a global batch into
    pieces of that many samples, at places that don't depend on the number of ranks either; a rank gets its
    pieces one after the other, all ranks the same number. Random numbers are seeded for each share, so those
    of dropout stay the same with another number of ranks only if there are pieces.

    ``seed`` and the epoch determine the order; with ``shuffle=False`` it is the dataset's. ``drop_last``
    leaves out an epoch's last samples if they don't fill a batch. ``num_replicas`` and ``rank`` are those
    of the default process group, unless a training with tensor parallelism passes those of its
    data-parallel group, both as for torch's ``DistributedSampler``. The dataset needs a length.

    An iteration yields the rest of the epoch after ``position``, which counts samples of all ranks. Only
    :class:`ResumableTraining` moves it, once they were trained on: a loader's workers may have fetched more.
    ``len()`` is the number of batches of a whole epoch on a rank.

    Raises ``ValueError`` for numbers that aren't whole, sizes below 1, a rank that doesn't exist, and a
    dataset without a batch; ``RuntimeError`` for a rank that has no process group yet.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        *,
        microbatch_size: Optional[int] = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        num_replicas: Optional[int] = None,
        rank: Optional[int] = None,
    ) -> None:
        if num_replicas is None or rank is None:
            ranks, own = group()
            num_replicas = ranks if num_replicas is None else num_replicas
            rank = own if rank is None else rank
        self.num_replicas = num_replicas
        self.rank = rank
        self.batch_size = batch_size
        self.microbatch_size = microbatch_size
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        for name in ("batch_size", "microbatch_size", "num_replicas", "rank", "seed"):
            number = getattr(self, name)
            if number is None and name == "microbatch_size":
                continue
            try:
                # Python's own integers: the order depends on the seed's repr, and numpy's have another one.
                setattr(self, name, operator.index(number))
            except TypeError:
                message = "GlobalBatchSampler(%s=%r): expected a whole number"
                raise ValueError(message % (name, number)) from None
        for name in ("batch_size", "microbatch_size", "num_replicas"):
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ValueError("GlobalBatchSampler(%s=%r): expected a number above 0" % (name, size))
        if not 0 <= self.rank < self.num_replicas:
            message = "GlobalBatchSampler(rank=%r): expected a number from 0 to %d"
            raise ValueError(message % (self.rank, self.num_replicas - 1))
        self._total = len(dataset)
        self.length = self._total - (self._total % self.batch_size if drop_last else 0)
        if self.length < 1:
            message = "GlobalBatchSampler: the dataset has %d samples, fewer than one batch of %d"
            raise ValueError(message % (self._total, self.batch_size if drop_last else 1))
        self.epoch = 0
        self.position = 0
        self._seeds_samples = False

    def __iter__(self) -> Iterator[List[Any]]:
        import torch

        if not self.shuffle:
            order = torch.arange(self._total)
        else:
            generator = torch.Generator()
            generator.manual_seed(_mixed(self.seed, self.epoch, "order"))
            order = torch.randperm(self._total, generator=generator)
        for share in self.shares():
            places = range(share.begin, share.begin + share.size)
            indices = order[share.begin : share.begin + share.size]
            if self._seeds_samples:
                yield [(index, self._derived(place)) for index, place in zip(indices.tolist(), places)]
            else:
                yield indices.tolist()

    def __len__(self) -> int:
        whole, rest = divmod(self.length, self.batch_size)
        return whole * self._passes(self.batch_size) + (self._passes(rest) if rest else 0)

    @property
    def is_even(self) -> bool:
        """Whether each share of each batch has weight 1."""
        sizes = {min(self.batch_size, self.length), self.length % self.batch_size or self.batch_size}
        ranks = self.num_replicas
        return all(
            self._count(size) == ranks and self._piece(ranks - 1, size)[1] * ranks == size for size in sizes
        )

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of ``epoch``, unless it is the current one: then its position stays."""
        if epoch != self.epoch:
            self.epoch, self.position = epoch, 0

    def advance(self) -> None:
        """Count one more global batch as trained on."""
        self.position = min(self.position + self.batch_size, self.length)

    def shares(self) -> Iterator[Share]:
        """Yield this rank's shares of the rest of the epoch, in the order of their batches."""
        for begin in range(self.position, self.length, self.batch_size):
            size = min(self.batch_size, self.length - begin)
            even, more = divmod(self._count(size), self.num_replicas)
            first, own = self.rank * even + min(self.rank, more), even + (self.rank < more)
            passes = self._passes(size)
            for number in range(passes):
                # A rank with fewer pieces repeats the first one without weight: all take part in each
                # collective.
                place, count = self._piece(first + number if number < own else 0, size)
                weight = count * self.num_replicas / size if number < own else 0.0
                yield Share(begin + place, count, weight, self._derived(begin + place), number == passes - 1)

    def seeded(self, dataset: Any) -> Any:
        """Return the dataset with random numbers that depend on the seed and a sample's place in the order.

        The numbers that its ``__getitem__`` draws from ``random``, ``torch`` and ``numpy.random`` are then
        the same, whichever rank or worker fetches the sample. Pass the returned dataset to the loader that
        has this sampler.
        """
        self._seeds_samples = True
        return _Seeded(dataset)

    def state_dict(self) -> Dict[str, Any]:
        """Return the values that determine the order, and the position in it."""
        return {**self._fixed(), "epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Go to a position. Raises ``ValueError`` if it belongs to another order."""
        for name, own_value in self._fixed().items():
            if state[name] != own_value:
                message = (
                    "the checkpoint was saved with %s=%r, this sampler has %r: it must not depend on the "
                    "number of ranks, and a training that changes it needs a new checkpoint folder"
                )
                raise ValueError(message % (name, state[name], own_value))
        self.epoch, self.position = state["epoch"], state["position"]

    def _fixed(self) -> Dict[str, Any]:
        names = ("batch_size", "microbatch_size", "seed", "shuffle", "drop_last")
        return {"samples": self._total, **{name: getattr(self, name) for name in names}}

    def _derived(self, place: int) -> int:
        return _mixed(self.seed, self.epoch, place)

    def _count(self, size: int) -> int:
        """Return how many pieces a batch of ``size`` samples has; some may be repeated (``shares``)."""
        return (
            min(self.num_replicas, size) if self.microbatch_size is None else -(-size // self.microbatch_size)
        )

    def _piece(self, number: int, size: int) -> Tuple[int, int]:
        """Return where in a batch of ``size`` samples a piece begins, and its own size."""
        if self.microbatch_size is not None:
            begin = number * self.microbatch_size
            return begin, min(self.microbatch_size, size - begin)
        even, more = divmod(size, self._count(size))
        return number * even + min(number, more), even + (number < more)

    def _passes(self, size: int) -> int:
        return -(-self._count(size) // self.num_replicas)


GlobalBatchSampler.__module__ = "nbtorchjob"  # so that a cell's pickle, too, gets it from there


class _Seeded(Dataset):  # type: ignore[misc]
    """A dataset that seeds random numbers for each sample; the seeds come with the indices."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, tuple):
            return self._dataset[index]
        number, seed_ = index
        seed(seed_)
        return self._dataset[number]


def seed(number: int) -> None:
    """Seed ``random``, torch on all devices, and numpy if it is imported."""
    import torch

    random.seed(number)
    torch.manual_seed(number)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number % (1 << 32))


def _mixed(*parts: Any) -> int:
    """Return a number of 63 bits derived from the parts; those of neighbouring parts aren't related."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def group() -> Tuple[int, int]:
    """Return the size of the default process group and the rank in it; 1 and 0 for a single process.

    Raises ``RuntimeError`` for one of several ranks that has no process group yet.
    """
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size(), distributed.get_rank()
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise RuntimeError(
            "this rank has no process group: call torch.distributed.init_process_group() first"
        )
    return 1, 0
