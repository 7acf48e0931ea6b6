"""What the code of a rank calls: reports, checkpoints, artifacts, displays, leaving."""
