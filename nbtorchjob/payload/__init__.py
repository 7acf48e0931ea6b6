"""Payloads: a call, the runtime and the process's settings as a zipapp; and the value on its way back."""
