"""What a node puts in place before its ranks start: packages, wheels, files; and what it can import."""
