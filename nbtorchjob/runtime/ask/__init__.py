"""Asking a node: the socket that it answers at, and the command that reaches it from outside."""
