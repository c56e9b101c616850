"""The kubeflow backend, as it is registered."""

from __future__ import annotations

import os
from typing import Any, Final, Iterator, Mapping, NoReturn

from stoker.backends.base.backend import Backend, ProbeRequest, RunningAttempt, later, no_way, of_parts
from stoker.backends.base.pulling import Puller
from stoker.backends.kubeflow.settings import KubeflowSettings
from stoker.core.errors import BackendError, SettingsError
from stoker.core.findings import Check


def puller(options: Mapping[str, Any]) -> Puller | None:
    """Who pulls images on the cluster's nodes."""
    names = KubeflowSettings(**options).get("image_pull_secrets", ())
    which = (
        f"its pull secret is in the cluster ({', '.join(names)})" if names else "its service account is in the cluster"
    )
    fix = "name a secret of the cluster that has a login for {registry}: KubeflowSettings(image_pull_secrets=['…'])"
    return Puller(who="the pods' kubelet", fix=fix, unseen=which)


def probe(options: Mapping[str, Any], request: ProbeRequest) -> Iterator[Check]:
    """Whether the endpoint answers and lets us in."""
    from stoker.backends.kubeflow.api import ASKED, KubeflowApi

    settings = KubeflowSettings(**options)
    try:
        api = KubeflowApi(settings, os.environ, patience=ASKED)
        health = api.health()
        version = health.get("tag_name") or health.get("commit_sha") or "of unknown version"
        found = f"Kubeflow Pipelines {version} at {api.host}"
        if health.get("multi_user") and not settings.get("namespace"):
            problem = "it serves several users, and no namespace is named"
            fix = "KubeflowSettings(namespace='…'): that of your profile"
            yield Check(name="kubeflow", found=found, problem=problem, fix=fix)
            return
        api.experiment(str(settings.get("experiment") or "stoker"))
        yield Check(name="kubeflow", found=found)
    except (BackendError, SettingsError) as error:
        yield Check(name="kubeflow", found="no answer", problem=error.message, fix=error.fix)


def beside(options: Mapping[str, Any], attempt: RunningAttempt) -> NoReturn:
    """Refused: the API of Kubeflow Pipelines has no way into a task."""
    id = str(attempt.identity.get("id") or "ID")
    raise no_way(
        attempt,
        "the API of Kubeflow Pipelines leads into no pod, and this stack knows no other",
        fix=f"find its pod, `kubectl get pods -A -l pipeline/runid={id}`, and enter it: `kubectl exec -it`",
    )


KUBEFLOW: Final = Backend(
    name="kubeflow",
    title="Kubeflow",
    settings=KubeflowSettings,
    open=later("stoker.backends.kubeflow.backend:KubeflowBackend", takes=2),
    sends_code=True,
    puller=puller,
    probe=probe,
    leftovers=of_parts("stoker.backends.kubeflow.requests:sweep_store"),
    end_recorded=later("stoker.backends.kubeflow.backend:end_recorded"),
    beside=beside,
)
