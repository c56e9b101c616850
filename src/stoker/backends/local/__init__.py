"""This machine: steps in worker processes."""
