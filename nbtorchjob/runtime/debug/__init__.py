"""A rank that stops in the debugger, and the bridge to whoever types there."""
