"""Changes the code of a running job: ``code`` says what of it can change, ``sending`` makes the change."""
