"""Looking inside running ranks: samples of stacks, profiles, and what a collective waits for."""
