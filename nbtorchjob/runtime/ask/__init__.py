"""How a node is asked: the socket that it answers at, and the command that reaches it from outside."""
