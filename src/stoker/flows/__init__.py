"""The class form of a pipeline, by Metaflow's names: its classes, its command line, its tasks and its client."""
