"""What is done with a job that runs: following, ending, and what its operator doesn't do."""
