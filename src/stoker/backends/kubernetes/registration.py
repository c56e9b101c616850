"""The kubernetes backend, as it is registered."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Collection, Final, Iterable, Iterator, Mapping, Sequence

from stoker.backends.base.backend import (
    Backend,
    FlowDecorator,
    LeftJob,
    Leftover,
    Preparation,
    ProbeRequest,
    RunningBackend,
    Services,
    StackSetup,
    Sweep,
)
from stoker.backends.base.nodes import PlatformNode
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.findings import Check
from stoker.core.plan import Site

if TYPE_CHECKING:
    from stoker.backends.base.beside import Beside, RunningAttempt
    from stoker.backends.base.pulling import Puller


def open_kubernetes(site: Site, options: Mapping[str, Any], services: Services) -> RunningBackend:
    """Runs jobs on one Kubernetes cluster."""
    from stoker.backends.kubernetes.backend import KubernetesBackend

    return KubernetesBackend(site, options)


def puller(options: Mapping[str, Any]) -> Puller | None:
    """The kubelets, with pull secrets or credentials of their nodes."""
    from stoker.backends.base.pulling import Puller

    return Puller(
        who="the cluster's nodes",
        fix="name a pull secret for {registry}: KubernetesSettings(image_pull_secrets=['…']), or let the nodes pull it",
        unseen="pull secrets and the nodes' own credentials are in the cluster",
    )


def parent_image(options: Mapping[str, Any]) -> str:
    """The image of the settings."""
    return str(KubernetesSettings(**options).get("image", ""))


def complete_store(options: Mapping[str, Any], uri: str) -> str:
    """A store on a claim, with what the pod needs that reaches it."""
    if not uri.startswith("pvc://"):
        return uri
    from stoker.backends.kubernetes import claims

    return claims.complete(options, uri)


def doctor() -> Iterator[Check]:
    """Whether a kubeconfig names a cluster, or this is a pod of one."""
    from stoker.backends.base.reaching import reach

    paths = (os.environ.get("KUBECONFIG") or "~/.kube/config").split(os.pathsep)
    yield reach("kubernetes", files=paths, variables=("KUBERNETES_SERVICE_HOST",))


def end_recorded(options: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """End jobs that a driver left on the cluster."""
    from stoker.backends.kubernetes import platform

    return platform.end_recorded(options, jobs)


def beside(options: Mapping[str, Any], attempt: RunningAttempt) -> Iterable[Beside]:
    """The pods of a running attempt."""
    from stoker.backends.kubernetes.beside import places

    return places(options, attempt)


def has_driver(options: Mapping[str, Any], place: str) -> bool:
    """Whether the Job of a detached driver waits or runs, such as "the Job ml/stoker-driver-1"."""
    from stoker.backends.kubernetes import detach

    return detach.has_driver(options, place)


def why_no_driver(options: Mapping[str, Any], place: str) -> str:
    """What such a Job's pod said at its end."""
    from stoker.backends.kubernetes import detach

    return detach.why_no_driver(options, place)


def leftovers(parts: Sequence[Mapping[str, Any]], sweep: Sweep) -> Iterable[Leftover]:
    """Jobs and Secrets of runs that nobody continues, on the clusters of all stacks."""
    if not parts:
        return ()
    from stoker.backends.kubernetes.leftovers import sweep_clusters

    return sweep_clusters(parts, sweep)


def left_jobs(parts: Sequence[Mapping[str, Any]], scratch: str, runs: Collection[str]) -> Iterable[LeftJob]:
    """Jobs that runs without a driver left."""
    if not parts:
        return ()
    from stoker.backends.kubernetes import leftovers as k8sleftovers

    return k8sleftovers.left_jobs(parts, scratch, runs)


def end_left(parts: Sequence[Mapping[str, Any]], scratch: str, run: str, grace: float) -> Iterable[LeftJob]:
    """End the Jobs that a run without a driver left."""
    if not parts:
        return ()
    from stoker.backends.kubernetes import leftovers as k8sleftovers

    return k8sleftovers.end_left(parts, scratch, run, grace)


def probe(options: Mapping[str, Any], request: ProbeRequest) -> Iterable[Check]:
    """The API server, rights verb by verb, nodes and accelerators, and a pod by a Job of a minute."""
    from stoker.backends.kubernetes import probe as k8sprobe

    return k8sprobe.probe(options, request)


def usual_context() -> str:
    """The current context."""
    from stoker.backends.kubernetes import setup

    return setup.usual_context()


def stack_name(context: str) -> str:
    """A stack's name by its context."""
    from stoker.backends.kubernetes import setup

    return setup.stack_name(context)


def suggest(answers: Mapping[str, str]) -> Mapping[str, str]:
    """What the other settings usually are under a context."""
    from stoker.backends.kubernetes import setup

    return setup.suggest(answers)


def with_store(settings: Mapping[str, str], store: str) -> Mapping[str, str]:
    """The settings for an artifact store."""
    from stoker.backends.kubernetes import setup

    return setup.with_store(settings, store)


def store_details(store: str) -> Mapping[str, str]:
    """How large a claim is made, and of which storage class."""
    return {"claim_size": "50Gi", "storage_class": ""} if store.startswith("pvc://") else {}


def prepare(options: Mapping[str, Any], store: str, details: Mapping[str, str]) -> Preparation | None:
    """The namespace, the service account, the rights and the claim that are missing."""
    from stoker.backends.kubernetes import setup

    return setup.prepare(options, store, details)


def device_step(options: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The options of a step that gets an accelerator of the cluster."""
    from stoker.backends.kubernetes import setup

    return setup.device_step(options)


def nodes(options: Mapping[str, Any]) -> Sequence[PlatformNode]:
    """The nodes of the cluster, and what is free on them."""
    from stoker.backends.kubernetes import nodelist

    return nodelist.nodes(options)


SETUP: Final = StackSetup(
    questions={
        "context": "The context of the kubeconfig",
        "namespace": "The namespace of the jobs; empty for the context's",
        "image": "The image of steps that name none; empty for plain Python",
        "service_account": "The service account of the pods; empty for the namespace's default",
        "image_pull_secrets": "Secrets with credentials of registries, with commas; empty for none",
        "queue": "Kueue's queue that admits the jobs; empty for none",
        "driver": "What the drivers of detached runs get, such as service_account=stoker-driver, which is made; empty "
        "where nobody detaches runs",
    },
    complete=lambda context: context,
    suggest=suggest,
    usual=usual_context,
    name=stack_name,
    store="The artifact store that pods reach: pvc://CLAIM (by default pvc://stoker, which is made), s3://…, gs://…, "
    "az://…, or a folder that all nodes have at this path",
    usual_store="pvc://stoker",
    store_details=store_details,
    store_questions={
        "claim_size": "How much a claim that is made holds",
        "storage_class": "Its storage class; empty for the cluster's default",
    },
    with_store=with_store,
    prepare=prepare,
    device_step=device_step,
)

KUBERNETES: Final = Backend(
    name="kubernetes",
    title="Kubernetes",
    settings=KubernetesSettings,
    open=open_kubernetes,
    complete_store=complete_store,
    sends_code=True,
    decorator=FlowDecorator(
        name="kubernetes",
        title="Kubernetes",
        settings=KubernetesSettings,
        help='Run the step on the stack\'s Kubernetes cluster: `@kubernetes(gpu=1, image="team/train:1")`.',
    ),
    puller=puller,
    parent_image=parent_image,
    doctor=doctor,
    probe=probe,
    nodes=nodes,
    setup=SETUP,
    left_jobs=left_jobs,
    end_left=end_left,
    leftovers=leftovers,
    end_recorded=end_recorded,
    beside=beside,
    has_driver=has_driver,
    why_no_driver=why_no_driver,
)
