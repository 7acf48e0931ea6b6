"""The functions that a rank's code calls: reports, checkpoints, artifacts, displays, leaving."""
