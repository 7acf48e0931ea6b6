"""The order of a training's samples: the same batches for any number of ranks, each sample once."""

import signal

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from nbtorchjob import GlobalBatchSampler

sizes = st.integers(1, 9)


def of_all(ranks, length, batch_size, **options):
    return [
        GlobalBatchSampler(range(length), batch_size, num_replicas=ranks, rank=rank, **options)
        for rank in range(ranks)
    ]


def trained(samplers):
    """Return the global batches that ranks train on in an epoch, each in the order of its shares."""
    length, batch_size = samplers[0].length, samplers[0].batch_size
    batches: dict[int, dict[int, int]] = {}
    for sampler in samplers:
        for share, indices in zip(sampler.shares(), sampler, strict=True):
            if share.weight:
                places = range(share.begin, share.begin + share.size)
                batches.setdefault(share.begin // batch_size, {}).update(zip(places, indices, strict=True))
    assert sorted(place for batch in batches.values() for place in batch) == [*range(length)]
    return [[index for _, index in sorted(batch.items())] for _, batch in sorted(batches.items())]


@given(ranks=sizes, length=st.integers(1, 40), batch_size=sizes, microbatch_size=st.none() | sizes)
def test_any_number_of_ranks_shares_the_same_batches(ranks, length, batch_size, microbatch_size):
    (alone,) = of_all(1, length, batch_size, seed=4)
    samplers = of_all(ranks, length, batch_size, seed=4, microbatch_size=microbatch_size)

    assert trained(samplers) == list(alone)
    assert sorted(index for batch in alone for index in batch) == [*range(length)]
    for sampler in samplers:
        assert len(sampler) == len(list(sampler)) == len(list(samplers[0]))


@given(ranks=sizes, length=st.integers(1, 40), batch_size=sizes, microbatch_size=st.none() | sizes)
def test_weights_make_the_average_over_ranks_the_batchs_mean(ranks, length, batch_size, microbatch_size):
    samplers = of_all(ranks, length, batch_size, microbatch_size=microbatch_size)
    losses = torch.rand(length, dtype=torch.float64)
    total: dict[int, float] = {}
    for sampler in samplers:
        for share in sampler.shares():
            mean = losses[share.begin : share.begin + share.size].mean().item()
            batch = share.begin // batch_size
            total[batch] = total.get(batch, 0.0) + share.weight * mean / ranks

    means = [losses[begin : begin + batch_size].mean().item() for begin in range(0, length, batch_size)]
    assert [total[batch] for batch in sorted(total)] == pytest.approx(means)
    weights = {share.weight for sampler in samplers for share in sampler.shares()}
    assert all(sampler.is_even == (weights == {1.0}) for sampler in samplers)


def test_pieces_and_their_seeds_are_the_same_for_any_number_of_ranks():
    def pieces(ranks):
        samplers = of_all(ranks, 50, 16, microbatch_size=3)
        return {(s.begin, s.size, s.seed) for sampler in samplers for s in sampler.shares() if s.weight}

    assert pieces(1) == pieces(2) == pieces(3) == pieces(7)


def test_an_iteration_begins_behind_what_was_trained_on():
    (sampler,) = of_all(1, 10, 4)
    whole = list(sampler)
    ahead = iter(sampler)
    next(ahead)  # as a loader's workers prefetch

    sampler.advance()
    assert list(sampler) == whole[1:]
    sampler.advance()
    sampler.advance()
    assert list(sampler) == []
    assert sampler.position == 10


def test_each_epoch_has_an_order_of_its_own_and_drops_other_samples():
    (sampler,) = of_all(1, 10, 4, drop_last=True)
    first = list(sampler)
    sampler.advance()
    sampler.set_epoch(0)
    assert list(sampler) == first[1:]
    sampler.set_epoch(1)
    second = list(sampler)

    assert [len(batch) for batch in (*first, *second)] == [4] * 4
    assert first != second
    assert {index for batch in first for index in batch} != {index for batch in second for index in batch}


def test_without_shuffling_the_order_is_the_datasets():
    assert list(*of_all(1, 5, 2, shuffle=False)) == [[0, 1], [2, 3], [4]]


def test_a_position_belongs_to_one_order():
    (before,) = of_all(1, 10, 4)
    before.advance()
    (after,) = of_all(2, 10, 4)[:1]
    after.load_state_dict(before.state_dict())
    assert (after.epoch, after.position) == (0, 4)

    (other,) = of_all(1, 10, 8)
    with pytest.raises(ValueError, match=r"saved with batch_size=4, this sampler has 8: it must not depend"):
        other.load_state_dict(before.state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, r"batch_size=0\): expected a number above 0"),
        ({"batch_size": 4, "microbatch_size": 1.5}, r"microbatch_size=1.5\): expected a whole number"),
        ({"batch_size": 4, "seed": None}, r"seed=None\): expected a whole number"),
        ({"batch_size": 4, "num_replicas": 2, "rank": 2}, r"rank=2\): expected a number from 0 to 1"),
        ({"batch_size": 11, "drop_last": True}, "10 samples, fewer than one batch of 11"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        GlobalBatchSampler(range(10), **options)


def test_integers_of_numpy_are_as_good_as_pythons():
    one, four = numpy.int64(1), numpy.int64(4)
    of_numpy = GlobalBatchSampler(
        range(10), four, seed=numpy.int64(3), microbatch_size=one, num_replicas=four, rank=one
    )
    own = GlobalBatchSampler(range(10), 4, seed=3, microbatch_size=1, num_replicas=4, rank=1)

    assert list(of_numpy) == list(own)
    assert [*of_numpy.shares()] == [*own.shares()]
    assert repr(of_numpy.state_dict()) == repr(own.state_dict())


def test_the_number_of_ranks_and_the_rank_stand_in_for_each_other():
    assert [len(batch) for batch in GlobalBatchSampler(range(16), 8, num_replicas=4)] == [2, 2]
    with pytest.raises(ValueError, match=r"rank=1\): expected a number from 0 to 0"):
        GlobalBatchSampler(range(16), 8, rank=1)


def test_a_rank_without_a_process_group_is_told_to_make_one(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"call torch\.distributed\.init_process_group"):
        GlobalBatchSampler(range(10), 2)


class Noise:
    """Samples that differ on each access."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return index + torch.rand(1)


@pytest.fixture
def workers_of_a_loader():
    """Restore the handler of SIGCHLD, by which torch watches a loader's workers."""
    before = signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.torch
@pytest.mark.usefixtures("workers_of_a_loader")
def test_what_a_sample_draws_follows_from_its_place_whoever_fetches_it():
    def fetched(ranks, workers):
        samplers = of_all(ranks, 12, 4, seed=1)
        loaders = [DataLoader(s.seeded(Noise()), batch_sampler=s, num_workers=workers) for s in samplers]
        return torch.cat([torch.cat(batches) for batches in zip(*loaders, strict=True)])

    alone = fetched(1, 0)
    assert torch.equal(fetched(1, 2), alone)
    assert torch.equal(fetched(2, 0), alone)
    assert len({value.item() % 1 for value in alone}) == 12
    assert 3 <= of_all(1, 12, 4)[0].seeded(Noise())[3].item() < 4
