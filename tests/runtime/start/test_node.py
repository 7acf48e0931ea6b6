"""What a node sets up for its ranks."""

import os
import re
import stat
import sys

import cloudpickle
import pytest

from nbtorchjob.runtime.facts import exits
from tests.backends.kubernetes.nodes import Node, pack

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.torch


def libraries():
    nccl = {name: value for name, value in os.environ.items() if name.startswith("TORCH_NCCL_")}
    compiled = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    own = os.path.dirname(os.path.dirname(compiled))
    return nccl, compiled, os.stat(os.path.join(own, "template.sock")).st_mode


def test_libraries_are_told_what_to_do_and_ranks_are_forked_by_a_socket_of_the_nodes_own(folder):
    node = Node(pack(folder, libraries), TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC="900")
    assert node.wait() == exits.OK
    nccl, compiled, mode = node.value()
    node.end()
    assert re.fullmatch(rf"{node.temp}/nbtorchjob-\w+/compiled/inductor", compiled)
    assert stat.filemode(mode) == "srw-------"
    # The environment's own value wins.
    assert nccl == {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCH_NCCL_ENABLE_MONITORING": "1",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "900",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1000",
    }
