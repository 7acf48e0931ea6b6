"""Changes the code of a running job: ``code`` finds out what can change, ``sending`` makes the change."""
