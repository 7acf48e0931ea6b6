"""Options as other tools spell them: torchrun's, with their treatment here, and words that people try.

Nothing is dropped silently: what can't matter here is accepted with a note, all else is refused with advice.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

from nbtorchjob.errors import Shape, SpecError
from nbtorchjob.machine import devices
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.validation import digits, one_of
from nbtorchjob.text.hints import hint

_MEETING = "each job has its own rendezvous, with addresses and ports chosen for it"
_LOGS = "every rank's output is kept"
# Why nothing depends on the option, by its name.
_NEEDLESS = {
    **dict.fromkeys(("--standalone", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id"), _MEETING),
    **dict.fromkeys(("--master-addr", "--master-port", "--local-addr", "--node-rank"), _MEETING),
    **dict.fromkeys(("--log-dir", "-r", "--redirects", "-t", "--tee"), _LOGS),
}
_SWITCHES = {"--standalone"}
_SCRIPT = "here: the job runs the cell or the named function"
_AGENT = "here: nbtorchjob's agent doesn't support it"
_REFUSED = {
    "--rdzv-conf": "as an option: in Python it is Elastic(rdzv_configs={…})",
    **dict.fromkeys(("-m", "--module", "--no-python", "--run-path"), _SCRIPT),
    **dict.fromkeys(("--role", "--event-log-handler", "--logs-specs", "--numa-binding"), _AGENT),
    **dict.fromkeys(("--signals-to-handle", "--shutdown-timeout", "--virtual-local-rank"), _AGENT),
    **dict.fromkeys(
        ("--local-ranks-filter", "--duplicate-stdout-filters", "--duplicate-stderr-filters"),
        "here: choose a rank when printing the log",
    ),
}

# Other tools' names of an option, where they don't resemble its name here.
_MEANT = {
    "--nnodes": ("n", "num-nodes", "number-of-nodes", "hosts"),
    "--nproc-per-node": ("np", "nproc", "nprocs", "num-procs", "num-processes", "ntasks-per-node", "ranks"),
    "--worker-replicas": ("workers", "replicas", "num-workers"),
    "--active-deadline-seconds": ("timeout", "deadline", "time", "time-limit", "max-runtime"),
    "--ttl-seconds-after-finished": ("ttl",),
    "--retries": ("retry", "max-retries", "max-attempts"),
    "--namespace": ("ns",),
    "--memory": ("mem", "ram"),
    "--gpu": ("gpus", "num-gpus", "gres"),
    "--cpu": ("cpus", "num-cpus", "cores"),
    "--queue": ("partition",),
    "--preemptible": ("spot",),
    "--mount": ("volume", "volumes"),
    "--package": ("pip", "packages"),
    "--requirements": ("requirement",),
    "--ship": ("files", "file", "upload", "working-dir", "workdir"),
    "--out": ("output",),
    "--shm": ("shm-size",),
    "--detach": ("background", "async", "no-wait", "nowait"),
    "--quiet": ("silent",),
    "--backend kubernetes": ("k8s", "kube", "kubernetes", "cluster"),
    "--backend local": ("local",),
}
_CLOSE = 0.75  # "nods" to "nnodes" is 0.8, "background" to "backend" 0.7


def takes_value(flag: str) -> bool:
    """Whether torchrun's option, which isn't one of ours, is followed by a value."""
    return flag in _NEEDLESS and flag not in _SWITCHES


def dashed(word: str, known: Collection[str]) -> str:
    """Return an option with underscores, which torchrun accepts, spelled as it is ``known``."""
    flag, equals, value = word.partition("=")
    spelt = flag.replace("_", "-") if word.startswith("--") else flag
    return spelt + equals + value if spelt in {*known, *_NEEDLESS, *_REFUSED} else word


def needless(flag: str, value: str) -> str:
    """Return why torchrun's option has no effect here; "" for anything else.

    Raises ``SpecError`` for one that would matter.
    """
    if flag in _REFUSED:
        raise SpecError(flag, value, _REFUSED[flag], Shape.CONFLICT)
    if takes_value(flag) and not value:
        raise SpecError(flag, value, "what torchrun would take", Shape.NO_VALUE)
    if flag == "--rdzv-backend":
        one_of(flag, value, ("c10d",))
    why = _NEEDLESS.get(flag, "")
    return f"{why}: {hint('logs', '--rank N')}" if why is _LOGS else why


RANKS = ("auto", "gpu", "cpu")


def ranks(word: str, spec: JobSpec) -> int:
    """Return the number of ranks per node that torchrun's word means there, by a pod's resources.

    Raises ``SpecError``.
    """
    here = not spec.remote
    gpus = devices.gpus() if here else spec.cluster.gpu or 0
    cores = devices.cores() if here else digits(spec.cluster.cpu) or 0
    number = {"gpu": gpus, "cpu": cores, "auto": gpus or cores}[word]
    if number:
        return number
    why = "this machine has no NVIDIA GPU" if here else "neither --gpu nor --cpu is set"
    raise SpecError("nproc_per_node", word, f"a whole number, because {why}")


def near(flag: str, flags: Sequence[str]) -> str:
    """Return the option that ``flag`` may stand for, or "" rather than nonsense."""
    word = flag.lstrip("-").replace("_", "-").lower()
    known = {option_flag.lstrip("-"): option_flag for option_flag in flags if option_flag.startswith("--")}
    for option, others in _MEANT.items():
        if word in others:
            return option
    close = difflib.get_close_matches(word, known, n=1, cutoff=_CLOSE)
    longer = [name for name in known if len(word) > 2 and name.startswith(f"{word}-")]
    similar = close or (longer if len(longer) == 1 else [])
    return known[similar[0]] if similar else ""
