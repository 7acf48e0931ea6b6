"""What a job is asked to be: the spec, its options, and the files and limits that fill it in."""
