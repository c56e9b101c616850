"""Real servers that tests start, on loopback and on free ports, and end again; only those that they started."""
