"""Where people meet it: a notebook, its panel of widgets, a terminal, and the pages of a Jupyter server."""
