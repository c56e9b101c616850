"""Floor 3: a graph and a stack become a plan."""
