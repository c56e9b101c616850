"""Builds by the services of clouds: Google Cloud Build, AWS CodeBuild, Azure Container Registry's tasks.

https://cloud.google.com/build/docs/build-config-file-schema and the `Build` of its API;
https://docs.aws.amazon.com/codebuild/latest/APIReference/API_StartBuild.html and
https://docs.aws.amazon.com/codebuild/latest/userguide/build-spec-ref.html;
https://learn.microsoft.com/azure/templates/microsoft.containerregistry/registries/taskruns (`DockerBuildRequest`).
"""

from __future__ import annotations

import json
import shlex
from typing import Any, Callable, Final, Mapping

import attrs

from stoker.core.errors import SettingsError
from stoker.core.units import one_of, strict
from stoker.images.builders.base import CONTEXT, DOCKERFILE, BuildOrder, ImageBuilder, RenderedBuild, parse_word

SECONDS: Final = 7200
"""A build of an image with a CUDA toolkit takes about half an hour; Cloud Build's own limit is 3600 s by default."""
DOCKER: Final = "gcr.io/cloud-builders/docker"
"""https://cloud.google.com/build/docs/cloud-builders"""
CODEBUILD_IMAGE: Final = "aws/codebuild/standard:7.0"
"""https://docs.aws.amazon.com/codebuild/latest/userguide/build-env-ref-available.html"""


def parse_provider(value: Any) -> str:
    """`provider`."""
    one_of(value, *PROVIDERS)
    return str(value)


@strict
@attrs.frozen(kw_only=True)
class CloudSettings:
    """Which service builds, and in whose name."""

    provider: str = attrs.field(converter=parse_provider)
    """"gcp", "aws" or "azure"."""
    bucket: str = attrs.field(default="", converter=parse_word)
    """Where the context is uploaded: "gs://bucket/folder" or "s3://bucket/folder"; Azure has a place of its own."""
    project: str = attrs.field(default="", converter=parse_word)
    """Google's project, or CodeBuild's project."""
    region: str = attrs.field(default="", converter=parse_word)
    """Google's or AWS's region; the command's own default if empty."""
    service_account: str = attrs.field(default="", converter=parse_word)
    """Google's service account, or the ARN of CodeBuild's service role; the project's own if empty."""
    machine: str = attrs.field(default="", converter=parse_word)
    """Cloud Build's `machineType`, CodeBuild's `computeType`; the service's default if empty."""

    def __attrs_post_init__(self) -> None:
        scheme = {"gcp": "gs://", "aws": "s3://"}.get(self.provider, "")
        if scheme and not self.bucket.startswith(scheme):
            fix = f'write bucket = "{scheme}bucket/folder"'
            raise SettingsError(f"image_builder: provider '{self.provider}' needs a bucket for contexts", fix=fix)
        if scheme and not self.project:
            raise SettingsError(f"image_builder: provider '{self.provider}' needs a project", fix='write project = "…"')


def render(order: BuildOrder, settings: CloudSettings) -> RenderedBuild:
    """The documents of the service, and the commands that send them."""
    return PROVIDERS[settings.provider](order, settings)


def _google(order: BuildOrder, settings: CloudSettings) -> RenderedBuild:
    location = f"{settings.bucket.rstrip('/')}/{order.name}.tar.gz"
    bucket, _, path = location.removeprefix("gs://").partition("/")
    build: dict[str, Any] = {
        "source": {"storageSource": {"bucket": bucket, "object": path}},
        "steps": [{"name": DOCKER, "env": ["DOCKER_BUILDKIT=1"], "args": [*_build_words(order), "."]}],
        "images": [order.tag],
        "timeout": f"{SECONDS}s",
        "tags": ["stoker", order.name],
        "options": {"logging": "CLOUD_LOGGING_ONLY"},
    }
    if settings.machine:
        build["options"]["machineType"] = settings.machine
    if settings.service_account:
        name = f"projects/{settings.project}/serviceAccounts/{settings.service_account}"
        build["serviceAccount"] = name
    flags = ["--project", settings.project, *(["--region", settings.region] if settings.region else [])]
    config = {name: value for name, value in build.items() if name != "source"}
    submit = ["gcloud", "builds", "submit", *flags, "--config", "cloudbuild.json", location]
    commands = (f"gcloud storage cp {CONTEXT} {location}", shlex.join(submit))
    return RenderedBuild(files={"cloudbuild.json": config, "build-request.json": build}, commands=commands)


def _amazon(order: BuildOrder, settings: CloudSettings) -> RenderedBuild:
    location = f"{settings.bucket.removeprefix('s3://').rstrip('/')}/{order.name}.zip"
    host = order.tag.partition("/")[0]
    region = host.split(".")[3] if ".ecr." in host else settings.region
    login = f"aws ecr get-login-password{f' --region {region}' if region else ''}"
    build = shlex.join(["docker", *_build_words(order), "."])
    buildspec = {
        "version": 0.2,
        "phases": {
            "pre_build": {"commands": [f"{login} | docker login --username AWS --password-stdin {host}"]},
            "build": {"commands": [build]},
            "post_build": {"commands": [f"docker push {order.tag}"]},
        },
    }
    request: dict[str, Any] = {
        "projectName": settings.project,
        "sourceTypeOverride": "S3",
        "sourceLocationOverride": location,
        # JSON is YAML, in which a buildspec is written.
        "buildspecOverride": json.dumps(buildspec),
        "environmentTypeOverride": "ARM_CONTAINER" if order.platform.endswith("/arm64") else "LINUX_CONTAINER",
        "imageOverride": CODEBUILD_IMAGE,
        # docker's daemon runs in the build's container.
        "privilegedModeOverride": True,
        "timeoutInMinutesOverride": SECONDS // 60,
        "environmentVariablesOverride": [{"name": "DOCKER_BUILDKIT", "value": "1", "type": "PLAINTEXT"}],
        # The same order twice within minutes is one build.
        "idempotencyToken": order.name,
    }
    if order.platform.endswith("/arm64"):
        request["imageOverride"] = "aws/codebuild/amazonlinux2-aarch64-standard:3.0"
    if settings.machine:
        request["computeTypeOverride"] = settings.machine
    if settings.service_account:
        request["serviceRoleOverride"] = settings.service_account
    flags = f" --region {settings.region}" if settings.region else ""
    commands = (
        # A source in S3 is a ZIP file.
        f"mkdir -p context && tar -xzf {CONTEXT} -C context && (cd context && zip -qr ../context.zip .)",
        f"aws s3 cp context.zip s3://{location}",
        f"aws codebuild start-build{flags} --cli-input-json file://start-build.json",
    )
    return RenderedBuild(files={"start-build.json": request}, commands=commands)


def _azure(order: BuildOrder, settings: CloudSettings) -> RenderedBuild:
    host, _, image = order.tag.partition("/")
    name = host.partition(".")[0]
    os, _, architecture = (order.platform or "linux/amd64").partition("/")
    request = {
        "type": "DockerBuildRequest",
        "imageNames": [image],
        "isPushEnabled": True,
        "noCache": not order.cache,
        "dockerFilePath": DOCKERFILE,
        "sourceLocation": "<relativePath of listBuildSourceUploadUrl>",
        "platform": {"os": os.capitalize(), "architecture": architecture},
        "timeout": SECONDS,
        "arguments": [
            {"name": argument, "value": value, "isSecret": False} for argument, value in sorted(order.arguments.items())
        ],
        **({"target": order.target} if order.target else {}),
    }
    words = ["az", "acr", "build", "--registry", name, "--image", image, "--file", f"context/{DOCKERFILE}"]
    words += ["--platform", order.platform or "linux/amd64", "--timeout", str(SECONDS)]
    for argument, value in sorted(order.arguments.items()):
        words += ["--build-arg", f"{argument}={value}"]
    words += ["--target", order.target] if order.target else []
    words += [] if order.cache else ["--no-cache"]
    commands = (f"mkdir -p context && tar -xzf {CONTEXT} -C context", shlex.join([*words, "context"]))
    return RenderedBuild(files={"docker-build-request.json": request}, commands=commands)


def _build_words(order: BuildOrder) -> list[str]:
    """`docker build` without its program and its context."""
    words = ["build", "--file", DOCKERFILE, "--tag", order.tag]
    words += ["--platform", order.platform] if order.platform else []
    for name, value in sorted(order.arguments.items()):
        words += ["--build-arg", f"{name}={value}"]
    words += ["--target", order.target] if order.target else []
    return [*words, *([] if order.cache else ["--no-cache"])]


PROVIDERS: Final[Mapping[str, Callable[[BuildOrder, CloudSettings], RenderedBuild]]] = {
    "gcp": _google,
    "aws": _amazon,
    "azure": _azure,
}
CLOUD: Final = ImageBuilder(name="cloud", title="a cloud's build service", settings=CloudSettings, render=render)
