"""This machine: folders that are the user's alone, processes, limits, and the background event loop."""
