"""GPU memory in a pickle. Here the host stands in for a GPU; `make gpu` tests the same on a real one."""

import pickle

import pytest
import torch

from nbtorchjob.runtime.objects import memory, pickler


def dump(value):
    buffers: list[pickle.PickleBuffer] = []
    return pickler.dumps(value, pickler.Pickler, buffers.append), buffers


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Return a function that makes tensors of the host pass for tensors of the named device."""

    def call(device):
        monkeypatch.setattr(memory, "_device", lambda tensor: device)

    return call


def test_tensors_of_a_gpu_share_there_what_they_shared(on_a_gpu):
    on_a_gpu("cpu")
    base = torch.arange(12.0)
    data, buffers = dump([base, base.view(3, 4)[1:], base[2::3], torch.zeros(3)])
    base.zero_()  # the pickle contains a copy

    whole, rows, strided, zeros = pickle.loads(data, buffers=buffers)

    assert (whole.tolist(), rows[0].tolist(), strided.tolist()) == ([*range(12)], [4, 5, 6, 7], [2, 5, 8, 11])
    whole.fill_(7)
    assert (rows.sum(), strided.sum(), zeros.sum()) == (56, 28, 0)
    assert whole.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr()


def test_only_what_a_tensor_shows_of_its_storage_is_read_from_a_gpu(on_a_gpu):
    on_a_gpu("cpu")
    data, buffers = dump(torch.zeros(1 << 20)[1024:3072])

    assert [buffer.raw().nbytes for buffer in buffers] == [2048 * 4]
    assert pickle.loads(data, buffers=buffers).shape == (2048,)


def test_a_gpu_that_a_rank_lacks_is_named(on_a_gpu):
    on_a_gpu("cuda:7")
    data, _ = dump({"model": torch.ones(3), "scale": 2})

    with pytest.raises(RuntimeError, match=r"it was on cuda:7, which isn't here: "):
        pickle.loads(data)
    memory.forget()


def test_a_value_of_a_gpu_stays_in_the_hosts_memory(on_a_gpu):
    on_a_gpu("cuda:7")
    layer = torch.nn.Linear(2, 2)
    weight = layer.weight.detach().clone()
    data, _ = dump({"layer": layer, "rows": layer.weight.data[1:]})

    with memory.in_host_memory():
        value = pickle.loads(data)

    assert torch.equal(value["layer"].weight, weight)
    value["rows"].zero_()
    assert not value["layer"].weight[1].any()
