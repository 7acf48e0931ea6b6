"""What is written into Kubernetes objects and read out of them (pure), and their YAML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def from_yaml(text: str | bytes) -> Any:
    """Return a document's content. Raises ``yaml.YAMLError``, and ``ValueError`` for an impossible date."""
    import yaml  # late: it comes with the extra, and a tender's pod is without it

    try:
        return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return yaml.safe_load(text)  # of an end that comes too soon libyaml names the line after it


def to_yaml(obj: Mapping[str, Any]) -> str:
    """Return a document of plain data: its keys in their order, no line folded, nothing by reference."""
    import yaml  # late, as above

    # Of libyaml where PyYAML has it, as its wheels do: 2 MB take 20 ms, and 0.8 s in Python.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    plain = json.loads(json.dumps(obj))
    text: str = yaml.dump(plain, Dumper=dumper, sort_keys=False, allow_unicode=True, width=1 << 22)
    return text
