"""Data that a node fetches before its ranks start (``--data``)."""
