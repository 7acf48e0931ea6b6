"""What a node and its ranks tell, as events, errors and exit codes."""
