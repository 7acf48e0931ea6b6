"""How long is waited for what must come: on a busy machine everything takes many times as long."""

LIMIT = 180.0  # seconds
