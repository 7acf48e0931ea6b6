"""Trainings that go on with another number of ranks, on real ranks: the loss is that of one process."""

import functools

import pytest
import torch
import torch.distributed.fsdp
from torch.utils.data import DataLoader

from nbtorchjob import Elastic, GlobalBatchSampler, ResumableTraining, submit
from tests.patience import LIMIT
from tests.runtime.trained import STEPS, curve, train

# Of a machine with fewer cores than ranks.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:nproc_per_node=. is more than")]

sharded = pytest.mark.skipif(not hasattr(torch.distributed.fsdp, "fully_shard"), reason="needs torch 2.6")

# In float32 sums of gradients depend on how ranks divide a batch, in the last digit, and so do 15 steps.
BOUNDS = {"float64": 1e-12, "float32": 1e-5}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the losses of a single process that nothing disturbs."""

    @functools.cache
    def losses(dtype, microbatch_size):
        folder = tmp_path_factory.mktemp("undisturbed")
        log = str(folder / "log")
        call = {"dtype": dtype, "log": log, "folder": str(folder / "own"), "microbatch_size": microbatch_size}
        assert submit(train, "plain", **call).result(LIMIT) == 0
        steps, by_step = curve(log)
        assert steps == [*range(STEPS)]
        return by_step

    return losses


@pytest.mark.parametrize(
    ("kind", "dtype", "microbatch_size", "workers"),
    [
        ("ddp", "float64", None, 2),
        pytest.param("fsdp", "float64", 2, 0, marks=sharded),
        ("ddp", "float32", 5, 0),
    ],
)
def test_4_ranks_then_2_then_3_are_one_training(folder, undisturbed, kind, dtype, microbatch_size, workers):
    log = str(folder / "log")
    begun = []
    for ranks, stop in ((4, 3), (2, 9), (3, 0)):
        call = {"log": log, "folder": str(folder / "own"), "stop": stop, "workers": workers}
        spec = Elastic(nproc_per_node=ranks)
        job = submit(train, kind, dtype, **call, microbatch_size=microbatch_size, spec=spec)
        if stop:
            assert "SIGKILL" in str(job.exception(LIMIT))
        else:
            begun.append(job.result(LIMIT))

    steps, losses = curve(log)
    expected = undisturbed(dtype, microbatch_size)
    assert {*steps} == {*range(STEPS)}
    assert begun == [9]
    assert [losses[step] for step in range(STEPS)] == pytest.approx([*expected.values()], rel=BOUNDS[dtype])


class Partly(torch.nn.Module):  # type: ignore[misc]
    """A model with a layer that never gets a gradient, and one that is frozen."""

    def __init__(self):
        super().__init__()
        self.used = torch.nn.Linear(2, 2)
        self.unused = torch.nn.Linear(2, 2)
        self.frozen = torch.nn.Linear(2, 1).requires_grad_(False)

    def forward(self, x):
        return self.frozen(self.used(x))


def sgd(model):
    return [torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)]


def alone(folder=None, optimizers=sgd, microbatch_size=None, **options):
    """Return a training of this process, its model, its optimizers, and a loader."""
    torch.manual_seed(0)
    model = Partly()
    made = optimizers(model)
    data = torch.randn(20, 2, generator=torch.Generator().manual_seed(1))
    sampler = GlobalBatchSampler(data, 4, microbatch_size=microbatch_size)
    loader = DataLoader(data, batch_sampler=sampler)
    return ResumableTraining(model, made, sampler=sampler, folder=folder, **options), model, made, loader


def losses(folder, optimizers, *, zeroed_first, until=None):
    """Train for two epochs, or until a step is over; return the losses."""
    training, model, made, loader = alone(folder, optimizers, every=None)
    seen = []
    for _ in training.epochs(2):
        for x in training.batches(loader):
            if zeroed_first:
                [each.zero_grad() for each in made]
            loss = model(x).square().mean()
            loss.backward()
            [each.step() for each in made]
            if not zeroed_first:
                [each.zero_grad() for each in made]
            seen.append(loss.item())
            if until == training.step:
                training.save()
            elif until is not None and training.step > until:
                return seen
    return seen


OPTIMIZERS = {
    "no state": sgd,
    "momentum": lambda model: [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)],
    "groups": lambda model: [
        torch.optim.AdamW([{"params": layer.parameters(), "lr": 0.2} for layer in model.children()])
    ],
    "two": lambda model: [
        torch.optim.Adam(model.used.parameters()),
        torch.optim.SGD(model.unused.parameters(), lr=0.1),
    ],
}


@pytest.mark.filterwarnings("ignore:torch.distributed is")
@pytest.mark.parametrize("optimizers", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("zeroed_first", [True, False])
def test_optimizers_go_on_to_the_last_bit(folder, optimizers, zeroed_first):
    whole = losses(folder / "whole", optimizers, zeroed_first=zeroed_first)
    first = losses(folder / "parts", optimizers, zeroed_first=zeroed_first, until=3)
    second = losses(folder / "parts", optimizers, zeroed_first=zeroed_first)

    assert first[:4] + second == whole


def test_a_loop_that_needs_weights_and_has_none_is_stopped_at_its_first_step():
    training, _, _, loader = alone(microbatch_size=2)
    with pytest.raises(RuntimeError, match=r"training\.weight wasn't used, and isn't 1 for every batch"):
        for _ in training.batches(loader):
            pass
    assert training.step == 1


def test_a_loader_with_another_sampler_is_refused():
    training, *_ = alone()
    with pytest.raises(ValueError, match="the loader doesn't have the training's sampler"):
        next(training.batches(DataLoader(range(20), batch_size=4)))


def test_a_notebook_saves_nothing_and_counts_what_was_trained_on():
    training, _, _, loader = alone(every=1)
    seen = []
    for epoch in training.epochs(2):
        for x in training.batches(loader):
            seen.append((epoch, training.step, len(x)))
            if epoch == 0 and training.step == 2:
                break

    assert seen == [(0, 0, 4), (0, 1, 4), (0, 2, 4), *((1, step, 4) for step in range(3, 8))]
    assert training.step == 8


@pytest.mark.parametrize("options", [{"every": 0}, {"keep": None}, {"keep": 1.5}])
def test_numbers_that_make_no_sense_are_refused(options):
    with pytest.raises(ValueError, match="expected a number above 0"):
        alone(**options)
