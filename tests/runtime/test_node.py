"""What a node gives its ranks."""

import os
import re
import sys

import cloudpickle
import pytest

from nbtorchjob.runtime import exits
from tests.backends.kubernetes.nodes import Node, pack

# As in a notebook, whose functions no node can import.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.torch


def libraries():
    nccl = {name: value for name, value in os.environ.items() if name.startswith("TORCH_NCCL_")}
    return nccl, os.environ["TORCHINDUCTOR_CACHE_DIR"]


def test_libraries_are_told_when_to_give_up_and_where_to_keep_what_they_compile(folder):
    node = Node(pack(folder, libraries), TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC="900")
    assert node.wait() == exits.OK
    nccl, compiled = node.value()
    node.end()
    assert re.fullmatch(rf"{node.temp}/nbtorchjob-\w+/compiled/inductor", compiled)
    # A value of one's own wins.
    assert nccl == {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCH_NCCL_ENABLE_MONITORING": "1",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "900",
    }
