"""A group's runs on one card."""
