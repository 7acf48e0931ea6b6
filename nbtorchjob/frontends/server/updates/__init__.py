"""The current state of every job, sent to pages as it changes."""
