"""``%load_ext nbtorchjob``: the magics, and what the extension sets up in IPython."""
