"""What only the nodes of a pool have: pods that stand, in which each job runs in fresh processes."""
