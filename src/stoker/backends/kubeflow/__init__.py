"""Kubeflow Pipelines: a run is one pipeline of KFP 2, whose tasks wait for the driver's orders."""
