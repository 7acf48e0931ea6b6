"""An optimizer's values are set while it trains, and again in the next attempt."""

import gc
from typing import Any

import pytest

from nbtorchjob import GlobalBatchSampler, ResumableTraining
from nbtorchjob.runtime.rank.optimizers import CannotSetError, Setting, again

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def parameters():
    return [torch.nn.Parameter(torch.ones(1))]


def step(optimizer, *schedulers):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for scheduler in schedulers:
        scheduler.step()


def rates(make, change, steps=8, lr=1.0):
    """Return the learning rate of each step; ``change`` applies before the fourth."""
    optimizer = torch.optim.SGD(parameters(), lr=lr)
    scheduler, out = make(optimizer), []
    for at in range(steps):
        if at == 3:
            change(optimizer)
        out.append(float(optimizer.param_groups[0]["lr"]))
        step(optimizer, *([scheduler] if scheduler else []))
    return out


class Falling(torch.optim.lr_scheduler.ReduceLROnPlateau):  # type: ignore[misc, name-defined]
    """Reduces the rate at each step, as of a metric that stays the same."""

    def step(self):
        super().step(1.0)


def setting(path, value, space):
    entry = Setting(path, value, space)
    entry.prepare()
    return entry


SCHEDULERS = {
    "none": lambda optimizer: None,
    "lambda": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1)),
    "step": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
    "one cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 2.0, total_steps=20),
    "cosine above": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5, eta_min=0.3),
    "restarts": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(
        optimizer, 4, eta_min=0.3
    ),
    "plateau": lambda optimizer: Falling(optimizer, factor=0.7, patience=0, min_lr=0.3),
    "cycles": lambda optimizer: torch.optim.lr_scheduler.CyclicLR(
        optimizer, 0.2, 1.0, step_size_up=3, cycle_momentum=False
    ),
    "averaging": lambda optimizer: torch.optim.swa_utils.SWALR(optimizer, 0.05, anneal_epochs=6),
    "chained": lambda optimizer: torch.optim.lr_scheduler.ChainedScheduler(
        [
            torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5, 6),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10, eta_min=0.2),
        ]
    ),
    "in a row": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5),
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
        ],
        [5],
    ),
}


# SequentialLR of torch 2.4 passes the epoch itself.
@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_schedule_goes_on_from_the_new_learning_rate(name):
    plain = rates(SCHEDULERS[name], lambda optimizer: None)
    tenth = plain[3] / 10
    changed = rates(SCHEDULERS[name], lambda o: setting("optimizer.lr", tenth, {"optimizer": o}).apply())

    assert changed == pytest.approx([*plain[:3], *(rate / 10 for rate in plain[3:])])
    back = rates(SCHEDULERS[name], lambda o: setting("optimizer.lr", tenth, {"optimizer": o}).apply()())
    assert back == plain


# SequentialLR of torch 2.4 passes the epoch itself.
@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_schedule_of_a_learning_rate_in_a_tensor_goes_on_from_the_new_one(name):
    def begun(change):
        return rates(SCHEDULERS[name], change, lr=torch.tensor(1.0))

    plain = begun(lambda optimizer: None)
    tenth = plain[3] / 10
    changed = begun(lambda o: setting("optimizer.lr", tenth, {"optimizer": o}).apply())

    assert changed == pytest.approx([*plain[:3], *(rate / 10 for rate in plain[3:])])
    back = begun(lambda o: setting("optimizer.lr", tenth, {"optimizer": o}).apply()())
    assert back == pytest.approx(plain)


def test_what_a_scheduler_says_is_the_rate_is_scaled_once():
    optimizer = torch.optim.SGD(parameters(), lr=torch.tensor(1.0))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    shared = optimizer.param_groups[0]["lr"]
    scheduler._last_lr = [shared]  # as with torch 2.4
    undo = setting("optimizer.lr", 0.5, {"optimizer": optimizer}).apply()

    assert (shared.item(), scheduler.get_last_lr()[0].item()) == (0.5, 0.5)
    undo()
    assert (shared.item(), scheduler.get_last_lr()[0].item()) == (1.0, 1.0)


def test_an_optimizer_without_a_name_is_found_where_there_is_one():
    space = {"opt": torch.optim.Adam(parameters(), lr=torch.tensor(0.1), capturable=True)}
    rate = space["opt"].param_groups[0]["lr"]
    setting("opt.lr", 0.5, space).apply()
    assert rate.item() == 0.5
    setting("opt.betas", [0.5, 0.6], space).apply()  # as JSON has a tuple
    assert space["opt"].param_groups[0]["betas"] == (0.5, 0.6)
    assert setting("optimizer.lr", 0.5, {}).current() == 0.5
    assert not Setting("optimizer.lr", 0.5, {}).prepare()
    other = torch.optim.SGD(parameters(), lr=1.0)
    with pytest.raises(
        CannotSetError, match=r"optimizer.lr: this rank has 2 optimizers \(Adam, SGD\): name one"
    ):
        setting("optimizer.lr", 0.5, {})
    assert other.param_groups[0]["lr"] == 1.0


def test_what_an_optimizer_cant_be_given_is_refused():
    two = [{"params": parameters(), "lr": 0.1}, {"params": parameters(), "lr": 0.2}]
    space = {"opt": torch.optim.SGD(parameters(), lr=1.0), "two": torch.optim.SGD(two)}
    space["adam"] = torch.optim.Adam(parameters())
    for path, value, why in [
        ("opt.rate", 1, "opt.rate: it has no rate, only dampening, differentiable"),
        ("opt.lr", True, "opt.lr is 1.0, and can't become True"),
        ("adam.betas", [0.9], r"adam.betas is \(0.9, 0.999\), and can't become \(0.9,\)"),
        ("adam.betas", [0.9, "x"], r"adam.betas is \(0.9, 0.999\), and can't become \(0.9, 'x'\)"),
        ("opt.nesterov", 1, "opt.nesterov is False, and can't become 1"),
        ("two.lr", 1, r"two.lr: its 2 groups have different values \(0.1, 0.2\): set them in a function"),
        ("net.lr", 1, "net.lr: this rank has no global optimizer net"),
    ]:
        with pytest.raises(CannotSetError, match=why):
            setting(path, value, space)


@pytest.mark.parametrize(
    ("make", "key", "value", "why"),
    [
        (torch.optim.RMSprop, "momentum", 0.9, "RMSprop keeps momentum_buffer for that"),
        (torch.optim.RMSprop, "centered", True, "RMSprop keeps grad_avg for that"),
        (torch.optim.AdamW, "amsgrad", True, "AdamW keeps max_exp_avg_sq for that"),
    ],
)
def test_a_value_that_needs_what_an_optimizer_has_not_kept_is_refused(make, key, value, why):
    fresh, optimizer = (make(parameters(), lr=0.1) for _ in range(2))
    step(optimizer)

    with pytest.raises(CannotSetError, match=f"{key}: {why} from its first step on"):
        setting(f"opt.{key}", value, {"opt": optimizer})
    setting(f"opt.{key}", value, {"opt": fresh}).apply()
    for opt in (fresh, optimizer):
        step(opt)
    assert setting(f"opt.{key}", type(value)(0), {"opt": fresh}).apply()


def test_momentum_of_an_optimizer_that_can_begin_with_it_is_set_at_any_step():
    optimizer = torch.optim.SGD(parameters(), lr=0.1)
    step(optimizer)
    setting("opt.momentum", 0.9, {"opt": optimizer}).apply()
    step(optimizer)

    assert optimizer.param_groups[0]["momentum"] == 0.9


def test_what_the_code_has_frozen_is_missed_only_where_that_is_said():
    plain, scheduled = (torch.optim.SGD(parameters(), lr=1.0) for _ in range(2))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(scheduled, 0.5)
    space = {"plain": plain, "scheduled": scheduled}
    gc.collect()
    gc.freeze()
    try:
        with pytest.raises(
            CannotSetError, match=r"scheduled.lr: its schedule can't be found after gc.freeze"
        ):
            setting("scheduled.lr", 0.1, space)
        with pytest.raises(
            CannotSetError, match=r"optimizer.lr: .* no optimizer that is found after gc.freeze"
        ):
            setting("optimizer.lr", 0.1, {})
        setting("plain.lr", 0.1, space).apply()
        setting("scheduled.momentum", 0.9, space).apply()
    finally:
        gc.unfreeze()
    setting("scheduled.lr", 0.1, space).apply()
    step(scheduled, scheduler)

    assert (plain.param_groups[0]["lr"], scheduled.param_groups[0]["lr"]) == (0.1, 0.05)


def test_a_later_attempt_sets_a_value_once_unless_its_checkpoint_has_it():
    def attempt(saved):
        optimizer = torch.optim.SGD(parameters(), lr=1.0)
        again([("s1", Setting("optimizer.lr", 0.1, {"optimizer": optimizer}))])
        if saved:
            optimizer.load_state_dict(saved)
        step(optimizer)
        return optimizer

    first = torch.optim.SGD(parameters(), lr=1.0)
    before = first.state_dict()
    for saved in (None, before):
        assert attempt(saved).param_groups[0]["lr"] == 0.1
    later = attempt(None)
    later.param_groups[0]["lr"] = 0.05  # as a schedule does
    assert attempt(later.state_dict()).param_groups[0]["lr"] == 0.05


def test_a_later_attempt_sets_all_values_of_a_swap():
    optimizer = torch.optim.SGD(parameters(), lr=1.0)
    space = {"optimizer": optimizer}
    again([("s1", Setting(f"optimizer.{key}", 0.1, space)) for key in ("lr", "weight_decay")])
    step(optimizer)

    assert [optimizer.param_groups[0][key] for key in ("lr", "weight_decay")] == [0.1, 0.1]


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_states_from_before_a_value_was_set_are_as_they_were_and_load(tmp_path):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def state():
        return {"state": get_optimizer_state_dict(model, optimizer), "object": optimizer}

    dcp.save(state(), checkpoint_id=tmp_path)
    kept = []
    for swap, rate in (("s1", 0.5), ("s2", 0.25)):
        change = setting("optimizer.lr", rate, {"optimizer": optimizer})
        change.apply(), change.mark(swap)
        kept.append(optimizer.state_dict())
    loaded = state()
    dcp.load(loaded, checkpoint_id=tmp_path)
    assert (loaded["state"]["param_groups"][0]["lr"], optimizer.param_groups[0]["lr"]) == (1.0, 1.0)

    for at, swaps in enumerate((["s1"], ["s1", "s2"])):
        optimizer.load_state_dict(kept[at])
        change = Setting("optimizer.lr", 0, {"optimizer": optimizer})
        change.prepare()
        assert [swap for swap in ("s1", "s2") if change.marked(swap)] == swaps


def test_an_optimizer_that_shares_the_hooks_of_another_returns_its_marks():
    optimizer = torch.optim.SGD(parameters(), lr=1.0)
    wrapper: Any = object.__new__(type("Wrapper", (torch.optim.SGD,), {"optimizer": optimizer}))
    wrapper.__dict__.update(vars(optimizer))  # as Lightning makes one
    change = setting("wrapper.lr", 0.5, {"wrapper": wrapper})
    change.apply(), change.mark("s1")

    assert wrapper.state_dict() == optimizer.state_dict()


def test_a_hook_of_the_codes_own_on_every_step_is_called_also_as_a_value_is_set_again():
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    optimizer, calls = torch.optim.SGD(parameters(), lr=1.0), []
    again([("s1", Setting("optimizer.lr", 0.1, {"optimizer": optimizer}))])
    own = register_optimizer_step_pre_hook(lambda *_: calls.append(1))
    try:
        for _ in range(2):
            step(optimizer)
    finally:
        own.remove()

    assert (optimizer.param_groups[0]["lr"], len(calls)) == (0.1, 2)


@pytest.mark.filterwarnings("ignore:torch.distributed is")
@pytest.mark.parametrize("saved_at", [1, 4])
def test_a_training_that_goes_on_from_a_checkpoint_has_the_value_and_its_schedule(tmp_path, saved_at):
    def attempt(upto, changed_at=None, swaps=()):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        space, out = {"optimizer": optimizer}, {}
        again([(swap, Setting("optimizer.lr", 0.1, space)) for swap in swaps])
        sampler = GlobalBatchSampler(range(64), 4)
        training = ResumableTraining(
            model, optimizer, sampler=sampler, scheduler=scheduler, folder=tmp_path, every=None
        )
        for index in training.batches(torch.utils.data.DataLoader(range(64), batch_sampler=sampler)):
            if training.step == changed_at:
                change = setting("optimizer.lr", 0.1, space)
                change.apply(), change.mark("s1")
            model(index.float()[:, None]).mean().backward()
            optimizer.step()
            out[training.step] = optimizer.param_groups[0]["lr"]
            optimizer.zero_grad()
            scheduler.step()
            if training.step == saved_at:
                training.save()
            if training.step == upto:
                return out
        raise AssertionError("unreachable")

    first = attempt(6, changed_at=2)
    second = attempt(8, swaps=["s1"])

    assert [first[step] for step in (1, 2, 3, 4)] == [0.5, 0.1, 0.05, 0.025]
    assert second[saved_at + 1] == pytest.approx(0.1 if saved_at == 1 else first[5])
    assert second[saved_at + 2] == pytest.approx(second[saved_at + 1] / 2)
