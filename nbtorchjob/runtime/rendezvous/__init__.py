"""How nodes find each other: stores of torch, whose messages between agents are signed."""
