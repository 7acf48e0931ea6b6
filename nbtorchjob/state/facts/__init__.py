"""What is known of a job, before anything is concluded from it: facts, logs, and what ranks report."""
