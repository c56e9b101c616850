"""Kubernetes; `flavors` and `pod_settings` have the module paths that ZenML's users import settings from."""
