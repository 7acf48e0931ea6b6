"""Every option, by each of its names, and who takes it (``docs/options.md``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from docs._generate.markdown import code, table
from nbtorchjob.backends import backend
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.kinds.fit import check
from nbtorchjob.errors import SpecError
from nbtorchjob.spec import Option
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.options import GROUPS, KEYS, TABLE, parse

_INTRO = """# Options

This page is generated from the table that also defines the magic line, the panel, the profiles and the
completion.

- **Option**: on a line, `%%torchjob --nnodes 2` or `--nnodes=2`. Repeat an option that adds up. torchrun's
  spellings work too: `--nproc_per_node`, and `auto`, `gpu` or `cpu` as its number, which nbtorchjob counts
  here, or takes from `--gpu` and `--cpu`. It accepts torchrun's options that have no effect here
  (`--standalone`, `--master-port`, …) with a note, and refuses those that would have one (`--numa-binding`,
  …).
- **Profile**: the key in `nbtorchjob.toml`, which is the option without its dashes. An option that adds up
  is a table or a list.
- **Environment**: overrides the profile; the line overrides it. An option that adds up takes words
  separated by blanks, quoted as in a shell; a switch is `1` or `0`.
- **Python**: the field of the config, see [python.md](python.md).
- **Taken by**: the backends and kinds that support the option. Elsewhere it is refused before anything is
  sent, with the kinds that support it: [kinds.md](kinds.md).

nbtorchjob looks for `nbtorchjob.toml` in the notebook's folder and its parents up to the home directory, in
`~/.config/nbtorchjob`, and where an administrator has put one ([administrators.md](administrators.md)). If
several files have a profile of one name, the nearest one counts, as a whole. A file that others can write
to is ignored ([security.md](security.md#which-configuration-files-are-trusted)).

`-p NAME` selects the profile, otherwise the variable `NBTORCHJOB_PROFILE`, otherwise the file's
`default = "NAME"`. Jobs are kept in `~/.local/state/nbtorchjob`, or in the folder that
`NBTORCHJOB_STATE_DIR` names; caches in `~/.cache/nbtorchjob`, or in `cache` in that folder.
"""
_HEADS = ("option", "meaning", "default", "profile, environment", "Python", "taken by")

# What an option may be given as, where its kind of value doesn't say: values that differ in who takes them.
_SAMPLES: Mapping[str, Sequence[str]] = {
    "nnodes": ("2", "1:2"),
    "name": ("train",),
    "env": ("A=1",),
    "ship": ("configs/",),
    "data": ("squad=hf://datasets/rajpurkar/squad", "digits=./digits"),
    "preemptions": ("2",),
    "start-within": ("10m",),
    "idle": ("1h",),
    "rank": ("0", "0,2", "1-3"),
    "stop-when": ("loss > 2",),
    "largest": ("loss",),
    "retry-on": ("OSError",),
    "cpu": ("4",),
    "memory": ("8Gi",),
    "gpu-resource": ("amd.com/gpu",),
    "device": ("rdma/hca=1",),
    "limit": ("ephemeral-storage=9Gi",),
    "request": ("ephemeral-storage=9Gi",),
    "shm": ("2Gi",),
    "run-as": ("1000", "1000:100"),
    "image-pull-secret": ("registry",),
    "env-from": ("secret/mine",),
    "secret-env": ("HF_TOKEN",),
    "toleration": ("spot",),
    "spot-toleration": ("spot",),
    "mount": ("type=volume,src=data,dst=/data",),
    "package": ("einops", "like-here"),
    "requirements": ("requirements.txt",),
    "storage": ("s3://bucket/jobs",),
    "checkpoints": ("s3://bucket/checkpoints",),
    "data-cache": ("/cache",),
    "pod-patch": ("{metadata: {labels: {a: b}}}", "{spec: {hostNetwork: true}}"),
}
_BY_TYPE = {"int": ("2",), "number": ("2.5",), "switch": ("",), "pairs": ("a=b",)}
_BESIDE = {
    "preemptible": "--spot-toleration spot",
    "idle": "--keep lab",
    "data-cache": "--mount type=bind,src=/var/cache,dst=/cache",
    **dict.fromkeys(("rank", "push", "pull"), "--on lab"),
    **dict.fromkeys(("or-back", "within"), "--swap train"),
    **dict.fromkeys(("zip", "sample", "seed", "at-once", "yes"), "--each lr=1,2"),
    **dict.fromkeys(("stop-when", "halve"), "--each lr=1,2"),
    **dict.fromkeys(("by", "factor", "at-least", "largest"), "--each lr=1,2 --halve loss"),
}  # without which it can't be given


def page() -> str:
    """Return the page, as Markdown."""
    parts = [_INTRO]
    for title, home, _ in GROUPS:
        parts += [f"## {title}\n", table(_HEADS, (_row(o) for o in TABLE if o.home == home)), ""]
    return "\n".join(parts)


def samples(o: Option) -> Sequence[str]:
    """Return sample values of an option: all its choices, or one of each sort."""
    return o.choices or _SAMPLES.get(o.key) or _BY_TYPE.get(o.takes, ("a",))


def line(o: Option, value: str) -> str:
    """Return a line with that option, and with those that it needs."""
    words = (_BESIDE.get(o.key, ""), o.flags[-1], f"'{value}'" if value else "")
    return " ".join(filter(None, words))


def _row(o: Option) -> Sequence[str]:
    flags = ", ".join(code(f"{flag} {o.metavar}".rstrip()) for flag in o.flags)
    return flags, _says(o), code(o.default), _elsewhere(o), _field(o), "; ".join(_takers(o))


def _says(o: Option) -> str:
    notes = (o.unit, "adds up" if o.repeated else "", ", ".join(map(code, o.choices)))
    said = "; ".join(filter(None, notes))
    return f"{o.help} ({said})" if said else o.help


def _elsewhere(o: Option) -> str:
    return f"{code(o.key)}, {code(o.variable)}" if o.key in KEYS else ""


def _field(o: Option) -> str:
    kind = next(kind for _, home, kind in GROUPS if home == o.home)
    return code(f"{kind.__name__}.{o.name}") if o.key in KEYS else ""


def _takers(o: Option) -> Iterator[str]:
    """Return where the option is supported, by value where that differs."""
    by: dict[str, list[str]] = {}
    for value in samples(o):
        by.setdefault(_places(line(o, value)), []).append(value)
    for places, values in by.items():
        yield places if len(by) == 1 else f"{', '.join(map(code, values))}: {places}"


def _places(given: str) -> str:
    spec = parse(given, JobSpec())[0]
    here = ["local"] if _fits(backend("local").check, spec) else []
    # Pods need an image, whatever else is asked for.
    pods = replace(spec, cluster=replace(spec.cluster, image=spec.cluster.image or "torch"))
    kinds = [name for name, kind in KINDS.items() if _fits(partial(check, kind), pods)]
    if kinds == list(KINDS):
        return "all" if here else "Kubernetes"
    return ", ".join([*here, *kinds])


def _fits(asked: Callable[[JobSpec], object], spec: JobSpec) -> bool:
    try:
        asked(spec)
    except SpecError:
        return False
    return True
