"""Rewrites ZenML pipelines and Metaflow flows with Stoker's names."""
