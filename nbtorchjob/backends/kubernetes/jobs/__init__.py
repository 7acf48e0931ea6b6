"""Jobs that are on clusters: finding them, reading them once, bringing their values home."""
