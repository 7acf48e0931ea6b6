"""How a node starts: ``boot`` and ``main`` are entry points, ``init`` is a pod's PID 1, ``node`` the node."""
