"""What every job is like now, told to pages as it changes."""
