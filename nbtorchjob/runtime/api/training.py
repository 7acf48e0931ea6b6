"""``ResumableTraining``: a training loop that goes on where its newest checkpoint was saved, at any size.

It is exact because the state is that between two steps, at a position in the global order of samples
(``sampler.py``), saved by all ranks together (``dcp.py``), and random numbers are seeded for each share of a
batch, by its place in that order. Nothing depends on which rank did what, or how often the ranks began
anew.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import (
    TYPE_CHECKING,
    Any,
    ContextManager,
    Dict,
    Generator,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
)

from nbtorchjob.runtime.api.checkpoints import checkpoint_dir
from nbtorchjob.runtime.api.points import MARK, Leaving, expect, leaving
from nbtorchjob.runtime.api.report import ROUND
from nbtorchjob.runtime.api.sampler import GlobalBatchSampler, Share, group, seed

if TYPE_CHECKING:
    from nbtorchjob.runtime.api.dcp import Checkpoints

_FOLDER = "training"
_LEAVING_S = 10.0  # for all ranks to leave a loop and save: a rank that raises may be the only one to leave
_TOGETHER_S = 1800.0  # for all ranks to call ``save``, as torch waits in a collective operation
# The position in the loops: outside of them, in an epoch before its batches, in a step, or after the batches.
_OUTSIDE, _EPOCH, _STEP, _TAIL = range(4)
_created: "List[weakref.ref[ResumableTraining]]" = []  # in their order, which is the same on all ranks


class ResumableTraining:
    """A training that goes on where its newest whole checkpoint was saved, with any number of ranks.

    ``model`` is a plain module, or one in ``DistributedDataParallel`` or sharded by ``fully_shard``;
    ``optimizer`` is one or several. ``others`` are further objects with ``state_dict`` and
    ``load_state_dict``, by name, such as a ``GradScaler``. Each state is saved whole, whatever is in it, and
    each rank's own if they differ; then only the same number of ranks can load it. Creating it loads the
    newest whole checkpoint, if there is one, on all ranks together. :meth:`epochs` and :meth:`batches` are
    the loops::

        sampler = GlobalBatchSampler(dataset, batch_size=64)
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=2)
        training = ResumableTraining(model, optimizer, scheduler, sampler=sampler, every=100)
        for epoch in training.epochs(10):
            for x, y in training.batches(loader):
                loss = cross_entropy(model(x), y)
                (loss * training.weight).backward()
                if training.accumulated:
                    optimizer.step()
                    optimizer.zero_grad()
            scheduler.step()

    It saves every ``every`` steps, while the training goes on, and keeps the newest ``keep`` checkpoints
    (one more while it is written). When the job's ranks have to leave, or are about to be joined by another
    node, all save after the same step and raise :class:`Leaving`. Checkpoints go to ``folder``, by default
    a folder in ``checkpoint_dir()``; in a notebook nothing is saved or loaded unless ``folder`` is set.

    Raises ``ValueError`` if the checkpoint belongs to another order of samples, or an optimizer's parameters
    to another module; ``TypeError`` for an object without a state; whatever ``checkpoint_dir()`` raises; and
    ``RuntimeError`` if the checkpoint's state does not fit these objects, or this number of ranks. The
    format is that of ``torch.distributed.checkpoint``.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        scheduler: Any = None,
        *,
        sampler: GlobalBatchSampler,
        every: Optional[int] = 100,
        keep: int = 2,
        others: Optional[Mapping[str, Any]] = None,
        folder: "Optional[str | os.PathLike[str]]" = None,
    ) -> None:
        for name, number in (("every", 1 if every is None else every), ("keep", keep)):
            if not isinstance(number, int) or number < 1:
                raise ValueError("ResumableTraining(%s=%r): expected a number above 0" % (name, number))
        self._model = model
        self._optimizers = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
        self._sampler = sampler
        self._every = every
        self._others = dict(others or {})
        if scheduler is not None:
            if "scheduler" in self._others:
                raise ValueError(
                    "ResumableTraining: others= has a 'scheduler' beside scheduler=: rename one in others="
                )
            self._others["scheduler"] = scheduler
        for name, other in self._others.items():
            if not (hasattr(other, "state_dict") and hasattr(other, "load_state_dict")):
                raise TypeError(
                    "ResumableTraining: %r is a %s, which has no state_dict() and load_state_dict(): pass "
                    "several objects one by one in others=" % (name, type(other).__name__)
                )
        models = {id(parameter) for parameter in model.parameters()}
        groups = [group for item in self._optimizers for group in item.param_groups]
        if not models.issuperset(id(parameter) for group in groups for parameter in group["params"]):
            raise ValueError(
                "ResumableTraining: an optimizer has parameters that the model lacks, which can't be saved "
                "without it: pass a module that has both, such as a ModuleList"
            )
        self.step = 0  # steps of the optimizer, in all lives of the job
        self.accumulated = True  # whether the optimizer steps after the current batch
        self._weight: float = 1.0
        self._weighs = sampler.is_even  # whether the loop uses weights, or needs none
        self._stepped = False  # whether an optimizer has stepped on the current batch
        self._where = _OUTSIDE
        # The newest loops. After a ``break`` they stay open if the code holds their iterator, as a bar does.
        self._epochs: Optional[Generator[int, None, None]] = None
        self._batches: Optional[Generator[Any, None, None]] = None
        self._saves_next = False  # whether to save once the step, or the epoch, is over
        self._saved: Dict[str, Any] = {}  # the position at which the newest checkpoint was saved
        for optimizer in self._optimizers:
            _notice_steps(optimizer, self)
        group()  # raises if this rank is one of several and has no process group yet
        if folder is None and ROUND not in os.environ:
            self._checkpoints = None  # in a notebook
        else:
            from torch import distributed

            from nbtorchjob.runtime.api.dcp import Checkpoints

            path = checkpoint_dir() / _FOLDER if folder is None else folder
            # Threads of ranks meet in this group, as NCCL's has no backend for CPUs. If the default group has
            # none, DCP refuses to save, even for a single rank.
            together = distributed.is_available() and distributed.is_initialized()
            own = distributed.new_group(backend="gloo") if together else None
            self._checkpoints = Checkpoints(os.fspath(path), keep, own)
        if self._checkpoints is not None:
            newest = self._checkpoints.newest()
            if newest is not None:
                self._load(self._checkpoints, newest)
        _created[:] = [reference for reference in _created if reference() is not None]
        _created.append(weakref.ref(self))
        expect()

    @property
    def weight(self) -> float:
        """The factor for a batch's mean loss that makes the average over ranks the global batch's mean.

        It is 1 if ranks have equal shares, and 0 if a rank only takes part in collectives.
        """
        self._weighs = True
        return self._weight

    def epochs(self, total: int) -> Iterator[int]:
        """Yield the numbers, from 0, of the epochs that are left of ``total``, and save once they are over.

        An epoch is over when the next one is requested. After a ``break``, the state is saved only if
        :meth:`save` was called.
        """
        self._leave_loops()
        self._epochs = loop = self._epochs_up_to(total)
        yield from loop

    def _epochs_up_to(self, total: int) -> Generator[int, None, None]:
        while self._sampler.epoch < total:
            self._where = _EPOCH
            try:
                yield self._sampler.epoch
            except GeneratorExit:  # a break, or an exception
                self._leave_batches()
                if self._saves_next and self._sampler.position == self._sampler.length:
                    self._sampler.set_epoch(self._sampler.epoch + 1)
                self._leave(_LEAVING_S)
                raise
            self._where = _TAIL  # a save that was requested behind batches that are still open comes below
            self._leave_batches()
            self._sampler.set_epoch(self._sampler.epoch + 1)
            self._leave()
        self.save()

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of ``loader`` for the shares of the current epoch that this rank has left.

        A batch counts as trained on when the next one is requested; that is also when the state is saved. If
        a ``break`` or an exception ends the loop before, the batch counts if an optimizer has stepped on it,
        and is yielded again otherwise. Raises ``ValueError`` for a loader that doesn't have this training's
        sampler, or returns batches out of order; :class:`Leaving` once all ranks have saved because they have
        to leave; ``RuntimeError`` after a first step without ``weight`` if shares are uneven.
        """
        has_sampler = getattr(loader, "batch_sampler", None) is self._sampler
        if not has_sampler or not getattr(loader, "in_order", True):
            raise ValueError(
                "batches(loader): the loader doesn't have the training's sampler, or isn't in order: pass "
                "DataLoader(dataset, batch_sampler=sampler)"
            )
        self._leave_batches()
        self._batches = loop = self._batches_of(loader)
        yield from loop

    def _batches_of(self, loader: Iterable[Any]) -> Generator[Any, None, None]:
        outside = self._where = _OUTSIDE if self._where == _OUTSIDE else _TAIL
        for batch, share in zip(loader, self._sampler.shares()):
            self._weight, self.accumulated = share.weight, share.last
            seed(share.seed)  # only now: the loader has drawn random numbers of its own
            self._where, self._stepped = _STEP, False
            try:
                with self._gradients_of(share):
                    yield batch
            except GeneratorExit:  # a break, or an exception: which of them is unknown here
                in_step, self._where = self._where == _STEP, outside
                if self._stepped:
                    self._count(share)
                if in_step and self._saves_next:
                    self._save_now(_LEAVING_S)
                raise
            self._where = outside
            self._count(share)
            if share.last:
                if not self._weighs:
                    raise RuntimeError(
                        "training.weight wasn't used, and isn't 1 for every batch: multiply each batch's "
                        "mean loss by it, or choose a batch_size that the number of ranks divides, "
                        "drop_last=True and no microbatch_size"
                    )
                leaves = bool(leaving())
                if leaves or self._saves_next:
                    self._save_now()
                if leaves:
                    raise Leaving
                if self._every is not None and self.step % self._every == 0:
                    self._begin_to_save()
                elif self._checkpoints is not None:
                    self._checkpoints.finish(wait=False)

    def save(self) -> None:
        """Save the state, unless it is saved already, and wait for the save.

        Within a step, it saves once the step is over; after an epoch's batches, once the epoch is over: when
        the next one is requested, or the loop is left. All ranks call it together, and leave a loop within
        10 s of each other: an exception in a single rank waits for the others that long, and saves nothing.
        A loop whose iterator has a name, as in ``bar = tqdm(training.epochs(10))``, counts as left once the
        next one begins or the job's call, or a lab's cell, has ended.
        """
        if self._where in (_STEP, _TAIL):
            self._saves_next = True
        else:
            self._save_now()

    def _save_now(self, within: float = _TOGETHER_S) -> None:
        self._saves_next = False
        if self._checkpoints is not None and self._checkpoints.meet(self.step, within):
            self._begin_to_save()
            self._checkpoints.finish()

    def _leave_loops(self) -> None:
        """Leave loops that are still open, as their iterator has a name: they don't notice a ``break``."""
        if self._epochs is not None:
            self._epochs.close()
        self._leave_batches()

    def _leave_batches(self) -> None:
        if self._batches is not None:
            self._batches.close()

    def _leave(self, within: float = _TOGETHER_S) -> None:
        """Leave an epoch, and save if that was requested after its batches."""
        self._where = _OUTSIDE
        if self._saves_next:
            self._save_now(within)

    def _count(self, share: Share) -> None:
        if share.last:
            self._sampler.advance()
            self.step += 1

    def _begin_to_save(self) -> None:
        now = self._progress([])
        if self._checkpoints is not None and (self._checkpoints.newest_step, self._saved) != (self.step, now):
            self._saved = now
            others = {name: other.state_dict() for name, other in self._others.items()}
            self._checkpoints.save(self.step, self._state(), others)

    def _gradients_of(self, share: Share) -> ContextManager[Any]:
        """Make the model average gradients over ranks only after a rank's last piece of a batch."""
        if self._sampler.microbatch_size is None:
            return contextlib.nullcontext()
        if hasattr(self._model, "set_requires_gradient_sync"):  # fully_shard
            self._model.set_requires_gradient_sync(share.last)
        elif not share.last and hasattr(self._model, "no_sync"):  # DistributedDataParallel
            return self._model.no_sync()  # type: ignore[no-any-return]
        return contextlib.nullcontext()

    def _state(self) -> Dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict  # late: it is slow to import

        with _without_gradients(self._optimizers):
            model, optimizer = get_state_dict(self._model, self._optimizers)
        return {
            "model": model,
            "optimizer": optimizer,
            "training": self._progress(
                [name for name in _names(optimizer) if name not in optimizer["state"]]
            ),
        }

    def _progress(self, stateless: List[str]) -> Dict[str, Any]:
        swaps = [[*getattr(_unwrapped(own), MARK, ())] for own in self._optimizers]
        return {**self._sampler.state_dict(), "step": self.step, "stateless": stateless, "swaps": swaps}

    def _load(self, checkpoints: "Checkpoints", path: str) -> None:
        from torch.distributed.checkpoint.state_dict import set_state_dict

        progress = {"training": self._progress([])}
        if not checkpoints.has(path, "training.swaps"):
            progress["training"].pop("swaps")
        checkpoints.load(path, progress)  # before the rest, which changes the model
        self._sampler.load_state_dict(progress["training"])
        self.step = progress["training"]["step"]
        with _all_trainable(self._optimizers):
            state = {**self._state(), **progress, "others": checkpoints.blank(self._others)}
            # torch has given each parameter a state, and insists on loading it; but a parameter that never
            # had a gradient has none in the checkpoint.
            optimizer, stateless = state["optimizer"], progress["training"]["stateless"]
            aside = {name: optimizer["state"].pop(name, {}) for name in stateless}
            checkpoints.load(path, state)
            optimizer["state"].update(aside)
            set_state_dict(
                self._model, self._optimizers, model_state_dict=state["model"], optim_state_dict=optimizer
            )
        groups = [(own, group) for own in self._optimizers for group in own.param_groups]
        parameters = [(own, parameter) for own, group in groups for parameter in group["params"]]
        for name, (own, parameter) in zip(_names(optimizer), parameters):
            if name in aside:
                own.state.pop(parameter, None)
        for own, swaps in zip(self._optimizers, progress["training"].get("swaps", ())):
            setattr(_unwrapped(own), MARK, swaps)
        self._saved = self._progress([])
        for name, other in self._others.items():
            other.load_state_dict(checkpoints.unpacked(name, state["others"][name]))


def end_of_call() -> None:
    """Make the saves that were requested in loops that are still open: no code is left that goes on there."""
    for training in [reference() for reference in _created]:
        if training is not None and training._saves_next:
            training._leave_loops()


def _notice_steps(optimizer: Any, training: ResumableTraining) -> None:
    """Tell the training about an optimizer's steps, for as long as the training exists."""
    reference = weakref.ref(training)

    def note(*_: Any) -> None:
        training = reference()
        if training is not None:
            training._stepped = True

    own = _unwrapped(optimizer)
    if hasattr(own, "register_step_post_hook"):  # as torch's do; of others, only whole steps are known
        own.register_step_post_hook(note)


def _unwrapped(optimizer: Any) -> Any:
    """Return torch's own optimizer: accelerate (1.15) wraps it, and takes no hooks."""
    return getattr(optimizer, "optimizer", optimizer)


def _names(optimizer: Dict[str, Any]) -> List[str]:
    """Return the names of an optimizer's parameters in order, from its state as DCP has it."""
    return [name for group in optimizer["param_groups"] for name in group["params"]]


@contextlib.contextmanager
def _all_trainable(optimizers: Sequence[Any]) -> Iterator[None]:
    """Unfreeze parameters meanwhile: torch requests no state for a frozen one, which may have one already."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    parameters = [parameter for group in groups for parameter in group["params"]]
    # Integers, as in quantized layers, can't have a gradient.
    frozen = [p for p in parameters if not p.requires_grad and (p.is_floating_point() or p.is_complex())]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


@contextlib.contextmanager
def _without_gradients(optimizers: Sequence[Any]) -> Iterator[None]:
    """Put aside the gradients of optimizers without a state, for which torch makes a step with zeros."""
    groups = [group for optimizer in optimizers if not optimizer.state for group in optimizer.param_groups]
    gradients = [(parameter, parameter.grad) for group in groups for parameter in group["params"]]
    for parameter, _ in gradients:
        parameter.grad = None
    yield
    for parameter, gradient in gradients:
        parameter.grad = gradient


ResumableTraining.__module__ = "nbtorchjob"  # so that a cell's pickle, too, gets it from there
