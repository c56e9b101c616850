"""Kubernetes: the words of `@kubernetes` in flows; no backend yet."""
