"""The values of an optimizer that a job's owner changes while it trains: ``lr`` and the like in its groups.

An optimizer keeps such values in its ``param_groups``: changing the global that they came from has no effect.
An optimizer is named by a global that holds it, or as ``optimizer`` if a rank has only one: a local of a
running function, or an optimizer that Trainer or Lightning made, has no name here.

With schedulers (``torch.optim.lr_scheduler``, 2.13), a schedule goes on from the new learning rate: the
values that it computes its rates from are scaled like the rate.

In a new attempt, a value is set at the first step of the optimizer, once a checkpoint is loaded. The
optimizer is marked, so that a value that comes with a checkpoint isn't set again: its schedule has gone on. A
state that it returns has the marks in its groups, where any code that saves and loads it keeps them. They
stay out of what DCP saves (``torch.distributed.checkpoint``), which can't load an older checkpoint into a
state with more keys.
"""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from typing import Any, Callable, Dict, Iterable, List, Set, Tuple

from nbtorchjob.runtime.api.points import MARK

ANY = "optimizer"
# Values that torch's optimizers keep in their groups, in case a user takes one for a global.
VALUES = frozenset(("lr", "momentum", "dampening", "weight_decay", "betas", "eps", "alpha", "rho"))
# What torch's optimizers keep for a value from their first step on, by what else they keep then.
_KEPT_FOR = {
    "amsgrad": ("exp_avg_sq", "max_exp_avg_sq"),
    "centered": ("square_avg", "grad_avg"),
    "momentum": ("square_avg", "momentum_buffer"),  # RMSprop's; SGD begins with it at any step
}
_SCALED = ("initial_lr", "max_lr", "min_lr", "swa_lr")  # of a group, by schedulers (OneCycleLR, SWALR)
_BASES = ("base_lrs", "max_lrs", "min_lrs", "default_min_lr", "eta_min", "_last_lr")  # of a scheduler


class CannotSetError(Exception):
    """An optimizer's value can't be changed as requested; the message is one line that says why."""

    __module__ = "nbtorchjob"


class Setting:
    """A value to set: ``path`` names an optimizer and the value, as in ``optimizer.lr``."""

    def __init__(self, path: str, value: Any, space: Dict[str, Any]) -> None:
        self.path = path
        self._name, _, self.key = path.partition(".")
        self._value = value
        self._space = space
        self._optimizer: Any = None

    def prepare(self) -> bool:
        """Find the optimizer; return whether the value changes. Raises ``CannotSetError``."""
        named = self._space.get(self._name)
        named = getattr(named, "optimizer", named)  # accelerate and Lightning wrap one (1.15, 2.6)
        if hasattr(named, "param_groups"):
            self._optimizer = named
        elif self._name == ANY:
            self._optimizer = self._only_one()
        else:
            raise CannotSetError("%s: this rank has no global optimizer %s" % (self.path, self._name))
        groups = self._optimizer.param_groups
        lacking = [group for group in groups if self.key not in group]
        if lacking:
            keys = ", ".join(sorted(key for key in lacking[0] if key != "params" and key != MARK))
            raise CannotSetError("%s: it has no %s, only %s" % (self.path, self.key, keys))
        values = [_plain(group[self.key]) for group in groups]
        if any(value != values[0] for value in values):
            raise CannotSetError(
                "%s: its %d groups have different values (%s): set them in a function that you swap"
                % (self.path, len(groups), ", ".join(map(str, values[:4])))
            )
        if isinstance(values[0], tuple) and isinstance(self._value, list):
            self._value = tuple(self._value)  # it came as JSON
        if not _alike(values[0], self._value):
            raise CannotSetError("%s is %r, and can't become %r" % (self.path, values[0], self._value))
        beside, kept = _KEPT_FOR.get(self.key, ("", ""))
        states = getattr(self._optimizer, "state", {}).values() if kept and self._value else ()
        if any(beside in state and kept not in state for state in states):
            raise CannotSetError(
                "%s: %s keeps %s for that from its first step on: set %s where the optimizer is made"
                % (self.path, type(self._optimizer).__name__, kept, self.key)
            )
        if self.key == "lr" and values[0] == 0 and self._schedulers():
            raise CannotSetError(
                "%s: its schedule has set it to 0 for now; try again some steps later" % self.path
            )
        scheduled = self.key == "lr" and any("initial_lr" in group for group in groups)
        if scheduled and _hidden() and not self._schedulers():
            raise CannotSetError(
                "%s: its schedule can't be found after gc.freeze(): set it in a function that you swap"
                % self.path
            )
        return bool(values[0] != self._value)

    def _only_one(self) -> Any:
        """Return this process's only optimizer, not counting wrappers. Raises ``CannotSetError``."""
        base = getattr(sys.modules.get("torch.optim"), "Optimizer", ())
        some = _living(base)
        if len(some) > 1:
            some = []  # keep no references to those that are no longer in use
            gc.collect()
            some = _living(base)
        some = [
            optimizer
            for optimizer in some
            if getattr(optimizer, "optimizer", None) is None and optimizer.param_groups
        ]
        if len(some) != 1:
            names = ", ".join(sorted(type(optimizer).__name__ for optimizer in some))
            many = "%d optimizers (%s): name one that is a global" % (len(some), names)
            none = "no optimizer" + _hidden() * " that is found after gc.freeze(): name one that is a global"
            raise CannotSetError("%s: this rank has %s" % (self.path, many if some else none))
        return some[0]

    def apply(self) -> Callable[[], None]:
        """Set the value; return a function that restores the old one."""
        undo: List[Callable[[], None]] = []
        groups, before = self._optimizer.param_groups, self.current()
        if self.key == "lr" and before:
            # A scheduler may hold the rate's own tensor, which is set below.
            own = {id(group["lr"]) for group in groups if hasattr(group["lr"], "fill_")}
            for group in groups:
                _scale(group, _SCALED, self._value / before, own, undo)
            for scheduler in self._schedulers():
                _scale(vars(scheduler), _BASES, self._value / before, own, undo)
        for group in groups:
            value = group[self.key]
            if hasattr(value, "fill_"):  # a tensor, which a captured graph reads
                undo.append(functools.partial(value.fill_, value.item()))
                value.fill_(self._value)
            else:
                _replace(group, self.key, self._value, undo)

        def put_back() -> None:
            while undo:
                undo.pop()()

        return put_back

    def mark(self, swap: str) -> Callable[[], None]:
        """Mark the optimizer: a swap has set the value. Return a function that removes the mark."""
        mark = "%s %s" % (swap, self.key)
        _marks(self._optimizer).append(mark)

        def unmark() -> None:
            marks = _marks(self._optimizer)
            if mark in marks:  # the code may have loaded a state since
                marks.remove(mark)

        return unmark

    def marked(self, swap: str) -> bool:
        """Whether that swap has already set the value, by the marks in a checkpoint that was loaded since."""
        return "%s %s" % (swap, self.key) in _marks(self._optimizer)

    def current(self) -> Any:
        """Return the value as it is now."""
        return _plain(self._optimizer.param_groups[0][self.key])

    def _schedulers(self) -> List[Any]:
        module = sys.modules.get("torch.optim.lr_scheduler")
        base = getattr(module, "LRScheduler", ())
        return [
            scheduler
            for scheduler in _living(base)
            if getattr(scheduler, "optimizer", None) is self._optimizer
        ]


def again(settings: List[Tuple[str, Setting]]) -> None:
    """Set the values that earlier attempts set, by their swaps' ids, when their optimizers first step."""
    from torch.optim import optimizer

    left = list(settings)

    def step(stepping: Any, args: Any, kwargs: Any) -> None:
        if not left:
            return
        # DCP steps a new optimizer with a rate of 0, to get its state, before it loads one.
        rates = [_plain(group.get("lr", 1)) for group in stepping.param_groups]
        for entry in list(left) if any(rates) else ():
            swap, setting = entry
            try:
                setting.prepare()
            except CannotSetError:
                continue
            if setting._optimizer is stepping:
                left.remove(entry)
                if not setting.marked(swap):
                    setting.apply()
                    setting.mark(swap)

    # The hook stays: torch iterates over all hooks at a step, which fails if one removes itself.
    optimizer.register_optimizer_step_pre_hook(step)


_marking: Any = weakref.WeakSet()  # optimizers whose states have their marks


def _marks(optimizer: Any) -> List[str]:
    """Return an optimizer's own list of marks, and have its states return and accept them from now on."""
    if any(MARK in group for group in optimizer.param_groups):  # a state that was loaded had them
        _take_marks(optimizer)
    if optimizer not in _marking:
        _marking.add(optimizer)
        if hasattr(optimizer, "register_state_dict_post_hook"):  # as torch's do
            optimizer.register_state_dict_post_hook(_return_marks)
            optimizer.register_load_state_dict_post_hook(_take_marks)
    marks: List[str] = vars(optimizer).setdefault(MARK, [])
    return marks


def _take_marks(optimizer: Any) -> None:
    """Move the marks of a loaded state from the groups to the optimizer."""
    marks: List[str] = []
    for group in optimizer.param_groups:
        marks = group.pop(MARK, [])
    setattr(optimizer, MARK, marks)


def _return_marks(optimizer: Any, state: Dict[str, Any]) -> None:
    """Add an optimizer's marks to a state that it returns, unless DCP requested it."""
    frame: Any = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("torch.distributed.checkpoint."):
            return
        frame = frame.f_back
    marks = getattr(getattr(optimizer, "optimizer", optimizer), MARK, ())  # Lightning's has the same hooks
    for group in state["param_groups"] if marks else ():
        group[MARK] = [*marks]


# Made anew as a rank begins: the collector lists it until the code freezes what there is. To count what is
# frozen takes 40 ms in a process that has torch.
unfrozen: List[Any] = []


def _hidden() -> bool:
    """Whether the code has frozen objects: the collector doesn't list them."""
    return not any(entry is unfrozen for entry in gc.get_objects())


def _living(type_: Any) -> List[Any]:
    return [entry for entry in gc.get_objects() if issubclass(type(entry), type_)] if type_ else []


def _alike(old: Any, new: Any) -> bool:
    """Whether a value can take the place of another, as far as their types tell."""
    old = _plain(old)
    if isinstance(old, (int, float)) and not isinstance(old, bool):
        return isinstance(new, (int, float)) and not isinstance(new, bool)
    if isinstance(old, (tuple, list)) and type(old) is type(new):
        return len(old) == len(new) and all(map(_alike, old, new))
    return type(old) is type(new)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _scale(
    place: Dict[str, Any],
    keys: Iterable[str],
    factor: float,
    kept: Set[int],
    undo: List[Callable[[], None]],
) -> None:
    """Multiply rates, and lists of rates, by ``factor``, but not those whose ids are ``kept``.

    Tensors are replaced, not changed in place.
    """
    for key in keys:
        value: Any = place.get(key)
        rates = value if isinstance(value, list) else [value]
        if all(isinstance(rate, (int, float)) or hasattr(rate, "fill_") for rate in rates):
            scaled = [rate if id(rate) in kept else rate * factor for rate in rates]
            _replace(place, key, scaled if isinstance(value, list) else scaled[0], undo)


def _replace(place: Dict[str, Any], key: str, value: Any, undo: List[Callable[[], None]]) -> None:
    previous = place[key]
    undo.append(lambda: place.__setitem__(key, previous))
    place[key] = value
