"""What the lead of a lab says in words that the host reads."""

TEXT = 1 << 18  # characters that are told of a cell
# Why a turn isn't taken that may be taken later, or elsewhere.
NOT_YET = "its ranks haven't begun yet"
ANEW = "its ranks began anew"
ELSEWHERE = "the lead is node %d"
