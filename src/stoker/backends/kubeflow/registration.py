"""The kubeflow backend, as it is registered."""

from __future__ import annotations

import os
from typing import Any, Final, Iterable, Iterator, Mapping, NoReturn, Sequence

from stoker.backends.base.backend import Backend, Leftover, ProbeRequest, RunningBackend, Services, Sweep
from stoker.backends.base.beside import RunningAttempt, no_way
from stoker.backends.base.pulling import Puller
from stoker.backends.kubeflow.settings import KubeflowSettings
from stoker.core.errors import BackendError, SettingsError
from stoker.core.findings import Check
from stoker.core.plan import Site

PATIENCE: Final = 10.0
"""Seconds for an answer while a person waits."""


def open_kubeflow(site: Site, options: Mapping[str, Any], services: Services) -> RunningBackend:
    """Runs the steps of one run as tasks of one pipeline."""
    from stoker.backends.kubeflow.backend import KubeflowBackend

    return KubeflowBackend(site, options)


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
    from stoker.backends.kubeflow.api import KubeflowApi

    settings = KubeflowSettings(**options)
    try:
        api = KubeflowApi(settings, os.environ, patience=PATIENCE)
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


def leftovers(parts: Sequence[Mapping[str, Any]], sweep: Sweep) -> Iterable[Leftover]:
    """Orders and results of runs that nobody continues, in the artifact store."""
    if not parts:
        return ()
    from stoker.backends.kubeflow.leftovers import sweep_store

    return sweep_store(sweep)


def end_recorded(options: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """End runs that a driver left at the endpoint."""
    from stoker.backends.kubeflow import platform
    from stoker.backends.kubeflow.api import KubeflowApi

    return platform.end_recorded(options, jobs, KubeflowApi(KubeflowSettings(**options), os.environ, patience=PATIENCE))


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
    open=open_kubeflow,
    sends_code=True,
    puller=puller,
    probe=probe,
    leftovers=leftovers,
    end_recorded=end_recorded,
    beside=beside,
)
