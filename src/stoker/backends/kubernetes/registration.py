"""The kubernetes backend, as it is registered."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Mapping, Sequence

from stoker.backends.base.backend import Backend, FlowDecorator, StackSetup, later, of_parts, reach
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.findings import Check

if TYPE_CHECKING:
    from stoker.backends.base.pulling import Puller


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
    from stoker.backends.kubernetes.request import claims

    return claims.complete(options, uri)


def doctor() -> Sequence[Check]:
    """Whether a kubeconfig names a cluster, or this is a pod of one."""
    paths = (os.environ.get("KUBECONFIG") or "~/.kube/config").split(os.pathsep)
    return reach("kubernetes", files=paths, variables=("KUBERNETES_SERVICE_HOST",))


def store_details(store: str) -> Mapping[str, str]:
    """How large a claim is made, and of which storage class."""
    return {"claim_size": "50Gi", "storage_class": ""} if store.startswith("pvc://") else {}


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
    suggest=later("stoker.backends.kubernetes.proof.setup:suggest"),
    usual=later("stoker.backends.kubernetes.proof.setup:usual_context"),
    name=later("stoker.backends.kubernetes.proof.setup:stack_name"),
    store="The artifact store that pods reach: pvc://CLAIM (by default pvc://stoker, which is made), s3://…, gs://…, "
    "az://…, or a folder that all nodes have at this path",
    usual_store="pvc://stoker",
    store_details=store_details,
    store_questions={
        "claim_size": "How much a claim that is made holds",
        "storage_class": "Its storage class; empty for the cluster's default",
    },
    with_store=later("stoker.backends.kubernetes.proof.setup:with_store"),
    prepare=later("stoker.backends.kubernetes.proof.setup:prepare"),
    device_step=later("stoker.backends.kubernetes.proof.setup:device_step"),
)

KUBERNETES: Final = Backend(
    name="kubernetes",
    title="Kubernetes",
    settings=KubernetesSettings,
    open=later("stoker.backends.kubernetes.backend:KubernetesBackend", takes=2),
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
    probe=later("stoker.backends.kubernetes.proof.setup:probe"),
    nodes=later("stoker.backends.kubernetes.explain.nodes:nodes"),
    setup=SETUP,
    left_jobs=of_parts("stoker.backends.kubernetes.running.ending:left_jobs"),
    end_left=of_parts("stoker.backends.kubernetes.running.ending:end_left"),
    leftovers=of_parts("stoker.backends.kubernetes.running.ending:sweep_clusters"),
    end_recorded=later("stoker.backends.kubernetes.running.ending:end_recorded"),
    beside=later("stoker.backends.kubernetes.running.beside:places"),
    has_driver=later("stoker.backends.kubernetes.running.detach:has_driver"),
    timer=later("stoker.backends.kubernetes.running.detach:timer"),
    why_no_driver=later("stoker.backends.kubernetes.running.detach:why_no_driver"),
)
