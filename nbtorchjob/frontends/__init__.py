"""The user interfaces: a notebook, its panel of widgets, a terminal, and the pages of a Jupyter server."""
