"""What a cluster's operators tell a node by its environment: which one it is, and where all meet.

PyTorchJob and TrainJob speak torchrun's PET_* variables, Volcano its plugins' VC_*, an Indexed Job
only JOB_COMPLETION_INDEX; what the manifest adds is NBTORCHJOB_* and, where the operator leaves it
out, PET_RDZV_ENDPOINT. PET_STANDALONE, which PyTorchJob sets to "", is left unread.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Optional

# Set by whoever starts a node; without any of them `python job.pyz` is a job of one node.
NODE = "NBTORCHJOB_NODE"
RUN = "NBTORCHJOB_RUN"  # which job it is, of all that were made of one payload
RUN_FILE = "run"  # beside the payload, where hosts mount it: the run that it is for
JOB = "NBTORCHJOB_JOB"  # the job's name
DOMAIN = "NBTORCHJOB_DOMAIN"
FOLDER = "NBTORCHJOB_FOLDER"  # where it writes
SHIPPED = "files"  # the folder there with the modules and files that came along
SWAPS = "NBTORCHJOB_SWAPS"  # a folder with swaps that later attempts begin with
UNSEEN = "NBTORCHJOB_UNSEEN"  # there in a pool whose pods have volumes and containers of a cluster's runtime
STREAM = "NBTORCHJOB_STREAM"  # there on a cluster: what it writes is copied to stdout (``stream.py``)
GRACE = "NBTORCHJOB_STOP_WITHIN"  # seconds from SIGTERM to SIGKILL for ranks
SAVING = "NBTORCHJOB_SAVE_WITHIN"  # seconds for ranks to leave after their node got SIGTERM; else GRACE
# When its job has to end, by the host's monotonic clock, and how many seconds before that its node is told.
# Only a supervisor on the same host sets it, and the wall clock may be set meanwhile.
DEADLINE = "NBTORCHJOB_DEADLINE"
FIRST_ROUND = "NBTORCHJOB_FIRST_ROUND"
ATTEMPT = "NBTORCHJOB_ATTEMPT"  # where we start attempts: which one this is, from 1
# Where an operator does, how often it has done so: the numbers add up. A Job counts the failures of each
# index (Kubernetes 1.29), apart from those that its policy ignores, and Volcano the restarts of the job.
FAILURES, IGNORED, RESTARTS = "NBTORCHJOB_FAILURES", "NBTORCHJOB_IGNORED", "NBTORCHJOB_RESTARTS"
_INDEX = (NODE, "PET_NODE_RANK", "JOB_COMPLETION_INDEX", "VC_TASK_INDEX")
_PORT = 29400  # torchrun's default


def node_index() -> int:
    """Return this node's number within the job."""
    return int(next((os.environ[name] for name in _INDEX if os.environ.get(name)), "0"))


def attempt() -> int:
    """Return the attempt that this node was started for, as far as it was told; the nodes agree on one."""
    env = os.environ
    before = sum(int(env.get(name) or 0) for name in (FAILURES, IGNORED, RESTARTS))
    return int(env.get(ATTEMPT) or 1 + before)


def first_round() -> int:
    """Return the number of the first round: on a cluster hundredths of a second since the epoch.

    All that a later life of a job there knows of an earlier one is that time has passed: of whole seconds too
    little, as an attempt may be over within one, and a lab runs several turns in it, which are rounds, too.
    """
    return int(os.environ.get(FIRST_ROUND) or (time.time() * 100 if STREAM in os.environ else 0))


def grace() -> float:
    """Return how many seconds ranks have from SIGTERM to SIGKILL."""
    return float(os.environ.get(GRACE) or 10)


def saving() -> float:
    """Return how many seconds ranks have to save, and to leave, as their node is told now to end."""
    if ends_soon():
        return max(0.0, float(os.environ[DEADLINE].split()[0]) - time.monotonic())
    return float(os.environ.get(SAVING) or grace())


def ends_soon() -> bool:
    """Return whether it is time for the job's nodes to be told of its deadline."""
    at, _, before = os.environ.get(DEADLINE, "").partition(" ")
    return bool(at) and float(at) - time.monotonic() <= float(before)


def of_grace(seconds: float) -> float:
    """Return what ranks have of a node's seconds: two thirds, as what they saved has to be sent, too."""
    return seconds * 2 / 3


def run() -> str:
    """Return what tells this job from others that have its key; "" for a node that was started by hand."""
    return os.environ.get(RUN, "")


def of_rank(attempt: int) -> Dict[str, str]:
    """Return what a rank's environment says of its attempt: its number, and for libraries torch's run id.

    torch takes that of the rendezvous, which goes on from attempt to attempt where nodes are replaced.
    """
    job = os.environ.get(JOB)
    return {ATTEMPT: str(attempt), **({"TORCHELASTIC_RUN_ID": "%s-a%d" % (job, attempt)} if job else {})}


def launch(packed: Dict[str, Any]) -> Dict[str, Any]:
    """Return the launch config; what an operator injects wins over what was packed."""
    env = os.environ
    fewest, _, most = env.get("PET_NNODES", packed["nnodes"]).partition(":")
    nproc = env.get("PET_NPROC_PER_NODE", "")
    conf = dict(part.split("=", 1) for part in env.get("PET_RDZV_CONF", "").split(",") if part)
    return {
        "nodes": (int(fewest), int(most or fewest)),
        # PyTorchJob says "auto" where its spec says nothing.
        "nproc": int(nproc if nproc.isdigit() else packed["nproc_per_node"]),
        "max_restarts": int(env.get("PET_MAX_RESTARTS", packed["max_restarts"])),
        "start_method": packed["start_method"],
        "monitor_interval": float(packed["monitor_interval"]),
        "hang_after": float(packed["hang_after"]),
        "endpoint": _endpoint(),
        "run_id": env.get("PET_RDZV_ID", "nbtorchjob"),
        "conf": {**packed["rdzv_configs"], **conf},
    }


def _endpoint() -> str:
    env = os.environ
    if env.get("PET_RDZV_ENDPOINT"):
        return env["PET_RDZV_ENDPOINT"]
    if env.get("PET_MASTER_ADDR"):
        return "%s:%s" % (env["PET_MASTER_ADDR"], env.get("PET_MASTER_PORT", _PORT))
    hosts = [env[name] for name in sorted(env) if name.startswith("VC_") and name.endswith("_HOSTS")]
    return "%s:%d" % (hosts[0].split(",")[0], _PORT) if hosts else ""


def local_addr() -> Optional[str]:
    """Return the name by which the other nodes reach this one; None leaves it to torch.

    Agents are numbered in the order of these names, so that node 0 has rank 0 where they differ in
    the index only. In a pod ``socket.getfqdn``, torch's choice, is a name that no other pod resolves.
    """
    if os.environ.get("PET_LOCAL_ADDR"):
        return os.environ["PET_LOCAL_ADDR"]
    import socket  # late: who lists jobs reaches no node

    domain = os.environ.get(DOMAIN)
    return "%s.%s" % (socket.gethostname(), domain) if domain else socket.gethostname()
