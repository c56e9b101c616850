"""A graph and a stack become a plan."""
