"""Try nbtorchjob in a real kernel with the versions of an environment; see ``__main__``."""
