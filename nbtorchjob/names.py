"""Names of jobs."""

from __future__ import annotations

import re
import secrets

# Without vowels no words come out, and without 0, 1 and l nothing is misread.
_ALPHABET = "23456789bcdfghjkmnpqrstvwxz"
_STEM = 24


def generate(label: str) -> str:
    """Give a new name that says what runs: ``train-7k2q`` for ``train(model)``.

    A DNS-1035 label well below the 40 characters that are safe for every kind of cluster job.
    """
    words = re.sub(r"[^a-z0-9]+", "-", label.partition("(")[0].lower()).strip("-")
    stem = re.sub(r"^[^a-z]+", "", words)[:_STEM].strip("-") or "job"
    return stem + "-" + "".join(secrets.choice(_ALPHABET) for _ in range(4))
