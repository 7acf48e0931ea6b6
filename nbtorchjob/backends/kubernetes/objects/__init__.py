"""What is written into Kubernetes objects and read out of them (pure), and their YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any


def from_yaml(text: str | bytes) -> Any:
    """Return a document's content. Raises ``yaml.YAMLError``, and ``ValueError`` for an impossible date."""
    import yaml  # late: it comes with the extra, which a tender's pod lacks

    try:
        return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return yaml.safe_load(text)  # libyaml reports an unexpected end one line too late


def to_yaml(obj: Mapping[str, Any]) -> str:
    """Return plain data as a document: its keys in their order, no folded lines, no references."""
    import yaml  # late, as above

    plain = json.loads(json.dumps(obj))
    text: str = yaml.dump(plain, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=1 << 22)
    return text


# What kubectl takes for a number (1.32) and PyYAML doesn't: ``1e-3``, ``09``, ``0o17``.
_NUMBER = re.compile(r"[-+]?(?:0[oO][0-7_]+|[0-9_]*\.?[0-9_]*(?:[eE][-+]?[0-9_]+)?)$")


@cache
def _dumper() -> Any:
    """Return the class of a dumper that quotes text which kubectl would read as a number."""
    import yaml  # late, as above

    # libyaml's, if PyYAML has it, as its wheels do: 2 MB take 20 ms, but 0.8 s in Python.
    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    dumper: Any = type("_Dumper", (base,), {})
    dumper.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+.0123456789"))
    return dumper
