"""Send a job, its next attempt, or its manifests."""
