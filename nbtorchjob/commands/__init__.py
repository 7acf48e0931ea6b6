"""The verbs of ``%torchjob`` and ``nbtorchjob``: one table, and what each of them does for every front."""
