"""Tolerations as ``kubectl taint`` writes taints: ``key=value:Effect``, ``key:Effect``, ``key``."""

from __future__ import annotations

from nbtorchjob.errors import SpecError
from nbtorchjob.spec.cluster.names import qualified, word

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def tolerations(field: str, value: tuple[str, ...]) -> tuple[str, ...]:
    """Return the texts back if each is a toleration, else raise ``SpecError``."""
    for text in value:
        toleration(text, field)
    return value


def toleration(text: str, field: str = "toleration") -> dict[str, str]:
    """Return the toleration for a pod's spec; without a value it matches any, without an effect all."""
    taint, colon, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    if not key or (colon and effect not in EFFECTS):
        raise SpecError(field, text, f"KEY[=VALUE][:EFFECT] with an effect of {', '.join(EFFECTS)}")
    found = {"key": qualified(field, key), "operator": "Equal" if equals else "Exists"}
    if equals:
        found["value"] = word(field, value)
    return {**found, "effect": effect} if colon else found
