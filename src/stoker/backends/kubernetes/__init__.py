"""Steps as Jobs of a Kubernetes cluster."""
