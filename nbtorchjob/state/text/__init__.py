"""A job's state in words: its failures, attempts and times."""
