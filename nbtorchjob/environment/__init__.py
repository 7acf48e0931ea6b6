"""What a kernel and an image have installed, and how the one differs from the other."""
