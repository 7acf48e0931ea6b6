"""Amounts in Kubernetes' notation: ``500m``, ``2Gi``, ``1e3``."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nbtorchjob.errors import SpecError
from nbtorchjob.spec.cluster.names import qualified
from nbtorchjob.spec.validation import Frozen

_QUANTITY = re.compile(
    r"([0-9]{1,15}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,2}))?"
)
_SUFFIX = {
    **{suffix: 1000.0**power for power, suffix in enumerate(("n", "u", "m", "", "k", *"MGTPE"), start=-3)},
    **{suffix + "i": 1024.0**power for power, suffix in enumerate("KMGTPE", start=1)},
}
# The standard ones; all others belong to a domain, such as nvidia.com/gpu.
_PLAIN = ("cpu", "memory", "ephemeral-storage")
_BYTES = ("memory", "ephemeral-storage", "shm")
# flytekit's names; ``storage`` in its older versions is a volume's, which no container requests.
_ALSO = {"mem": "memory", "ephemeral_storage": "ephemeral-storage"}
_FLYTE = ("cpu", "mem", "gpu", "ephemeral_storage", "storage")
_FLYTE_GPU = "nvidia.com/gpu"  # unless its administrators name another one
_LEAST_BYTES = 4_000_000  # no container starts with less; 512m is half a byte


def amount(text: str) -> float:
    """Return the number that ``text`` writes: cores, bytes, pieces. Raises ``ValueError``."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        raise ValueError(text)
    number, suffix, exponent = found.groups()
    return float(number) * _SUFFIX[suffix or ""] * 10.0 ** int(exponent or 0)


def quantity(field: str, value: object) -> str:
    """Return the amount as text; a plain number is accepted. Raises ``SpecError``."""
    return _of(field, field, value)


def quantities(field: str, value: object) -> Frozen[str]:
    """Return amounts by resource as texts; flytekit's ``Resources`` are accepted. Raises ``SpecError``."""
    found: dict[str, str] = {}
    for name, text in _by_name(field, value).items():
        known = resource(field, _ALSO.get(name, name))
        if known in found:
            raise SpecError(field, name, f"given once: it is {known}")
        found[known] = _of(field, known, text)
    return Frozen(found)


def _by_name(field: str, value: object) -> Mapping[str, object]:
    if isinstance(value, Mapping):
        return value
    if not all(hasattr(value, name) for name in ("cpu", "mem")):
        raise SpecError(field, value, "a mapping of resources to amounts")
    given = {name: getattr(value, name, None) for name in _FLYTE}
    return {_FLYTE_GPU if name == "gpu" else name: each for name, each in given.items() if each is not None}


def resource(field: str, name: object) -> str:
    """Return ``name`` if it is a valid name of a resource, else raise ``SpecError``."""
    if isinstance(name, str) and (name in _PLAIN or name.startswith("hugepages-")):
        return name
    if not isinstance(name, str) or "/" not in name:
        raise SpecError(field, name, f"{', '.join(_PLAIN)} or a name with a domain, like nvidia.com/gpu")
    return qualified(field, name)


def _of(field: str, name: str, value: object) -> str:
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    try:
        number = amount(text) if isinstance(text, str) else 0.0
    except ValueError:
        number = 0.0
    if not (isinstance(text, str) and number > 0):
        raise SpecError(field, value, "an amount above 0, such as 2, 500m or 8Gi")
    if name in _BYTES and number < _LEAST_BYTES:
        raise SpecError(field, value, "4M or more: it counts bytes, so write M, Mi, G or Gi")
    return text
