"""Values of options laid over a ``JobSpec``, wherever they come from: a line, a file, the environment.

Options may be spelled as in other tools: torchrun's, and words that people try. Nothing is dropped silently:
an option that has no effect here is accepted with a note, any other is refused with advice.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from nbtorchjob.errors import Shape, SpecError
from nbtorchjob.machine import processes
from nbtorchjob.spec import Option, digits, one_of
from nbtorchjob.spec.cluster.grammars import amount
from nbtorchjob.spec.config import Elastic, PyTorch, Unsaid, Worker
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.policies import Retry, RunPolicy
from nbtorchjob.text.hints import hint

# Where a field's config lies in a JobSpec (``Option.home``).
SPEC: tuple[str, ...] = ()
ELASTIC = ("launch",)
WORKER = ("launch", "worker")
POLICY = ("launch", "run_policy")
RETRY = ("retry",)
CLUSTER = ("cluster",)

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


def overlay(base: JobSpec, values: Mapping[Option, Any], where: Callable[[Option], str]) -> JobSpec:
    """Return ``base`` with these fields replaced; pairs and lists are added to those that it has.

    ``where`` names an option in a ``SpecError`` as its source spells it.
    """
    workers = [o for o in values if o.home == WORKER]
    torchruns = [o for o in values if o.home == ELASTIC]
    if workers and torchruns:
        others = f"with {', '.join(map(where, torchruns))}"
        raise SpecError(where(workers[0]), values[workers[0]], others, Shape.CONFLICT)
    parts: dict[tuple[str, ...], dict[str, Any]] = defaultdict(dict)
    for o, value in values.items():
        if o.repeated:
            old = value_at(o, base)
            if isinstance(old, Mapping):
                parts[o.home][o.name] = {**old, **value} if isinstance(value, Mapping) else value
            else:
                # A job without budgets has no such lists. Invalid values are left for the field to refuse.
                parts[o.home][o.name] = (*(old or ()), *value) if isinstance(value, list | tuple) else value
        else:
            parts[o.home][o.name] = value
    with named(values, where):
        launch = base.launch
        policy = launch.run_policy
        if parts[POLICY]:
            policy = replace(policy or RunPolicy(), **parts[POLICY])
        if parts[WORKER]:
            old = launch if isinstance(launch, PyTorch) else PyTorch(worker=Worker(replicas=0))
            launch = replace(old, worker=replace(old.worker, **parts[WORKER]))
        if parts[ELASTIC]:
            launch = replace(launch if isinstance(launch, Elastic) else Elastic(), **parts[ELASTIC])
        # A config with a deprecated field warns whenever it is made.
        if policy is not launch.run_policy:
            launch = replace(launch, run_policy=policy)
        cluster = replace(base.cluster, **parts[CLUSTER])
        retry = replace(base.retry or Retry(), **parts[RETRY]) if parts[RETRY] else base.retry
        return replace(base, launch=launch, cluster=cluster, retry=retry, **parts[SPEC])


def layered(base: JobSpec, values: Mapping[Option, Any], where: Callable[[Option], str]) -> JobSpec:
    """Return :func:`overlay` of a layer that counts more than ``base``, such as a line over its profile.

    A secret that the layer names has this process's value, also where ``base`` has one of its own.
    """
    secrets = next((value for o, value in values.items() if o.key == "secret-env"), ())
    if isinstance(secrets, list | tuple):  # anything else is left for the field to refuse
        env, hidden = (
            {name: text for name, text in pairs.items() if name not in secrets}
            for pairs in (base.env, base.hidden)
        )
        others = [name for name in base.secret_env if name not in secrets]
        base = replace(base, env=env, hidden=hidden, secret_env=others)
    return overlay(base, values, where)


def value_at(o: Option, spec: JobSpec) -> Any:
    """Return the value of the option's field; None where this kind of launch has no such field.

    A job's name is returned as the user wrote it.
    """
    if o.path == ("name",):
        return spec.title or spec.name
    value: Any = spec
    for name in o.path:
        value = getattr(value, name, None)
    return value


def chosen_at(o: Option, spec: JobSpec, *, in_pool: bool = True) -> Any:
    """Return the value that an option of this launch chose; in a pool None for a number left to the pool."""
    if o.home == ELASTIC and not isinstance(spec.launch, Elastic):
        return None  # a master and workers have such values too, but by no option
    value = value_at(o, spec)
    return None if in_pool and isinstance(value, Unsaid) else value


def read(o: Option, text: str, where: str) -> Any:
    """Return the value that ``text`` stands for; invalid text is returned, for the field to refuse."""
    if o.takes == "int":
        number = digits(text)
        return text if number is None else number
    if o.takes == "number":
        with suppress(ValueError):
            return float(text)
    if o.takes == "switch" and text.lower() in _TRUE + _FALSE:
        return text.lower() in _TRUE
    if o.takes == "pairs":
        return dict(pair(word, where) for word in split(text, where))
    if o.takes == "texts":
        return tuple(split(text, where))
    return text


def split(text: str, where: str) -> list[str]:
    """Return the words of ``text``, as a shell would; raises ``SpecError`` for an open quote."""
    try:
        return shlex.split(text)
    except ValueError as exc:
        raise SpecError(where, text, f"words with closed quotes ({exc})") from None


def pair(word: str, where: str) -> tuple[str, str]:
    """Return the two sides of ``NAME=VALUE``; raises ``SpecError`` where it isn't that."""
    name, equals, value = word.partition("=")
    if not (name and equals):
        raise SpecError(where, word, "NAME=VALUE")
    return name, value


@contextmanager
def named(values: Iterable[Option], where: Callable[[Option], str]) -> Iterator[None]:
    """Make a ``SpecError`` name the option rather than the field."""
    try:
        yield
    except SpecError as exc:
        options = [o for o in values if o.name == exc.field]
        raise exc.about(where(options[0])) if options else exc from None


_MEETING = "each job has its own rendezvous, with addresses and ports chosen for it"
_LOGS = "every rank's output is kept"
# Why an option has no effect here, by its name.
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
    """Whether an option that only torchrun has is followed by a value."""
    return flag in _NEEDLESS and flag not in _SWITCHES


def dashed(word: str, flags: Collection[str]) -> str:
    """Return an option with underscores, which torchrun accepts, spelled as in ``flags``."""
    flag, equals, value = word.partition("=")
    spelt = flag.replace("_", "-") if word.startswith("--") else flag
    return spelt + equals + value if spelt in {*flags, *_NEEDLESS, *_REFUSED} else word


def why_needless(flag: str, value: str) -> str:
    """Return why torchrun's option has no effect here; "" for anything else.

    Raises ``SpecError`` for an option that would have an effect.
    """
    if flag in _REFUSED:
        raise SpecError(flag, value, _REFUSED[flag], Shape.CONFLICT)
    if takes_value(flag) and not value:
        raise SpecError(flag, value, "any that torchrun accepts", Shape.NO_VALUE)
    if flag == "--rdzv-backend":
        one_of(flag, value, ("c10d",))
    why = _NEEDLESS.get(flag, "")
    return f"{why}: {hint('logs', '--rank N')}" if why is _LOGS else why


RANKS = ("auto", "gpu", "cpu")


def ranks_of(word: str, spec: JobSpec) -> int:
    """Return the number of ranks per node that torchrun's word means, by this machine or a pod's resources.

    Raises ``SpecError``.
    """
    local = not spec.remote
    gpus = processes.gpus() if local else spec.cluster.gpu or 0
    cpu = spec.cluster.cpu
    # A part of a core counts as one.
    requested = 0 if cpu is None else max(1, int(round(amount(cpu), 3)))
    cores = processes.cores() if local else requested
    number = {"gpu": gpus, "cpu": cores, "auto": gpus or cores}[word]
    if number:
        return number
    unset = "neither --gpu nor --cpu is set" if word == "auto" else f"--{word} isn't set"
    why = "this machine has no NVIDIA GPU" if local else unset
    raise SpecError("nproc_per_node", word, f"a whole number, because {why}")


def flags_near(flag: str, flags: Sequence[str]) -> str:
    """Return the option that ``flag`` may stand for, or "" if none is similar enough."""
    word = flag.lstrip("-").replace("_", "-").lower()
    by_name = {option_flag.lstrip("-"): option_flag for option_flag in flags if option_flag.startswith("--")}
    for option, others in _MEANT.items():
        if word in others:
            return option
    import difflib  # late: only needed for an unknown option

    close = difflib.get_close_matches(word, by_name, n=1, cutoff=_CLOSE)
    longer = [name for name in by_name if len(word) > 2 and name.startswith(f"{word}-")]
    similar = close or (longer if len(longer) == 1 else [])
    return by_name[similar[0]] if similar else ""
