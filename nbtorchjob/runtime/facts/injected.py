"""What a cluster's operators tell a node through its environment: its number, and where the nodes meet.

PyTorchJob and TrainJob set torchrun's PET_* variables, Volcano its plugins' VC_*, an Indexed Job
only JOB_COMPLETION_INDEX. The manifest adds NBTORCHJOB_* and, if the operator doesn't set it,
PET_RDZV_ENDPOINT. PET_STANDALONE, which PyTorchJob sets to "", isn't read.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Optional

# Set by the process or manifest that starts a node; without them `python job.pyz` is a job of one node.
NODE = "NBTORCHJOB_NODE"
RUN = "NBTORCHJOB_RUN"  # which of the jobs made from one payload this is
RUN_FILE = "run"  # a file beside a payload that hosts mount: the run that the payload is for
JOB = "NBTORCHJOB_JOB"  # the job's name
DOMAIN = "NBTORCHJOB_DOMAIN"
FOLDER = "NBTORCHJOB_FOLDER"  # where it writes
SHIPPED = "files"  # the folder in it with the modules and files that the payload brought
SWAPS = "NBTORCHJOB_SWAPS"  # a folder with swaps that later attempts begin with
UNSEEN = "NBTORCHJOB_UNSEEN"  # set in a pool whose pods have volumes and containers of a cluster's runtime
STREAM = "NBTORCHJOB_STREAM"  # set on a cluster: what the node writes is copied to stdout (``stream.py``)
GRACE = "NBTORCHJOB_STOP_WITHIN"  # seconds from SIGTERM to SIGKILL for ranks
SAVING = "NBTORCHJOB_SAVE_WITHIN"  # seconds for ranks to leave after their node got SIGTERM; else GRACE
# When the job has to end, by the host's monotonic clock, and how many seconds before that its node is told.
# Only a supervisor on the same host sets it; the wall clock may be changed meanwhile.
DEADLINE = "NBTORCHJOB_DEADLINE"
FIRST_ROUND = "NBTORCHJOB_FIRST_ROUND"
ATTEMPT = "NBTORCHJOB_ATTEMPT"  # if this package starts attempts: which one this is, from 1
# If an operator starts them, how often it has done so: the sum of these. A Job counts the failures of each
# index (Kubernetes 1.29), apart from those that its policy ignores, and Volcano the restarts of the job.
FAILURES, IGNORED, RESTARTS = "NBTORCHJOB_FAILURES", "NBTORCHJOB_IGNORED", "NBTORCHJOB_RESTARTS"
_INDEX = (NODE, "PET_NODE_RANK", "JOB_COMPLETION_INDEX", "VC_TASK_INDEX")
_PORT = 29400  # torchrun's default


def node_index() -> int:
    """Return this node's number within the job."""
    return int(next((os.environ[name] for name in _INDEX if os.environ.get(name)), "0"))


def attempt() -> int:
    """Return the attempt that this node was started for, by its environment; the nodes agree on one."""
    env = os.environ
    before = sum(int(env.get(name) or 0) for name in (FAILURES, IGNORED, RESTARTS))
    return int(env.get(ATTEMPT) or 1 + before)


def first_round() -> int:
    """Return the number of the first round: on a cluster, hundredths of a second since the epoch.

    There, a later attempt of a job knows only that time has passed since the earlier one. Whole seconds would
    be too coarse: an attempt may end within one, and a lab runs several turns in it, which are rounds, too.
    """
    return int(os.environ.get(FIRST_ROUND) or (time.time() * 100 if STREAM in os.environ else 0))


def grace() -> float:
    """Return how many seconds ranks have from SIGTERM to SIGKILL."""
    return float(os.environ.get(GRACE) or 10)


def saving() -> float:
    """Return how many seconds ranks have to save and to leave if their node is told to end now."""
    if ends_soon():
        return max(0.0, float(os.environ[DEADLINE].split()[0]) - time.monotonic())
    return float(os.environ.get(SAVING) or grace())


def ends_soon() -> bool:
    """Return whether it is time to tell the job's nodes about its deadline."""
    at, _, before = os.environ.get(DEADLINE, "").partition(" ")
    return bool(at) and float(at) - time.monotonic() <= float(before)


def of_grace(seconds: float) -> float:
    """Return the ranks' part of a node's seconds: two thirds, as what they saved has to be sent, too."""
    return seconds * 2 / 3


def run() -> str:
    """Return the id that distinguishes this job from others with the same key; "" if started by hand."""
    return os.environ.get(RUN, "")


def of_rank(attempt: int) -> Dict[str, str]:
    """Return a rank's environment variables for its attempt: its number, and torch's run id for libraries.

    torch uses the rendezvous' id, which stays the same from attempt to attempt if nodes are replaced.
    """
    job = os.environ.get(JOB)
    return {ATTEMPT: str(attempt), **({"TORCHELASTIC_RUN_ID": "%s-a%d" % (job, attempt)} if job else {})}


def launch(packed: Dict[str, Any]) -> Dict[str, Any]:
    """Return the launch config; values that an operator injects override the packed ones."""
    env = os.environ
    fewest, _, most = env.get("PET_NNODES", packed["nnodes"]).partition(":")
    nproc = env.get("PET_NPROC_PER_NODE", "")
    conf = dict(part.split("=", 1) for part in env.get("PET_RDZV_CONF", "").split(",") if part)
    return {
        "nodes": (int(fewest), int(most or fewest)),
        # PyTorchJob sets "auto" if its spec has no value.
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

    Agents are numbered in the order of these names, so that node 0 has rank 0 if they differ only in
    the index. In a pod ``socket.getfqdn``, torch's choice, is a name that no other pod can resolve.
    """
    if os.environ.get("PET_LOCAL_ADDR"):
        return os.environ["PET_LOCAL_ADDR"]
    import socket  # late: listing jobs doesn't need it

    domain = os.environ.get(DOMAIN)
    return "%s.%s" % (socket.gethostname(), domain) if domain else socket.gethostname()
