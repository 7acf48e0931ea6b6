"""Secrets, found by their names or as passwords in addresses: no record, text or page shows them."""

from __future__ import annotations

import re

MASKED = "<masked>"

# A tokenizer, the key points of a pose and a keyword aren't secret.
_SECRET = re.compile(
    "token(?!i[sz])|password|passwd|secret|(?<!mon)key(?!board|frame|point|word)|credential", re.IGNORECASE
)
# A name with its value in a repr: ``token='…'``, ``'HF_TOKEN': '…'``.
_TOLD = re.compile(
    r"""(?<![\w.-])([\w.-]*(?:%s)[\w.-]*["']?\s*[=:]\s*)"""
    r"""([bru]{0,2}(?:'(?:\\.|[^'\\])*'?|"(?:\\.|[^"\\])*"?)|[^\s,;)}\]"']+)""" % _SECRET.pattern,
    re.IGNORECASE,
)

# The password in an address.
_ADDRESS = re.compile(r"(?<=://)([^\s:/@'\"]*:)[^\s/@'\"]+(?=@)")


def is_secret(name: str) -> bool:
    """Whether a name looks like that of a secret."""
    return _SECRET.search(name) is not None


def has_password(text: str) -> bool:
    """Whether a text has an address with a password in it."""
    return _ADDRESS.search(text) is not None


def masked(text: str) -> str:
    """Return a text, such as a repr, with its secrets masked."""
    return _ADDRESS.sub(r"\1" + MASKED, _TOLD.sub(r"\1" + MASKED, text))
