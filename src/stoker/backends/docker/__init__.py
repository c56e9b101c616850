"""Docker and podman: one container for each step."""
