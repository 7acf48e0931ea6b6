"""Trainings that go on with another number of real ranks: the loss is that of one process."""

import collections
import functools
import pickle
import sys

import cloudpickle
import pytest
import torch
import torch.distributed.fsdp
from torch.utils.data import DataLoader

from nbtorchjob import Elastic, GlobalBatchSampler, JobSpec, ResumableTraining, submit
from nbtorchjob.runtime.api.report import ROUND
from nbtorchjob.runtime.rank.call import act
from tests.patience import LIMIT
from tests.runtime.trained import STEPS, curve, train

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

# The warning comes on a machine with fewer cores than ranks.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:nproc_per_node=. is more than")]

sharded = pytest.mark.skipif(not hasattr(torch.distributed.fsdp, "fully_shard"), reason="needs torch 2.6")

# In float32, sums of gradients, and so 15 steps, depend in the last digit on how ranks divide a batch.
BOUNDS = {"float64": 1e-12, "float32": 1e-5}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return a function that returns the losses of one undisturbed process."""

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
    items = optimizers(model)
    data = torch.randn(20, 2, generator=torch.Generator().manual_seed(1))
    sampler = GlobalBatchSampler(data, 4, microbatch_size=microbatch_size)
    loader = DataLoader(data, batch_sampler=sampler)
    return ResumableTraining(model, items, sampler=sampler, folder=folder, **options), model, items, loader


def losses(folder, optimizers, *, zeroed_first, until=None):
    """Train for two epochs, or save at step ``until`` and stop a step later; return the losses."""
    training, model, items, loader = alone(folder, optimizers, every=None)
    values = []
    for _ in training.epochs(2):
        for x in training.batches(loader):
            if zeroed_first:
                [optimizer.zero_grad() for optimizer in items]
            loss = model(x).square().mean()
            loss.backward()
            [optimizer.step() for optimizer in items]
            if not zeroed_first:
                [optimizer.zero_grad() for optimizer in items]
            values.append(loss.item())
            if until == training.step:
                training.save()
            elif until is not None and training.step > until:
                return values
    return values


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
    training, _, (optimizer,), loader = alone(every=1)
    steps = []
    for epoch in training.epochs(2):
        for x in training.batches(loader):
            optimizer.step()
            steps.append((epoch, training.step, len(x)))
            if epoch == 0 and training.step == 2:
                break

    assert steps == [(0, 0, 4), (0, 1, 4), (0, 2, 4), *((1, step, 4) for step in range(3, 8))]
    assert training.step == 8


class Counter:
    """An object with any given state."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def interrupted(folder, left=lambda training, stage: None, **options):
    """Train for three epochs of five steps, or until ``left`` returns True; return the steps and the epochs.

    The loop calls ``left`` at each stage: ahead of a step, behind it, and behind an epoch's scheduler.
    """
    tail = Counter({"epochs": []})
    torch.manual_seed(0)
    model = Partly()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    data = torch.arange(40.0).reshape(20, 2) / 40
    sampler = GlobalBatchSampler(data, 4)
    training = ResumableTraining(
        model, optimizer, scheduler, sampler=sampler, folder=folder, others={"tail": tail}, **options
    )
    steps = []
    for epoch in training.epochs(3):
        for x in training.batches(DataLoader(data, batch_sampler=sampler)):
            if left(training, "ahead"):
                break
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            steps.append((training.step, scheduler.get_last_lr()[0], loss.item()))
            if left(training, "behind"):
                break
        else:
            scheduler.step()
            tail.state["epochs"].append(epoch)
            if left(training, "tail"):
                return steps, tail.state["epochs"]
            continue
        break
    return steps, tail.state["epochs"]


def saves_at(step, stage):
    """Return a function that saves a training at a stage, and then makes it leave both of its loops."""

    def left(training, now):
        if (training.step, now) == (step, stage):
            training.save()
            return True
        return False

    return left


@pytest.mark.filterwarnings("ignore:torch.distributed is")
@pytest.mark.parametrize("every", [None, 3, 5])
@pytest.mark.parametrize(
    ("step", "stage"), [(7, "ahead"), (7, "behind"), (9, "behind"), (10, "tail"), (5, "tail"), (0, "ahead")]
)
def test_a_training_that_saves_and_is_left_goes_on_exactly(folder, step, stage, every):
    whole = interrupted(folder / "whole", every=None)
    assert whole[1] == [0, 1, 2]
    first = interrupted(folder / "parts", saves_at(step, stage), every=every)
    second = interrupted(folder / "parts", every=every)
    assert (first[0] + second[0], second[1]) == whole


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_a_save_behind_an_epochs_batches_has_the_rest_of_its_body(folder):
    def saves_first(training, stage):
        if stage == "tail":
            training.save()
        return False

    def fails(training, stage):
        if stage == "ahead" and training.step == 7:
            raise ZeroDivisionError
        return False

    whole = interrupted(folder / "whole", every=None)
    with pytest.raises(ZeroDivisionError):
        interrupted(folder / "parts", lambda *now: saves_first(*now) or fails(*now), every=None)
    second = interrupted(folder / "parts", every=None)
    assert second[0] == whole[0][5:]
    assert second[1] == [0, 1, 2]


def limited(folder, loops, *, saved="", stop=None):
    """Train for two steps in each of three epochs, or until step ``stop``; return samples, epochs and steps.

    ``loops`` is called with each loop's iterator, and may keep it. The training is saved at the stage
    ``saved``: within each step, behind an epoch's batches, or behind the epochs.
    """
    tail = Counter({"epochs": []})
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = torch.arange(12.0).reshape(12, 1)
    sampler = GlobalBatchSampler(data, 3, shuffle=False)
    loader = DataLoader(data, batch_sampler=sampler)
    training = ResumableTraining(
        model, optimizer, sampler=sampler, every=None, folder=folder, others={"tail": tail}
    )
    samples = []
    for epoch in loops(training.epochs(3)):
        for number, x in enumerate(loops(training.batches(loader))):
            model(x).sum().backward()
            optimizer.step()
            samples.append(int(x[0]))
            if saved == "step":
                training.save()
            if number == 1 or len(samples) == stop:
                break
        tail.state["epochs"].append(epoch)
        if saved == "tail":
            training.save()
        if len(samples) == stop:
            break
    if saved == "behind":
        training.save()
    return samples, tail.state["epochs"], training.step


class Kept(list):  # type: ignore[type-arg]
    """Keeps loops' iterators, as a progress bar with a name does, so that a break doesn't close them."""

    def __call__(self, loop):
        self.append(loop)
        return loop


@pytest.mark.parametrize("keeps", [False, True])
def test_a_loop_that_is_left_has_counted_its_steps_when_the_next_begins(keeps):
    assert limited(None, Kept() if keeps else iter) == ([0, 3] * 3, [0, 1, 2], 6)


@pytest.mark.filterwarnings("ignore:torch.distributed is")
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("saved", ["step", "tail", "behind"])
def test_what_was_requested_in_loops_that_are_left_is_saved_once_the_call_has_ended(folder, keeps, saved):
    loops, options = Kept() if keeps else iter, {"saved": saved, "stop": 3}
    act({"function": limited, "args": [folder, loops], "kwargs": options}, {})
    assert limited(folder, iter)[0] == [3, 6, 0, 3]


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_an_epoch_that_was_saved_behind_batches_that_are_still_open_is_over(folder):
    kept = Kept()
    limited(folder, kept, saved="tail", stop=5)
    assert limited(folder, iter) == ([0, 3], [0, 1, 2], 6)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_step_that_fails_is_trained_on_when_the_loop_is_tried_again(wrapped):
    def prepared(model):
        optimizers = sgd(model)
        if not wrapped:
            return optimizers
        accelerate = pytest.importorskip("accelerate")
        return [accelerate.Accelerator(cpu=True).prepare(optimizers[0])]

    training, model, optimizers, loader = alone(optimizers=prepared)
    trained: list[torch.Tensor] = []
    for failing in ("ahead", "behind", ""):
        try:
            for x in training.batches(loader):
                if len(trained) == 1 and failing == "ahead":
                    raise ZeroDivisionError
                model(x).square().mean().backward()
                optimizers[0].step()
                optimizers[0].zero_grad()
                trained.append(x)
                if len(trained) == 2 and failing == "behind":
                    raise ZeroDivisionError
        except ZeroDivisionError:
            assert training.step == len(trained)
    assert len(trained) == training.step == 5
    assert {*map(tuple, torch.cat(trained).tolist())} == {*map(tuple, loader.dataset.tolist())}


Pair = collections.namedtuple("Pair", "first second")


@pytest.mark.filterwarnings("ignore:torch.distributed is")
@pytest.mark.parametrize("fresh", [{}, {"seen": {}, "n": 0}, {"seen": {"other": 1}}])
def test_others_get_their_whole_state_whatever_a_new_one_has(folder, fresh):
    state = {"seen": {"a": 1.0, "b": [torch.arange(3)]}, "n": 3, "pair": Pair(1, torch.ones(2))}
    alone(folder, others={"one": Counter(state)})[0].save()
    other = Counter(fresh)
    alone(folder, others={"one": other})
    assert repr(other.state) == repr(state)

    with pytest.raises(RuntimeError, match=r"doesn't fit this training: .*others\.two"):
        alone(folder, others={"two": other})


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_a_layer_that_is_unfrozen_later_gets_its_whole_state_back(folder):
    def adam(model):
        return [torch.optim.Adam(model.parameters())]

    training, model, (optimizer,), loader = alone(folder, adam)
    model.frozen.requires_grad_(True)
    for x in training.batches(loader):
        model(x).square().mean().backward()
        optimizer.step()
    training.save()
    again, new_model, (new_optimizer,), _ = alone(folder, adam)

    assert again.step == 5
    state = new_optimizer.state[new_model.frozen.weight]
    assert torch.equal(state["exp_avg"], optimizer.state[model.frozen.weight]["exp_avg"])
    assert [p.requires_grad for p in new_model.parameters()] == [True] * 4 + [False] * 2


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_a_layer_of_integers_stays_as_it_is(folder):
    def with_integers(model):
        model.quantized = torch.nn.Parameter(torch.arange(3), requires_grad=False)
        return sgd(model)

    alone(folder, with_integers)[0].save()
    _, model, *_ = alone(folder, with_integers)
    assert model.quantized.tolist() == [0, 1, 2]
    assert not model.quantized.requires_grad


@pytest.mark.filterwarnings("ignore:torch.distributed is")
@pytest.mark.parametrize(
    ("more", "part"),
    [
        (lambda model, optimizer: setattr(model, "center", torch.ones(2)), "model.center"),
        (
            lambda model, optimizer: optimizer.add_param_group({"params": [*model.unused.parameters()]}),
            "optimizer.param_groups.1.params",
        ),
    ],
    ids=["a buffer", "a group"],
)
def test_what_a_checkpoint_has_and_the_new_objects_lack_is_refused(folder, more, part):
    def first(model):
        model.register_buffer("center", None)
        return [torch.optim.Adam(model.used.parameters())]

    training, model, (optimizer,), _ = alone(folder, first)
    more(model, optimizer)
    training.save()
    with pytest.raises(RuntimeError, match=rf"doesn't fit this training, which has no {part}[:,]"):
        alone(folder, first)


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_an_option_that_an_optimizer_got_later_keeps_no_checkpoint_from_being_loaded(folder):
    def plain(model):
        return [torch.optim.SGD(model.used.parameters(), lr=0.1)]

    training, model, (optimizer,), loader = alone(folder, plain)
    optimizer.param_groups[0]["momentum"] = 0.9
    for x in training.batches(loader):
        model(x).square().mean().backward()
        optimizer.step()
    training.save()

    assert "momentum_buffer" in optimizer.state[model.used.weight]
    assert alone(folder, plain)[0].step == 5


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_a_checkpoint_that_names_no_swaps_is_loaded(folder):
    training, *_ = alone(folder)
    training.step = 3
    training.save()
    (path,) = folder.glob("*/.metadata")
    metadata = pickle.loads(path.read_bytes())
    del metadata.state_dict_metadata["training.swaps"], metadata.planner_data["training.swaps"]
    path.write_bytes(pickle.dumps(metadata))

    assert alone(folder)[0].step == 3


class WithExtraState(Partly):
    """A model with a state of its own, which has another key after the first step."""

    def get_extra_state(self):
        return {key: 1 for key in ("first", "later") if key == "first" or hasattr(self, "trained")}

    def set_extra_state(self, state):
        pass


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_a_model_with_an_extra_state_of_other_keys_goes_on(folder, monkeypatch):
    monkeypatch.setitem(globals(), "Partly", WithExtraState)
    training, model, *_ = alone(folder)
    model.trained = True
    training.step = 3
    training.save()
    assert alone(folder)[0].step == 3


@pytest.mark.filterwarnings("ignore:torch.distributed is")
@pytest.mark.parametrize(("saved", "loaded"), [(Partly, WithExtraState), (WithExtraState, Partly)])
def test_a_model_whose_code_got_or_lost_an_extra_state_goes_on(folder, monkeypatch, saved, loaded):
    monkeypatch.setitem(globals(), "Partly", saved)
    training, *_ = alone(folder)
    training.step = 3
    training.save()
    monkeypatch.setitem(globals(), "Partly", loaded)

    assert alone(folder)[0].step == 3


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_a_second_training_of_a_job_with_the_same_folder_is_noticed(folder, monkeypatch):
    monkeypatch.setenv(ROUND, "7")
    alone(folder)[0].save()
    with pytest.warns(RuntimeWarning, match=r"goes on at step 0 of .*: give each its own folder="):
        alone(folder)
    monkeypatch.setenv(ROUND, "8")  # another turn of a lab
    alone(folder)


def keep_own_place(folder, place=None, backend="gloo"):
    """Save a different place on each rank, or load it; return the states."""
    from torch import distributed

    from nbtorchjob import GlobalBatchSampler, ResumableTraining

    distributed.init_process_group(backend)
    model = torch.nn.Linear(1, 1)
    others = {"place": Counter({"at": place and place + distributed.get_rank()}), "all": Counter({"n": 1})}
    training = ResumableTraining(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        sampler=GlobalBatchSampler(range(8), 4),
        folder=folder,
        others=others,
    )
    if place is not None:
        training.save()
    return [other.state for other in others.values()]


def test_each_rank_gets_its_own_state_and_another_number_of_ranks_none(folder):
    def results(ranks, *args):
        spec = JobSpec(Elastic(nproc_per_node=ranks), all_ranks=True)
        return submit(keep_own_place, str(folder / "own"), *args, spec=spec)

    results(2, 100).results(LIMIT)
    assert results(2).results(LIMIT) == [[{"at": place}, {"n": 1}] for place in (100, 101)]
    failure = str(results(1).exception(LIMIT))
    assert (
        "others['place'] was saved with a different state on each of 2 ranks, but this job has 1: go on"
        in failure
    )


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_save_where_their_process_group_is_for_gpus_alone_as_that_of_nccl(folder, ranks):
    def results(*args):
        spec = JobSpec(Elastic(nproc_per_node=ranks), all_ranks=True)
        job = submit(keep_own_place, str(folder / "own"), *args, backend="cuda:gloo", spec=spec)
        return job.results(LIMIT)

    results(100)
    assert results() == [[{"at": 100 + rank}, {"n": 1}] for rank in range(ranks)]


def break_then_raise(folder):
    """Save after a step and leave the loop, on both ranks; later save within a step, and raise on rank 1."""
    from torch import distributed

    from nbtorchjob import GlobalBatchSampler, ResumableTraining
    from nbtorchjob.runtime.api import training as module

    module._LEAVING_S = 2.0
    distributed.init_process_group("gloo")
    rank, data = distributed.get_rank(), torch.ones(16, 1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer, sampler = torch.optim.SGD(model.parameters(), lr=0.1), GlobalBatchSampler(data, 4)
    training = ResumableTraining(model, optimizer, sampler=sampler, every=None, folder=folder)
    loader = DataLoader(data, batch_sampler=sampler)
    for _ in training.epochs(1):
        for x in training.batches(loader):
            model(x).sum().backward()
            optimizer.step()
            training.save()
            break
        for x in training.batches(loader):
            if training.step == 2:
                training.save()
                if rank == 1:
                    raise ZeroDivisionError("on one rank")
            model(x).sum().backward()
            optimizer.step()


def test_a_rank_that_raises_after_save_fails_alone_and_saves_nothing(folder):
    job = submit(break_then_raise, str(folder / "own"), spec=Elastic(nproc_per_node=2))

    assert "on one rank" in str(job.exception(LIMIT))
    assert job.state.failure
    assert job.state.failure.rank == 1
    assert [name.name[:14] for name in (folder / "own").iterdir()] == ["step-000000001"]
    assert any("rank 1 was ready to save, but not all others" in str(note) for note in job.state.notices)


SCHEDULER = Counter({})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"scheduler": [SCHEDULER]}, TypeError, "'scheduler' is a list, which has no state_dict"),
        ({"others": {"scale": 2.0}}, TypeError, "'scale' is a float, .*: pass several objects one by one"),
        ({"scheduler": SCHEDULER, "others": {"scheduler": SCHEDULER}}, ValueError, "rename one in others="),
        (
            {"optimizers": lambda model: sgd(torch.nn.Linear(1, 1))},
            ValueError,
            "an optimizer has parameters that the model lacks.*: pass a module that has both",
        ),
    ],
    ids=["schedulers", "no state", "two of a name", "another module"],
)
def test_what_can_never_be_saved_is_refused_before_the_work(options, error, message):
    with pytest.raises(error, match=message):
        alone(**options)


@pytest.mark.parametrize("options", [{"every": 0}, {"keep": None}, {"keep": 1.5}])
def test_numbers_that_make_no_sense_are_refused(options):
    with pytest.raises(ValueError, match="expected a number above 0"):
        alone(**options)
