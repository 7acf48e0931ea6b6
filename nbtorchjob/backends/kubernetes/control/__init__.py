"""What is done with a running job: following it, ending it, and everything that its operator doesn't do."""
