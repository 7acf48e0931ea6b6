"""A rank: the process that runs the call, set up as the notebook was."""
