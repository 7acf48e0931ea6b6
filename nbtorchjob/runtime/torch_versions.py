"""What nbtorchjob uses of torch that torch doesn't promise, and which versions have it.

Where it can, code asks for a detail, not for a version: a build between two releases (``2.6.0a0+nv24``) has
what it has. A comment elsewhere that says how torch behaves names no version: it holds for all that
docs/tried.md lists, as the tests of ranks pass with each. ``make test-torch VERSION=...`` runs them and
holds this table to that version.
"""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

Version = Tuple[int, int]

OLDEST: Version = (2, 4)  # a rendezvous returns a RendezvousInfo since then, from which agents start


class Detail(NamedTuple):
    """A name in one of torch's modules, and with ``option`` a parameter of it.

    Of the versions that were tried, those from ``since`` on have it, and none from ``until`` on. ``missed``
    is what users miss without it, if they do.
    """

    module: str
    name: str
    option: str = ""
    since: Version = OLDEST
    until: Optional[Version] = None
    missed: str = ""

    def _owner(self) -> Any:
        owner: Any = sys.modules.get(self.module)
        for step in self.name.split(".")[:-1]:
            owner = getattr(owner, step, None)
        return owner

    def get(self) -> Any:
        """Return what has the name; None where it isn't there, or its module isn't imported."""
        value = getattr(self._owner(), self.name.rpartition(".")[2], None)
        if value is not None and self.option and self.option not in inspect.signature(value).parameters:
            return None
        return value

    def replace(self, value: Any) -> None:
        """Put ``value`` in its place, if it is there."""
        if self.get() is not None:
            setattr(self._owner(), self.name.rpartition(".")[2], value)

    def expected(self, version: Version) -> bool:
        """Whether that version of torch has it."""
        return self.since <= version and (self.until is None or version < self.until)


class Attribute(NamedTuple):
    """A private attribute of an object of class ``of``, by its path; ``fallback`` stands in for it."""

    of: str
    path: str
    fallback: Any = None

    def get(self, owner: Any) -> Any:
        """Return its value, or ``fallback`` where the object has no such attribute."""
        for step in self.path.split("."):
            owner = getattr(owner, step, None)
        return self.fallback if owner is None else owner

    def set(self, owner: Any, value: Any) -> None:
        """Set it, if the object has it."""
        *steps, name = self.path.split(".")
        for step in steps:
            owner = getattr(owner, step, None)
        if hasattr(owner, name):
            setattr(owner, name, value)


_AGENT = "torch.distributed.elastic.agent.server.local_elastic_agent"
_PROCESSES = "torch.distributed.elastic.multiprocessing.api"
_RENDEZVOUS = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"
_C10D, _C = "torch.distributed.distributed_c10d", "torch._C._distributed_c10d"

# Without it, ``NodeAgent`` itself waits for ranks that it ends, which it does anyway.
END_TIMEOUT = Detail(_AGENT, "LocalElasticAgent._shutdown", "timeout", since=(2, 12))
# With it, an agent that ends its ranks closes the rendezvous for all nodes unless it says that it starts them
# again. Later ones leave that to the launcher, as ``NodeAgent`` does.
CLOSES = Detail(_AGENT, "LocalElasticAgent._shutdown", "is_restart", until=(2, 9))
# What ``NodeAgent`` overrides. Without one of them, torch's agent does that its own way.
OVERRIDDEN = tuple(
    Detail(_AGENT, "LocalElasticAgent." + name)
    for name in (
        "_exit_barrier",
        "_invoke_run",
        "_monitor_workers",
        "_record_worker_events",
        "_shutdown",
        "_start_workers",
        "_stop_workers",
        "record_duration",
    )
)
# Without the first, a failed rank is seen by torch's own look only; without the others, a return is seen
# after a whole pause.
PROCESSES = Attribute("MultiprocessContext", "_pc.processes", ())
RETURNED = Attribute("MultiprocessContext", "_return_values", {})
RETURN_QUEUES = Attribute("MultiprocessContext", "_ret_vals", {})
# Without it, a signal that comes while ranks are started ends the node as a failure of its agent.
SIGNAL_HANDLER = Detail(_PROCESSES, "_terminate_process_handler")

# Without it, torch's own intervals hold, which are this package's defaults, too.
KEEP_ALIVE = Detail(
    _RENDEZVOUS,
    "DynamicRendezvousHandler.from_backend",
    "keep_alive_interval",
    since=(2, 9),
    missed="keep_alive_interval and keep_alive_max_attempt of rdzv_configs have no effect",
)
# Without one of these two, nodes look for each other once a second.
ANSWERS_FOR_S = Attribute("DynamicRendezvousHandler", "_state_holder._cache_duration")
DELAY = Detail(_RENDEZVOUS, "_delay")
# Without it, each step of a rendezvous reads the sources of its whole stack.
METHOD_NAME = Detail(_RENDEZVOUS, "get_method_name")

# An agent that isn't first in a new round keeps the address of the store that a lost first one opened, unless
# this variable says that no agent shares its store with ranks.
OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"

# Before it, a rank may wait for ever as it leaves a group of gloo's in which an operation of its own goes on.
_LEAVES_UNFINISHED: Version = (2, 5)

# Since then, the quicker one of the two servers behind a TCPStore takes a socket that listens already.
_UV_LISTENS: Version = (2, 9)

# Without one of these two, groups meet in torch's way, in a store that ends with rank 0.
MEET = Detail(_C10D, "rendezvous")
BARRIER = Detail(_C10D, "_is_barrier_after_init")
# Without it, a rank that raises once it has called ``training.save()`` waits for the others to save, too.
DEFAULT_STORE = Detail(_C10D, "_get_default_store")
# Without one of these three, collectives fail by their time-out while a rank is stopped in the debugger.
NEW_GROUP = Detail(_C10D, "_new_process_group_helper")
STORE_BARRIER = Detail(_C10D, "_store_based_barrier")
SET_TIMEOUT = Detail(_C10D, "_set_pg_timeout")
# Without it, torch warns once a group that its options have another time-out than it was given.
OPTIONS_TIMEOUT = Attribute("ProcessGroup.Options", "_timeout")
# Without it, stacks know no groups, and those that code leaves open are left in order.
WORLD = Detail(_C10D, "_world")

# Without it, verdicts on hangs follow from stacks alone.
GLOO_CALLS = Detail(
    _C,
    "_dump_fr_trace_json",
    since=(2, 9),
    missed="gloo records no operations, so stacks alone tell who hangs, and profiles don't show them",
)
NCCL_CALLS = Detail(
    _C,
    "_dump_nccl_trace_json",
    since=(2, 5),
    missed="what NCCL records of its operations isn't read, so stacks alone tell who hangs",
)

# Without it, code that profiles itself while it is profiled fails.
PREPARE = Detail("torch.autograd.profiler", "_prepare_profiler")
# Without one of these, a rank isn't profiled, and says so.
PROFILER_RUNS = Detail("torch", "_C._autograd._profiler_enabled")
PREPARE_PROFILER = Detail("torch", "_C._autograd._prepare_profiler")
ENABLE_PROFILER = Detail("torch", "_C._autograd._enable_profiler")
DISABLE_PROFILER = Detail("torch", "_C._autograd._disable_profiler")
RECORD_FUNCTIONS = Detail("torch", "_C._autograd._enable_record_function")
RECORD_SCOPE = Detail("torch", "_C._profiler.RecordScope")
PROFILER_CONFIG = Detail("torch", "_C._profiler.ProfilerConfig")
PROFILER_EXPERIMENTAL = Detail("torch", "_C._profiler._ExperimentalConfig")
PROFILER = (
    PROFILER_RUNS,
    PREPARE_PROFILER,
    ENABLE_PROFILER,
    DISABLE_PROFILER,
    RECORD_FUNCTIONS,
    RECORD_SCOPE,
    PROFILER_CONFIG,
    PROFILER_EXPERIMENTAL,
)
# Without one of these, what a rank's accelerator holds isn't recorded. A build for CPUs lacks the first.
MEMORY_RECORDED = Detail("torch", "_C._cuda_isHistoryEnabled")
RECORD_MEMORY = Detail("torch.cuda.memory", "_record_memory_history")
MEMORY_SNAPSHOT = Detail("torch.cuda.memory", "_snapshot")
# Without it, what was recorded stays until torch records anew, which clears it, too.
CLEAR_MEMORY = Detail("torch.cuda.memory", "_record_memory_history", "clear_history", since=(2, 7))
# Without one of these two, a rank that compiled ends 4 ms later.
COMPILE_TIMES = Detail("torch._dynamo.utils", "dump_compile_times")
COMPILE_LOG = Detail("torch._dynamo.utils", "log")

# Without it, a tensor that functorch wraps is sent by value.
IS_WRAPPED = Detail("torch", "_C._functorch.is_functorch_wrapped_tensor")
# Without it, such a tensor is negated where it arrives: it doesn't share its memory there.
NEGATIVE_VIEW = Detail("torch", "_neg_view")
# Without it, a tensor among a frame's variables is called "a tensor", and one of a subclass that no longer
# shares memory isn't noted.
WITHOUT_SUBCLASSES = Detail("torch", "_C.DisableTorchFunctionSubclass")
# Without one of these two, the modes that a notebook has entered aren't noted.
FUNCTION_MODES = Detail("torch.overrides", "_get_current_function_mode_stack")
DISPATCH_MODES = Detail("torch.utils._python_dispatch", "_get_current_dispatch_mode_stack")
# Without it, print options that a notebook sets hold in the notebook alone.
PRINT_OPTIONS = Detail("torch._tensor_str", "PRINT_OPTS")
# Without one of these, such an operator travels as torch itself has it pickled, which fails by name.
PACKET = Detail("torch._ops", "OpOverloadPacket")
OVERLOAD = Detail("torch._ops", "OpOverload")
HIGHER_ORDER = Detail("torch._ops", "HigherOrderOperator")
# Without it, a scheduler of learning rates warns once that its optimizer hasn't stepped.
STEPPED = Attribute("Optimizer", "_opt_called", False)

DETAILS = (*OVERRIDDEN, *(value for value in list(globals().values()) if isinstance(value, Detail)))


def installed() -> str:
    """Return the version of this interpreter's torch without importing it; "" where nothing tells.

    To import it takes seconds, and half a minute where its files were never read.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        return str(torch.__version__)
    from importlib import metadata  # late: it takes 40 ms, and Python has it since 3.8

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:  # there is none, or one that was built in place
        return ""


def default_device(torch: Any) -> str:
    """Return the device that tensors are made on."""
    try:
        return str(torch.get_default_device())
    except AttributeError:  # torch 2.4, once it was set to None
        return "cpu"


def listening_options() -> Dict[str, Any]:
    """Return what a ``TCPStore`` has to be given to take a socket that listens already."""
    number = release(installed())
    return {"use_libuv": False} if number is not None and number < _UV_LISTENS else {}


def release(version: str) -> Optional[Version]:
    """Return the first two numbers of a version; None for one that has no such, as ``nightly``."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return None if numbers is None else (int(numbers.group(1)), int(numbers.group(2)))


def too_old(version: str) -> str:
    """Say that a torch is too old, to go behind "this node" or the like; "" where it will do."""
    number = release(version)
    if number is None or number >= OLDEST:
        return ""
    return "has torch %s; nbtorchjob needs %d.%d or later" % (version, *OLDEST)


def missed(version: str) -> List[str]:
    """Return what users miss with a version, each in a line."""
    number = release(version)
    if number is None:
        return []
    lines = [
        "%s before torch %d.%d" % (d.missed, *d.since) for d in DETAILS if d.missed and not d.expected(number)
    ]
    if number < _LEAVES_UNFINISHED:
        text = "a rank that returns while an asynchronous collective of gloo's goes on may hang: wait for it"
        lines.append("%s before torch %d.%d" % (text, *_LEAVES_UNFINISHED))
    return lines
