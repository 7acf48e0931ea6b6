"""Tries nbtorchjob in a real kernel with the versions that an environment has; see ``__main__``."""
