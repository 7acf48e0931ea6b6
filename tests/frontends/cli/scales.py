"""What the script imports from beside it."""

SCALE = 10
