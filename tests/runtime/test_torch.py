"""What is private to torch and used here is there: without it all works, but later than it could."""

from torch.distributed import HashStore
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import MultiprocessContext
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler


def test_a_rendezvous_answers_from_what_it_knew_a_second_ago():
    store = HashStore()
    handler = DynamicRendezvousHandler.from_backend("run", store, C10dRendezvousBackend(store, "run"), 1, 2)
    assert handler._state_holder._cache_duration == 1


def test_ranks_return_through_queues_of_their_own(folder):
    logs = DefaultLogsSpecs(str(folder))
    ranks = MultiprocessContext("name", print, {0: ()}, {0: {}}, "spawn", logs)
    assert (ranks._pc, ranks._return_values) == (None, {})
    with ranks._ret_vals[0]._reader as reader, ranks._ret_vals[0]._writer:
        assert not reader.poll(0)
