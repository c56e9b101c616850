"""`KubernetesPodSettings`, where ZenML has it."""

from stoker.backends.kubernetes.settings import KubernetesPodSettings

__all__ = ["KubernetesPodSettings"]
