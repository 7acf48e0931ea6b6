"""Payloads of swaps, as a host sends them."""

import io
from dataclasses import replace

from nbtorchjob import capture
from nbtorchjob.capture.modules import LocalFile
from nbtorchjob.payload import archive

KEY = b"k" * 32


def packed(text, /, *, assumes=(), files=(), **words):
    """Return the payload of a swap, with these ``words``; ``files`` are pairs of a name and a text."""
    call = capture.from_cell(text, {}, rank_names=capture.RankNames(frozenset(assumes)), swaps=True)
    local = tuple(LocalFile(name, content.encode()) for name, content in files)
    words = {"or_back": False, "assumes": sorted(assumes), "sets": sorted(call.sets), **words}
    file = io.BytesIO()
    archive.write_swap(file, replace(call, files=local), KEY, words, remote=False)
    return file.getvalue()
