"""Floor 4: shows a run to a person."""
