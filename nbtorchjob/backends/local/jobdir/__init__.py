"""A job's directory: its files, the events in them, and what damage leaves of both."""
