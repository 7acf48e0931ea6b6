"""From a submission to running nodes: pool, supervisor, attempts."""
