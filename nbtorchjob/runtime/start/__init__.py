"""A node from its payload on: ``boot`` and ``main`` begin; ``init`` is a pod's PID 1, ``node`` the node."""
