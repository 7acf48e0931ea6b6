"""Objects out of one process into another, be it of another Python: pickles and plain data."""
