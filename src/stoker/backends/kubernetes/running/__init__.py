"""What is on a cluster while runs go on: their Jobs from creation to end, commands beside steps, and detached drivers.

The door is `handles.KubernetesHandle`, the functions of `ending`, `beside.places`, and `detach.detach`.
"""
