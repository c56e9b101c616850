"""Names that people know from other tools, a few lines each."""
