"""A pod: the template that all kinds share, and what is read from a running pod."""
