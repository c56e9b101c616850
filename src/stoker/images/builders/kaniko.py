"""Kaniko: a Kubernetes job that builds an image without an engine.

Flags: https://github.com/osscontainertools/kaniko#additional-flags. Google archived the first repository in June 2025,
and this fork is maintained. The context is a packed folder in a bucket (`--context s3://…`, `gs://…`, `https://` of
an Azure container), or is read from the standard input (`tar://stdin`), which `kubectl run` sends.
"""

from __future__ import annotations

import json
import shlex
from typing import Any, Final

import attrs

from stoker.core.errors import SettingsError
from stoker.core.units import parse_flag, strict
from stoker.images.builders.base import CONTEXT, BuildOrder, ImageBuilder, RenderedBuild, parse_word

STDIN: Final = "tar://stdin"
IMAGE: Final = "ghcr.io/osscontainertools/kaniko:v1.28.5"
_SCHEMES: Final = ("s3://", "gs://", "https://")
_UPLOADS: Final = {"s3://": "aws s3 cp", "gs://": "gcloud storage cp", "https://": "azcopy copy"}
"""Scheme of the context → the command that uploads to it."""
CONFIG_FOLDER: Final = "/kaniko/.docker"
"""Where kaniko reads docker's config.json: https://github.com/osscontainertools/kaniko#pushing-to-docker-hub."""
DEADLINE: Final = 7200
"""Seconds after which a build is ended: an image of a CUDA toolkit and torch takes kaniko about half an hour."""


def parse_context(value: Any) -> str:
    """`context`: a folder of a bucket, or the standard input."""
    text = parse_word(value)
    if text != STDIN and not text.startswith(_SCHEMES):
        raise SettingsError(
            f"image_builder: {value!r} is no place that kaniko reads a context from",
            fix=f'write context = "s3://bucket/folder", "gs://bucket/folder", "https://…/container" or "{STDIN}"',
        )
    return text.rstrip("/") if text != STDIN else text


@strict
@attrs.frozen(kw_only=True)
class KanikoSettings:
    """Where kaniko runs and what it uses there."""

    context: str = attrs.field(default=STDIN, converter=parse_context)
    """The folder of a bucket that the context is uploaded to, or `tar://stdin`."""
    namespace: str = attrs.field(default="default", converter=parse_word)
    """The namespace of the job."""
    image: str = attrs.field(default=IMAGE, converter=parse_word)
    """Kaniko's own image; name it by its digest where it must not change."""
    secret: str = attrs.field(default="", converter=parse_word)
    """A secret of the type `kubernetes.io/dockerconfigjson`, with the login that pulls and pushes; empty where the
    service account or the node's role may."""
    service_account: str = attrs.field(default="", converter=parse_word)
    cache: bool = attrs.field(default=True, converter=parse_flag)
    """Whether layers are kept at the registry and used again."""
    cache_repository: str = attrs.field(default="", converter=parse_word)
    """Where layers are kept; the image's own repository with `/cache` behind it if empty (kaniko's default)."""


def render(order: BuildOrder, settings: KanikoSettings) -> RenderedBuild:
    """A job of batch/v1 with one pod, or with the context on the standard input a pod of `kubectl run`."""
    from_stdin = settings.context == STDIN
    location = STDIN if from_stdin else f"{settings.context}/{order.name}.tar.gz"
    spec = _pod_spec(order, settings, location)
    labels = {"app.kubernetes.io/name": "stoker-build", "app.kubernetes.io/managed-by": "stoker"}
    name = f"stoker-build-{order.name}"
    if from_stdin:
        spec["containers"][0] |= {"stdin": True, "stdinOnce": True}
        spec["containers"][0]["name"] = name  # `kubectl run` names the container as the pod
        overrides = json.dumps({"apiVersion": "v1", "spec": spec}, separators=(",", ":"))
        command = (
            f"kubectl run {name} --namespace {settings.namespace} --rm --stdin=true "
            f"--restart=Never --image={settings.image} --overrides={shlex.quote(overrides)} < {CONTEXT}"
        )
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": settings.namespace, "labels": labels},
            "spec": spec,
        }
        return RenderedBuild(files={"kaniko.json": pod}, commands=(command,))
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": settings.namespace, "labels": labels},
        "spec": {
            # A build that failed once fails again; one that succeeded needs no pod any more after an hour.
            "backoffLimit": 0,
            "activeDeadlineSeconds": DEADLINE,
            "ttlSecondsAfterFinished": 3600,
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
    upload = next(command for scheme, command in _UPLOADS.items() if location.startswith(scheme))
    target = f"job/{name} --namespace {settings.namespace}"
    commands = (
        f"{upload} {CONTEXT} {location}",
        "kubectl apply --filename kaniko.json",
        f"kubectl wait --for=condition=complete --timeout={DEADLINE}s {target}",
    )
    return RenderedBuild(files={"kaniko.json": job}, commands=commands)


def _pod_spec(order: BuildOrder, settings: KanikoSettings, location: str) -> dict[str, Any]:
    arguments = _arguments(order, settings, location)
    container: dict[str, Any] = {"name": "kaniko", "image": settings.image, "args": arguments}
    # Kaniko writes the digest as the container's message, which `kubectl get pod` shows.
    container["terminationMessagePath"] = "/dev/termination-log"
    spec: dict[str, Any] = {"restartPolicy": "Never", "containers": [container]}
    if order.platform:
        spec["nodeSelector"] = dict(zip(("kubernetes.io/os", "kubernetes.io/arch"), order.platform.split("/")[:2]))
    if settings.service_account:
        spec["serviceAccountName"] = settings.service_account
    if settings.secret:
        container["volumeMounts"] = [{"name": "docker-config", "mountPath": CONFIG_FOLDER, "readOnly": True}]
        items = [{"key": ".dockerconfigjson", "path": "config.json"}]
        spec["volumes"] = [{"name": "docker-config", "secret": {"secretName": settings.secret, "items": items}}]
    return spec


def _arguments(order: BuildOrder, settings: KanikoSettings, location: str) -> list[str]:
    words = ["--dockerfile=Dockerfile", f"--context={location}", f"--destination={order.tag}"]
    words += ["--digest-file=/dev/termination-log"]
    words += [f"--custom-platform={order.platform}"] if order.platform else []
    words += [f"--build-arg={name}={value}" for name, value in sorted(order.arguments.items())]
    words += [f"--target={order.target}"] if order.target else []
    if settings.cache and order.cache:
        words += ["--cache=true"]
        words += [f"--cache-repo={settings.cache_repository}"] if settings.cache_repository else []
    return words


KANIKO: Final = ImageBuilder(name="kaniko", title="kaniko", settings=KanikoSettings, render=render)
