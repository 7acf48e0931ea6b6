"""This machine: the user's private folders, processes, limits, and the background event loop."""
