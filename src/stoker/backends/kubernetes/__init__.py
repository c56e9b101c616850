"""Steps as Jobs of a Kubernetes cluster: `registration` says what the backend is, and `backend` is it.

`settings` and `objects` are below every folder, and `platform` above all of them.
"""
