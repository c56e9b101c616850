"""Floor 4: decides what happens next in a run, and makes it happen."""
