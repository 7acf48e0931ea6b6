"""Every port that a job opens is at its own address, and at no other of the machine."""

import ipaddress
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import cloudpickle
import pytest
import torch.distributed as dist

from nbtorchjob import Elastic, PyTorch, Worker, submit
from nbtorchjob.backends.local import directory
from nbtorchjob.backends.local.directory import JobDirectory
from nbtorchjob.runtime.rendezvous import groups
from nbtorchjob.state import Phase
from tests.backends.kubernetes.nodes import Node, pack
from tests.patience import LIMIT

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.torch


def meet(folder):
    """Open every port that a job opens, and stay until the test has looked at them."""
    dist.init_process_group("gloo")
    dist.barrier()
    (Path(folder) / f"met-{dist.get_rank()}").touch()
    while not (Path(folder) / "seen").exists():
        time.sleep(0.01)
    dist.barrier()


def until_met(folder):
    give_up = time.monotonic() + LIMIT
    while len(list(folder.glob("met-*"))) < 2:
        assert time.monotonic() < give_up
        time.sleep(0.01)


def family(pid):
    """Return the ids of a process and of all its descendants."""
    pids = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            pids += family(int(child))
    return pids


def listens(*pids):
    """Return the addresses at which these processes and their descendants listen."""
    open_files = set()
    for process in (process for pid in pids for process in family(pid)):
        for fd in Path(f"/proc/{process}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                open_files.add(str(fd.readlink()))
    addresses = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in open_files:
                words = bytes.fromhex(fields[1].partition(":")[0])
                address = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
                addresses.append(str(ipaddress.ip_address(address)))
    return addresses


@pytest.mark.parametrize(
    "launch", [Elastic(nproc_per_node=2), PyTorch(worker=Worker(replicas=1))], ids=["one node", "two nodes"]
)
def test_a_job_of_this_machine_listens_to_this_machine_alone(launch, folder):
    job = submit(meet, str(folder), spec=launch)
    until_met(folder)
    supervisor = JobDirectory(directory.jobs_dir() / job.name).supervisor()
    assert supervisor is not None
    addresses = listens(supervisor.pid)
    (folder / "seen").touch()
    assert job.wait(LIMIT)
    assert job.state.phase is Phase.SUCCEEDED
    assert len(addresses) >= 3  # the store's, and one of each rank for the others
    assert set(addresses) == {"127.0.0.1"}


def test_pods_listen_at_their_own_addresses_alone(folder):
    path = pack(folder, meet, str(folder), nodes=2)
    with socket.create_server(("127.0.0.11", 0)) as server:
        port = server.getsockname()[1]
    pods = [
        Node(
            path,
            NBTORCHJOB_NODE=str(index),
            NBTORCHJOB_ADDRESS=f"127.0.0.1{index + 1}",
            PET_LOCAL_ADDR=f"127.0.0.1{index + 1}",
            PET_RDZV_ENDPOINT=f"127.0.0.11:{port}",
            GLOO_SOCKET_IFNAME="lo",
        )
        for index in range(2)
    ]
    try:
        until_met(folder)
        addresses = listens(*(pod.process.pid for pod in pods))
        (folder / "seen").touch()
        assert [pod.wait() for pod in pods] == [0, 0]
    finally:
        for pod in pods:
            pod.end()
    # The nodes' store, and their ranks' store; gloo takes the first address of the interface.
    assert sorted(addresses) == ["127.0.0.1", "127.0.0.1", "127.0.0.11", "127.0.0.11"]


@pytest.mark.parametrize(
    ("host", "setting", "address"),
    [
        ("127.0.0.7", "", "127.0.0.7"),
        ("localhost", "", "127.0.0.1"),
        ("no-such-host.invalid", "127.0.0.9", "127.0.0.9"),
        ("no-such-host.invalid", "", ""),
        ("192.0.2.1", "", ""),  # another machine's, or nobody's
    ],
)
def test_a_node_knows_its_own_address(host, setting, address, monkeypatch):
    monkeypatch.setenv(groups.ADDRESS, setting)
    assert groups.own_address(host) == address


def test_a_name_that_means_this_machine_here_alone_is_no_address(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("127.0.1.1", 0))])
    assert groups.own_address("my-laptop") == ""
