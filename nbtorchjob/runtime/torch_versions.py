"""The parts of torch that nbtorchjob uses without a promise from torch, and which versions have them.

Where possible, code checks for a detail, not for a version: a build between two releases (``2.6.0a0+nv24``)
may or may not have it. Comments elsewhere on how torch behaves name no version: they hold for all versions
that docs/tried.md lists, as the tests of ranks pass with each. ``make test-torch VERSION=...`` runs those
tests and checks this table against that version.
"""

from __future__ import annotations

import inspect
import re
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

Version = Tuple[int, int]

OLDEST: Version = (2, 4)  # since then, a rendezvous returns a RendezvousInfo, which agents start from


class Detail(NamedTuple):
    """A name in one of torch's modules, and with ``option`` a parameter of it.

    Of the versions that were tried, those from ``since`` up to but not including ``until`` have it.
    ``missed`` says what users lose without it, if anything.
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
        """Return the object of that name; None if there is none, or its module isn't imported."""
        value = getattr(self._owner(), self.name.rpartition(".")[2], None)
        if value is not None and self.option and self.option not in inspect.signature(value).parameters:
            return None
        return value

    def replace(self, value: Any) -> None:
        """Replace it with ``value``, if it exists."""
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
        """Return its value, or ``fallback`` if the object has no such attribute."""
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

# Nothing depends on it: ``NodeAgent`` itself waits for the ranks that it ends.
END_TIMEOUT = Detail(_AGENT, "LocalElasticAgent._shutdown", "timeout", since=(2, 12))
# With it, an agent that ends its ranks closes the rendezvous for all nodes unless it says that it restarts
# them. Later versions leave that to the launcher, as ``NodeAgent`` does.
CLOSES = Detail(_AGENT, "LocalElasticAgent._shutdown", "is_restart", until=(2, 9))
# What ``NodeAgent`` overrides. If a name is missing, torch's agent does that part in its own way.
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
# Without the first, only torch's own polling notices a failed rank; without the others, a return is noticed
# only after a whole pause.
PROCESSES = Attribute("MultiprocessContext", "_pc.processes", ())
RETURNED = Attribute("MultiprocessContext", "_return_values", {})
RETURN_QUEUES = Attribute("MultiprocessContext", "_ret_vals", {})
# Without it, a signal that arrives while ranks are started ends the node as a failure of its agent.
SIGNAL_HANDLER = Detail(_PROCESSES, "_terminate_process_handler")

# Without it, torch's own intervals apply, which are this package's defaults, too.
KEEP_ALIVE = Detail(
    _RENDEZVOUS,
    "DynamicRendezvousHandler.from_backend",
    "keep_alive_interval",
    since=(2, 9),
    missed="keep_alive_interval and keep_alive_max_attempt of rdzv_configs have no effect",
)
# Without one of these two, nodes check for each other once a second.
ANSWERS_FOR_S = Attribute("DynamicRendezvousHandler", "_state_holder._cache_duration")
DELAY = Detail(_RENDEZVOUS, "_delay")
# Without it, each step of a rendezvous reads the sources of its whole stack.
METHOD_NAME = Detail(_RENDEZVOUS, "get_method_name")

# In a new round, an agent that isn't the first keeps the address of the store that a lost first agent opened,
# unless this variable says that no agent shares its store with ranks.
OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"

# Before it, a rank may wait for ever as it leaves a gloo group in which one of its operations is unfinished.
_LEAVES_UNFINISHED: Version = (2, 5)

# Since then, the faster of the two servers behind a TCPStore accepts a socket that already listens.
_UV_LISTENS: Version = (2, 9)

# Without one of these two, groups meet the way torch does it, in a store that ends with rank 0.
MEET = Detail(_C10D, "rendezvous")
BARRIER = Detail(_C10D, "_is_barrier_after_init")
# Without it, a rank that raises after a call of ``training.save()`` waits until the others save as well.
DEFAULT_STORE = Detail(_C10D, "_get_default_store")
# Without one of these three, collectives time out while a rank is stopped in the debugger.
NEW_GROUP = Detail(_C10D, "_new_process_group_helper")
STORE_BARRIER = Detail(_C10D, "_store_based_barrier")
SET_TIMEOUT = Detail(_C10D, "_set_pg_timeout")
# Without it, torch warns once per group that its options have another time-out than the group.
OPTIONS_TIMEOUT = Attribute("ProcessGroup.Options", "_timeout")
# Without it, stacks show no groups, and ranks don't leave the groups that code left open in the background.
WORLD = Detail(_C10D, "_world")

# Without it, verdicts on hangs follow from stacks alone.
GLOO_CALLS = Detail(
    _C,
    "_dump_fr_trace_json",
    since=(2, 9),
    missed="gloo records no operations, so only stacks tell which ranks hang, and profiles don't show them",
)
NCCL_CALLS = Detail(
    _C,
    "_dump_nccl_trace_json",
    since=(2, 5),
    missed="what NCCL records of its operations isn't read, so only stacks tell which ranks hang",
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
# Without it, a recording stays until torch begins a new one, which clears it as well.
CLEAR_MEMORY = Detail("torch.cuda.memory", "_record_memory_history", "clear_history", since=(2, 7))
# Without it, a swap with ``or_back`` is refused where torch has compiled code.
SET_STANCE = Detail(
    "torch.compiler",
    "set_stance",
    since=(2, 6),
    missed="--or-back is refused where torch has compiled code",
)
# Without one of these two, a rank that compiled ends 4 ms later.
COMPILE_TIMES = Detail("torch._dynamo.utils", "dump_compile_times")
COMPILE_LOG = Detail("torch._dynamo.utils", "log")

# Without it, all tensors are sent by value, not only those that functorch wraps.
IS_WRAPPED = Detail("torch", "_C._functorch.is_functorch_wrapped_tensor")
# Without it, a tensor with torch's negative bit is negated on arrival, and doesn't share its memory there.
NEGATIVE_VIEW = Detail("torch", "_neg_view")
# Without it, a tensor among a frame's variables is called "a tensor", and one of a subclass that no longer
# shares memory isn't noted.
WITHOUT_SUBCLASSES = Detail("torch", "_C.DisableTorchFunctionSubclass")
# Without one of these two, the modes that a notebook has entered aren't noted.
FUNCTION_MODES = Detail("torch.overrides", "_get_current_function_mode_stack")
DISPATCH_MODES = Detail("torch.utils._python_dispatch", "_get_current_dispatch_mode_stack")
# Without it, print options that a notebook sets apply only in the notebook.
PRINT_OPTIONS = Detail("torch._tensor_str", "PRINT_OPTS")
# Without one of these, such an operator is pickled torch's own way, by name, which fails.
PACKET = Detail("torch._ops", "OpOverloadPacket")
OVERLOAD = Detail("torch._ops", "OpOverload")
HIGHER_ORDER = Detail("torch._ops", "HigherOrderOperator")
# Without it, a learning rate scheduler warns once that its optimizer hasn't stepped.
STEPPED = Attribute("Optimizer", "_opt_called", False)

DETAILS = (*OVERRIDDEN, *(value for value in list(globals().values()) if isinstance(value, Detail)))


def installed() -> str:
    """Return the version of this interpreter's torch without importing it; "" if it is unknown.

    An import takes seconds, or half a minute if its files were never read before.
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
    """Return the options with which a ``TCPStore`` accepts a socket that already listens."""
    number = release(installed())
    return {"use_libuv": False} if number is not None and number < _UV_LISTENS else {}


def release(version: str) -> Optional[Version]:
    """Return the first two numbers of a version; None if it has none, like ``nightly``."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return None if numbers is None else (int(numbers.group(1)), int(numbers.group(2)))


def too_old(version: str) -> str:
    """Say that a torch is too old, in words that follow "this node" or the like; "" if it isn't."""
    number = release(version)
    if number is None or number >= OLDEST:
        return ""
    return "has torch %s; nbtorchjob needs %d.%d or later" % (version, *OLDEST)


def missed(version: str) -> List[str]:
    """Return what users miss with a version, one line each."""
    number = release(version)
    if number is None:
        return []
    lines = [
        "%s before torch %d.%d" % (d.missed, *d.since) for d in DETAILS if d.missed and not d.expected(number)
    ]
    if number < _LEAVES_UNFINISHED:
        text = "a rank that returns while an asynchronous collective of gloo is running may hang: wait for it"
        lines.append("%s before torch %d.%d" % (text, *_LEAVES_UNFINISHED))
    return lines
