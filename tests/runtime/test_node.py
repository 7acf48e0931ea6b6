"""What a node gives its ranks."""

import os
import sys

import cloudpickle
import pytest

from nbtorchjob.runtime import exits
from tests.backends.kubernetes.nodes import Node, pack

# As in a notebook, whose functions no node can import.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.torch


def nccl():
    return {name: value for name, value in os.environ.items() if name.startswith("TORCH_NCCL_")}


def test_nccl_gives_up_on_a_lost_peer_and_a_value_of_ones_own_wins(folder):
    node = Node(pack(folder, nccl), TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC="900")
    assert node.wait() == exits.OK
    found = node.value()
    node.end()
    assert found == {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCH_NCCL_ENABLE_MONITORING": "1",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "900",
    }
