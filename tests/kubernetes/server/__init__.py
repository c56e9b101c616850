"""A Kubernetes cluster for tests: an API server on loopback, a scheduler, a Job controller, and kubelets whose
containers are processes of this machine.

`cluster.LocalCluster` starts it as a process of its own and has its levers; the fixture is `cluster`.
"""
