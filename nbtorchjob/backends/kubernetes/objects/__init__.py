"""What is written into Kubernetes objects and read out of them (pure)."""
