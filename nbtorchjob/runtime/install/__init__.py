"""What a node puts in place before its ranks start: packages, wheels, files, environment variables."""
