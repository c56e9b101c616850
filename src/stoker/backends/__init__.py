"""Floor 2: one file for each platform that jobs can run on."""
