"""How commands run beside a step in a pod: by exec over the API server, in the pods of the attempt.

A pod that takes several steps is entered as any other: which process is the step's is seen inside.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Final, Iterator, Mapping

from stoker.backends.base.beside import Beside, RunningAttempt, no_way
from stoker.backends.kubernetes import podcommand
from stoker.backends.kubernetes.client import ApiError, Cluster
from stoker.backends.kubernetes.jobs import RUN, label_text
from stoker.backends.kubernetes.objects import Object, index_of, is_deleted, main_name, name, phase
from stoker.backends.kubernetes.platform import ASKED
from stoker.backends.kubernetes.pods import GANG_LABEL
from stoker.backends.kubernetes.refusals import refusal_of
from stoker.backends.kubernetes.settings import KubernetesSettings

_ACCESS: Final = ("context", "kubeconfig")
"""The settings by which a cluster is reached."""


def places(options: Mapping[str, Any], attempt: RunningAttempt) -> Iterator[Beside]:
    """The attempt's pods, by rank; a `UsageError` where none runs, or the account may not see them.

    Raises `Away` where the API server does not answer.
    """
    cluster = Cluster(KubernetesSettings(**options), os.environ, patience=ASKED)
    namespace = str(attempt.identity.get("namespace") or cluster.namespace)
    try:
        selector = f"{RUN}={label_text(attempt.run)}"
        found = cluster.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector).get("items") or ()
    except ApiError as error:
        refusal = refusal_of(error.status, error.words, namespace=namespace)
        raise no_way(attempt, refusal.message, fix=refusal.fix) from None
    finally:
        cluster.close()
    running = [pod for pod in found if phase(pod) == "Running" and not is_deleted(pod)]
    pods = pods_of(running, str(attempt.identity.get("pod", "")))
    if not pods:
        raise no_way(attempt, "none of its pods runs", fix="see why it waits with `stoker show`")
    access = json.dumps({key: options[key] for key in _ACCESS if key in options})
    for pod in pods:
        words = (sys.executable, "-m", podcommand.__name__, access, namespace, name(pod), main_name(pod))
        yield Beside(
            where=f"the pod {namespace}/{name(pod)}",
            argv=(*words, "--"),
            terminal=(*words, "--terminal", "--"),
            environment=attempt.environment,
        )


def pods_of(pods: list[Object], named: str) -> list[Object]:
    """Of the run's pods those in which an attempt may be: the one that was recorded, with the others of its gang, by
    their index; all where that is gone, as of a step that was sent again."""
    own = next((pod for pod in pods if name(pod) == named), None)
    gang = _gang(own) if own is not None else ""
    if gang:
        pods = [pod for pod in pods if _gang(pod) == gang]
    elif own is not None:
        pods = [own]
    return sorted(pods, key=lambda pod: (index_of(pod) or 0, name(pod)))


def _gang(pod: Object) -> str:
    return str(((pod.get("metadata") or {}).get("labels") or {}).get(GANG_LABEL, ""))
