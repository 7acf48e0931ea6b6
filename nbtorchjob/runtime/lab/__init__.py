"""A lab: ``keeper`` and ``lab`` in the node, ``turns`` in a rank, ``relay`` to other nodes."""
