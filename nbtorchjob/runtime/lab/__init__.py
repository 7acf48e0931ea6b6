"""A lab: ``keeper`` and ``lab`` in the node, ``turns`` in a rank, ``relay`` to other nodes."""

TEXT = 1 << 18  # characters that are told of a cell
# Why a turn isn't taken that may be taken later, or elsewhere.
NOT_YET = "its ranks haven't begun yet"
ANEW = "its ranks began anew"
ELSEWHERE = "the lead is node %d"
