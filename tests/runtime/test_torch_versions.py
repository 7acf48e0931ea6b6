"""The private parts of torch used here exist in the versions that are listed to have them."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import HashStore
from torch.distributed.elastic.agent.server import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import MultiprocessContext
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

import nbtorchjob
from nbtorchjob.runtime import torch_versions
from nbtorchjob.runtime.lab.keeper import Keeper
from nbtorchjob.runtime.node.agent import NodeAgent
from nbtorchjob.runtime.torch_versions import Attribute, Detail

HERE = torch_versions.release(torch.__version__)
PACKAGE = Path(nbtorchjob.__file__).parent
VERSION = re.compile(r"torch(?:'s \w+)? \(?2\.\d|\(2\.1\d\)")
PRIVATE = re.compile(r"(?:torch|c10d|dist|elastic)\.(?:\w+\.)*_[a-zA-Z]")


@pytest.mark.parametrize("detail", torch_versions.DETAILS, ids=lambda detail: detail.name)
def test_this_torch_has_the_details_that_its_version_is_said_to_have(detail):
    if detail is torch_versions.NCCL_CALLS and not torch.distributed.is_nccl_available():
        pytest.skip("this build has no NCCL")
    if detail is torch_versions.MEMORY_RECORDED and not torch.backends.cuda.is_built():
        pytest.skip("this build has no CUDA")
    importlib.import_module(detail.module)
    assert (detail.get() is not None) is detail.expected(HERE)


def test_a_detail_that_is_not_there_is_none_and_stays_away():
    absent = Detail("torch", "nn.not_there")
    absent.replace(1)
    assert absent.get() is None
    assert Detail("not_there", "x").get() is None
    assert Detail("torch", "nn.Linear.forward", "input").get() is torch.nn.Linear.forward
    assert Detail("torch", "nn.Linear.forward", "output").get() is None


def test_the_installed_torch_is_known_without_importing_it():
    code = "import sys\nfrom nbtorchjob.runtime import torch_versions\nprint(torch_versions.installed())\n"
    code += "assert 'torch' not in sys.modules"
    stdout = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert torch_versions.release(stdout) == HERE


@pytest.mark.parametrize(
    ("version", "old"),
    [("2.3.1+cu121", True), ("1.13.1", True), ("2.4.0", False), ("2.10.0a0+nv", False), ("nightly", False)],
)
def test_a_version_is_too_old_by_its_numbers(version, old):
    reason = torch_versions.too_old(version)
    assert reason == (f"has torch {version}; nbtorchjob needs 2.4 or later" if old else "")


def test_what_a_version_misses_is_said_in_lines():
    assert any(
        "gloo" in line and line.endswith("before torch 2.9") for line in torch_versions.missed("2.6.0")
    )
    text = "a rank that returns while an asynchronous collective of gloo is running may hang"
    hits = [any(text in line for line in torch_versions.missed(version)) for version in ("2.4.1", "2.5.0")]
    assert hits == [True, False]
    assert torch_versions.missed("99.0") == torch_versions.missed("nightly") == []


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


def test_a_details_attribute_is_read_and_set_by_its_path():
    inner = SimpleNamespace(_seconds=1)
    attribute = Attribute("Handler", "_inner._seconds", 60)
    assert attribute.get(SimpleNamespace(_inner=inner)) == 1
    attribute.set(SimpleNamespace(_inner=inner), 0)
    assert inner._seconds == 0

    attribute.set(SimpleNamespace(), 0)
    assert attribute.get(SimpleNamespace()) == attribute.get(None) == 60


def test_the_agent_overrides_and_reads_what_is_listed_and_nothing_else():
    spec = WorkerSpec(role="", local_world_size=1, rdzv_handler=None, entrypoint=print)
    methods = {*dir(LocalElasticAgent(spec, DefaultLogsSpecs()))} - {"_shutdown_timeout"}  # ours, before 2.12
    methods = {name for name in methods if re.match(r"_[a-z]|record_", name) and name != "_abc_impl"}

    overridden = {name for cls in (NodeAgent, Keeper) for name in vars(cls)} & methods
    listed = {detail.name.partition(".")[2] for detail in torch_versions.OVERRIDDEN}
    assert overridden == listed
    source = inspect.getsource(NodeAgent) + inspect.getsource(Keeper)
    # These have no fallback: the loop of torch's own agent relies on them.
    read = {"_exit_barrier_timeout", "_pcontext", "_rdzv_handler", "_remaining_restarts", "_worker_group"}
    assert {*re.findall(r"\bself\.(\w+)", source)} & methods - listed == read


def test_nothing_else_names_what_is_private_to_torch_or_a_version_of_it():
    places = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name == "torch_versions.py":
            continue
        text = path.read_text()
        for number, line in enumerate(text.split("\n"), 1):
            if VERSION.search(line):
                places.append(f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and PRIVATE.match(ast.unparse(node)):
                places.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}")
    assert places == []
