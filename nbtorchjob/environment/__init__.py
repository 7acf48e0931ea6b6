"""What a kernel and an image have installed, and how they differ."""
