"""Pods' logs: followed over every cut, decoded into events, kept on this machine."""
