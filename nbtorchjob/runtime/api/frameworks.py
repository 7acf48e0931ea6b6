"""Makes frameworks do by themselves what a user's own code does with ``report`` and ``leaving``.

Metrics that transformers' Trainer, Lightning and accelerate log are reported by rank 0, as in their own
loggers. A trainer that saves also does so when its node is about to end, on all ranks at the same step: by
themselves, both save on SIGTERM, each rank wherever the signal finds it. A framework that differs from the
known ones (transformers 5.23, Lightning 2.6, accelerate 1.15) runs as ever.
"""

from __future__ import annotations

import functools
import math
from contextlib import suppress
from typing import Any, Callable, Dict

from nbtorchjob.runtime.api.points import Leaving, expect, first_call, leaving, swap_point
from nbtorchjob.runtime.api.report import report
from nbtorchjob.runtime.facts import emit, onimport

_CHANGES = onimport.Changes()
_logs = True  # whether their logged metrics are reported


def install(logs: bool) -> None:
    """Patch the frameworks known here once they are imported."""
    global _logs
    _logs = logs
    onimport.change({name: functools.partial(_quietly, change) for name, change in _CHANGES.items()})


def _quietly(do: Callable[..., None], *args: Any) -> None:
    try:
        do(*args)
    except Exception as exc:  # whatever it is, the code runs without this
        _say("%s: %s" % (type(exc).__name__, exc))


@functools.lru_cache(maxsize=1)
def _say(why: str) -> None:
    with suppress(OSError):  # a full disk
        emit("Notice", text="metrics that a framework logs can't be followed: %.300s" % why)


def _tell(logged: Any, counted: Callable[[Any], Dict[str, Any]], by: Any) -> None:
    numbers: Dict[str, Any] = {}
    for name, value in {**logged, **counted(by)}.items():
        with suppress(Exception):  # a tensor of more than one number
            number = value.item() if hasattr(value, "item") else value
            if isinstance(number, (int, float)):
                numbers[str(name)] = number
    if _logs and numbers:
        report(**numbers)


def _total(steps: Any) -> Dict[str, Any]:
    return {"steps": steps} if 0 < steps < math.inf else {}


@_CHANGES.of("transformers.trainer")
def _trainer(module: Any) -> None:
    def counted(state: Any) -> Dict[str, Any]:
        return {"step": state.global_step, **_total(state.max_steps)}

    class Follows(module.TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
            if state.is_world_process_zero:
                _quietly(_tell, logs or {}, counted, state)

        def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            self.saves = args.save_strategy != "no" or getattr(args, "enable_jit_checkpoint", False)
            if self.saves:
                expect()

        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            swap_point()
            if self.saves and leaving():
                control.should_save = control.should_training_stop = True

        def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if first_call():
                self.on_log(args, state, control)  # the step that was saved
                raise Leaving

    module.DEFAULT_CALLBACKS.append(Follows)


@_CHANGES.of("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
def _lightning(module: Any) -> None:
    def counted(trainer: Any) -> Dict[str, Any]:
        # With manual optimization there may be several steps a batch, and then the total is unknown.
        has_total = trainer.training and trainer.lightning_module.automatic_optimization
        total = _total(trainer.estimated_stepping_batches) if has_total else {}
        return {"epoch": trainer.current_epoch, "step": trainer.global_step, **total}

    # Private to Lightning: a logger added here would show in a trainer's names, and `logger=False` has none.
    connector = module._LoggerConnector
    inner = connector.log_metrics

    @functools.wraps(inner)
    def log_metrics(self: Any, metrics: Any, *args: Any, **options: Any) -> Any:
        if metrics and self.trainer.is_global_zero:
            _quietly(_tell, metrics, counted, self.trainer)
        return inner(self, metrics, *args, **options)

    connector.log_metrics = log_metrics

    class Follows(module.Callback):  # type: ignore[misc]
        def on_train_start(self, trainer: Any, *rest: Any) -> None:
            self.saves = any(
                getattr(callback, "save_on_exception", type(callback).__name__ == "OnExceptionCheckpoint")
                for callback in trainer.callbacks
            )
            if self.saves:
                expect()

        def on_train_batch_start(self, trainer: Any, *rest: Any) -> None:
            swap_point()
            if self.saves and leaving():
                if trainer.is_global_zero:
                    _quietly(_tell, {}, counted, trainer)
                raise Leaving

    begin = module.Trainer.__init__

    @functools.wraps(begin)
    def __init__(self: Any, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        _quietly(lambda: self.callbacks.insert(0, Follows()))

    module.Trainer.__init__ = __init__


@_CHANGES.of("accelerate.accelerator")
def _accelerate(module: Any) -> None:
    inner = module.Accelerator.log

    @functools.wraps(inner)
    def log(self: Any, values: Any, step: Any = None, *args: Any, **options: Any) -> Any:
        if self.is_main_process:
            _quietly(_tell, values, lambda step: {} if step is None else {"step": step}, step)
        return inner(self, values, step, *args, **options)

    module.Accelerator.log = log
