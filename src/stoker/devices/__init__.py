"""Accelerators of this machine: finding them, and pretending to have some."""
