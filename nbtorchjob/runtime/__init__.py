"""What ships into a node: the agent, the worker and the formats the host reads.

It needs nothing but Python and torch there. Every module parses on Python 3.7, so that the payload
can *say* that a Python is too old rather than fail to compile.
"""
