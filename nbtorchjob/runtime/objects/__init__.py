"""Moves objects between processes, also of different Pythons, as pickles and plain data."""
