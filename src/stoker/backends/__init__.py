"""One folder for each platform that jobs can run on."""
