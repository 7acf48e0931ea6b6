"""Pods' logs: followed over every cut, decoded into events, cached on this machine."""
