"""The verbs of ``%torchjob`` and ``nbtorchjob``: one table, and what each verb does for every front."""
