"""AWS Batch: the words of `@batch` in flows; no backend yet."""
