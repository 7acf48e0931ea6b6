"""What is requested for a job: the spec, its options, and the files and limits that fill it in."""
