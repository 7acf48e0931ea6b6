"""The timeout of tests: on a busy machine everything takes many times as long."""

LIMIT = 180.0  # seconds
