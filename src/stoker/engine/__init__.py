"""Decides what happens next in a run, and makes it happen."""
