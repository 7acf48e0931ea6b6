"""A job in words: pure functions from facts to the lines a person reads."""
