"""A lab: ``keeper`` and ``lab`` in the node, ``turns`` in a rank, ``relay`` to other nodes."""

TEXT = 1 << 18  # characters of a cell, and of its arguments, that are reported
TURN = ("label", "text", "filename", "arguments", "by")  # what a payload says of its turn, besides its code
# Why a turn is refused that may be taken later, or elsewhere.
NOT_YET = "its ranks haven't begun yet"
ANEW = "its ranks began anew"
ELSEWHERE = "the lead is node %d"
