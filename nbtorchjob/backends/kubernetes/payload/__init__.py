"""A payload's way to the pods: as Secrets through the API, or by a store."""
