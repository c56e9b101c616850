"""What becomes of a plan on a cluster that is described in a file: the real engine, in a time of its own."""
