"""How a payload reaches the pods: as Secrets through the API, or through a store."""
