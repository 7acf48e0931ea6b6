"""The process groups of a rank's code: how one begins, and that none is left open."""

from __future__ import annotations

import importlib
import itertools
import sys
from typing import Any, Callable, Iterator

_Handler = Callable[..., Iterator[Any]]


def keep_apart() -> None:
    """Have each ``init_process_group`` of this process start from an empty store.

    Ranks meet in a store of an agent's, which keeps what an earlier group left there: the next one would
    read its addresses, and connect to nobody (torch 2.13 uses the same keys for both).
    """
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    # Private to torch (2.13): the public door takes new schemes only.
    handlers = getattr(rendezvous, "_rendezvous_handlers", {})
    if "env" in handlers:
        handlers["env"] = _numbered(handlers["env"])


def _numbered(handler: _Handler) -> _Handler:
    from torch.distributed import PrefixStore

    numbers = itertools.count()

    def meet(*args: Any, **kwargs: Any) -> Iterator[Any]:
        for store, rank, world_size in handler(*args, **kwargs):
            yield PrefixStore("group-%d" % next(numbers), store), rank, world_size

    return meet


def leave() -> None:
    """Leave the process group that the code left open: torch warns about it in every rank's log."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
