"""A module that the script imports from its own folder."""

SCALE = 10
