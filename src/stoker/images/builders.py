"""Who builds images: an engine of this machine, or a service elsewhere that is told by documents and commands.

The engine of this machine builds by itself (`images.build`). What every other builder is told is made of a
`BuildOrder`; nothing is sent here.

kaniko           a Kubernetes job without an engine: https://github.com/osscontainertools/kaniko#additional-flags
                 (Google archived the first repository in June 2025, and this fork is maintained). The context is a
                 packed folder in a bucket, or is read from the standard input, which `kubectl run` sends.
remote-buildkit  a daemon that `buildctl` tells, or `docker buildx` with a builder of the driver `remote`:
                 https://github.com/moby/buildkit/blob/master/docs/reference/buildctl.md,
                 https://github.com/moby/buildkit#imageregistry, https://docs.docker.com/build/builders/drivers/remote/.
                 Both send docker's logins with the build. The file of metadata has the digest under
                 `containerimage.digest`.
cloud            Google Cloud Build, AWS CodeBuild, Azure Container Registry's tasks:
                 https://cloud.google.com/build/docs/build-config-file-schema and the `Build` of its API;
                 https://docs.aws.amazon.com/codebuild/latest/APIReference/API_StartBuild.html and
                 https://docs.aws.amazon.com/codebuild/latest/userguide/build-spec-ref.html;
                 https://learn.microsoft.com/azure/templates/microsoft.containerregistry/registries/taskruns
                 (`DockerBuildRequest`).
"""

from __future__ import annotations

import json
import shlex
from typing import Any, Callable, Final, Mapping

import attrs

from stoker.core.errors import SettingsError, nearest
from stoker.core.plugins import Registry
from stoker.core.units import one_of, parse_flag, strict

DOCKERFILE: Final = "Dockerfile"
"""The name of the Dockerfile in the context."""
CONTEXT: Final = "context.tar.gz"
"""The name of the packed context, which has the Dockerfile in it."""
RENDERED_OPTIONS: Final = frozenset({"build_args", "buildargs", "labels", "target", "nocache", "pull"})
"""Options of `build_config` that every builder takes; `pull` is what builders without images of their own do anyway."""


@attrs.frozen(kw_only=True)
class BuildOrder:
    """One image that is to be built and pushed elsewhere."""

    tag: str
    """The full name under which it is pushed."""
    name: str
    """A name for the build: letters, digits and hyphens, of at most 40 characters."""
    platform: str
    """Such as "linux/amd64"."""
    arguments: Mapping[str, str] = attrs.field(factory=dict)
    """The values of the Dockerfile's ARGs."""
    target: str = ""
    """The stage to build; empty for the last one."""
    cache: bool = True
    """Whether layers of earlier builds are used."""


@attrs.frozen(kw_only=True)
class RenderedBuild:
    """What a builder elsewhere is told."""

    files: Mapping[str, Any]
    """File name → its document, which is JSON, or its text."""
    commands: tuple[str, ...]
    """The commands that upload the context and start the build, in their order, in the folder of the files."""


@attrs.frozen
class NoBuilderSettings:
    """The settings of a builder that has none."""


@attrs.frozen(kw_only=True)
class ImageBuilder:
    """One kind of builder, complete."""

    name: str
    """The flavor: what `image_builder = "…"` in stoker.toml names."""
    title: str
    """What it is called in texts."""
    settings: type[attrs.AttrsInstance] = NoBuilderSettings
    """The attrs class of its settings in the stack; each converter raises `SettingsError` for what it cannot take."""
    render: Callable[[BuildOrder, Any], RenderedBuild] | None = None
    """What it is told to build an image, by its settings; pure. None for the engine of this machine."""
    mounts: bool = False
    """Whether it understands `RUN --mount`: caches of installers and secrets while building."""


@attrs.frozen(kw_only=True)
class BuilderChoice:
    """The builder of a stack, with its settings."""

    flavor: str
    """The name of an `ImageBuilder`."""
    settings: Any
    """An object of its settings' class."""


def choose(value: Any, load: Callable[[str], ImageBuilder]) -> BuilderChoice:
    """The builder of a text or a table in stoker.toml; `SettingsError` says what is wrong with it."""
    options = {"flavor": value} if isinstance(value, str) else dict(value) if isinstance(value, Mapping) else {}
    flavor = options.pop("flavor", None)
    if not isinstance(flavor, str) or not flavor:
        raise SettingsError(f"image_builder = {value!r} names no flavor", fix='write image_builder = "local"')
    builder = load(flavor)
    fields = [field.name for field in attrs.fields(builder.settings)]
    for name in options:
        if name not in fields:
            raise SettingsError(f"image_builder: {builder.title} has no '{name}'{nearest(name, fields)}")
    missing = [field.name for field in attrs.fields(builder.settings) if field.default is attrs.NOTHING]
    lacking = [name for name in missing if name not in options]
    if lacking:
        fix = f'write image_builder = {{flavor = "{flavor}", {lacking[0]} = "…"}}'
        raise SettingsError(f"image_builder: {builder.title} needs {', '.join(lacking)}", fix=fix)
    return BuilderChoice(flavor=flavor, settings=builder.settings(**options))


def parse_word(value: Any) -> str:
    """A text without blanks and quotes, as names, addresses and paths are."""
    if not isinstance(value, str) or any(mark.isspace() or mark in "'\"\\`$;" for mark in value):
        raise SettingsError(f"image_builder: {value!r} is not a name, an address or a path")
    return value


def check_options(options: Mapping[str, Any], builder: ImageBuilder) -> None:
    """Refuse options of `build_config` that a builder elsewhere cannot honour."""
    lost = sorted(name for name, value in options.items() if value and name not in RENDERED_OPTIONS)
    if lost:
        raise SettingsError(
            f"{builder.title} cannot be told build_config's option '{lost[0]}'",
            fix='take it back, or let this machine build: image_builder = "local"',
        )


LOCAL: Final = ImageBuilder(name="local", title="the container engine of this machine", mounts=True)


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


def render_kaniko(order: BuildOrder, settings: KanikoSettings) -> RenderedBuild:
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


KANIKO: Final = ImageBuilder(name="kaniko", title="kaniko", settings=KanikoSettings, render=render_kaniko)


SCHEMES: Final = ("tcp://", "unix://", "docker-container://", "podman-container://", "kube-pod://", "ssh://")
"""https://github.com/moby/buildkit/blob/master/client/connhelper"""
METADATA: Final = "metadata.json"
_UNPACKED: Final = "context"


def parse_address(value: Any) -> str:
    """`address`: where the daemon listens."""
    text = parse_word(value)
    if not text.startswith(SCHEMES):
        fix = 'write address = "tcp://buildkitd.example.com:1234"'
        raise SettingsError(f"image_builder: {value!r} is no address of a BuildKit daemon", fix=fix)
    return text


def parse_client(value: Any) -> str:
    """`client`."""
    one_of(value, "buildctl", "buildx")
    return str(value)


@strict
@attrs.frozen(kw_only=True)
class BuildKitSettings:
    """Where the daemon is, and how it is reached."""

    address: str = attrs.field(converter=parse_address)
    """Where it listens: "tcp://host:1234"."""
    client: str = attrs.field(default="buildctl", converter=parse_client)
    """The program that tells it: "buildctl" or "buildx"."""
    ca: str = attrs.field(default="", converter=parse_word)
    """The file with the certificate of the authority that signed the daemon's; with `cert` and `key` both sides prove
    who they are."""
    cert: str = attrs.field(default="", converter=parse_word)
    """The file with this side's certificate."""
    key: str = attrs.field(default="", converter=parse_word)
    """The file with the key of `cert`."""
    server_name: str = attrs.field(default="", converter=parse_word)
    """The name in the daemon's certificate, where it is not the address's."""
    cache: str = attrs.field(default="", converter=parse_word)
    """The repository in which layers are kept for later builds; without it the daemon's own cache is used."""

    def __attrs_post_init__(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise SettingsError("image_builder: cert and key go together", fix="name both files, or none")


def render_buildkit(order: BuildOrder, settings: BuildKitSettings) -> RenderedBuild:
    """The command that sends the context and has the image built and pushed."""
    unpack = f"mkdir -p {_UNPACKED} && tar -xzf {CONTEXT} -C {_UNPACKED}"
    if settings.client == "buildx":
        return RenderedBuild(files={}, commands=(unpack, *_buildx(order, settings)))
    return RenderedBuild(files={}, commands=(unpack, shlex.join(_buildctl(order, settings))))


def _buildctl(order: BuildOrder, settings: BuildKitSettings) -> list[str]:
    tls = {"tlscacert": settings.ca, "tlscert": settings.cert, "tlskey": settings.key}
    tls["tlsservername"] = settings.server_name
    words = ["buildctl", f"--addr={settings.address}"]
    words += [f"--{name}={value}" for name, value in tls.items() if value]
    words += ["build", "--frontend=dockerfile.v0", f"--local=context={_UNPACKED}", f"--local=dockerfile={_UNPACKED}"]
    options = {f"build-arg:{name}": value for name, value in sorted(order.arguments.items())}
    options |= {"platform": order.platform, "target": order.target}
    words += [f"--opt={name}={value}" for name, value in options.items() if value]
    words += [] if order.cache else ["--no-cache"]
    if settings.cache:
        words += [f"--export-cache=type=registry,ref={settings.cache},mode=max"]
        words += [f"--import-cache=type=registry,ref={settings.cache}"]
    return [*words, f"--output=type=image,name={order.tag},push=true", f"--metadata-file={METADATA}"]


def _buildx(order: BuildOrder, settings: BuildKitSettings) -> tuple[str, str]:
    driver = {"cacert": settings.ca, "cert": settings.cert, "key": settings.key, "servername": settings.server_name}
    options = ",".join(f"{name}={value}" for name, value in driver.items() if value)
    create = ["docker", "buildx", "create", "--name=stoker-remote", "--driver=remote"]
    create += [f"--driver-opt={options}"] if options else []
    words = ["docker", "buildx", "build", "--builder=stoker-remote", f"--file={_UNPACKED}/Dockerfile"]
    words += [f"--build-arg={name}={value}" for name, value in sorted(order.arguments.items())]
    words += [f"--platform={order.platform}"] if order.platform else []
    words += [f"--target={order.target}"] if order.target else []
    words += [] if order.cache else ["--no-cache"]
    if settings.cache:
        words += [f"--cache-to=type=registry,ref={settings.cache},mode=max"]
        words += [f"--cache-from=type=registry,ref={settings.cache}"]
    words += [f"--output=type=image,name={order.tag},push=true", f"--metadata-file={METADATA}", _UNPACKED]
    # A builder of this name that is there already is used as it is.
    inspect = "docker buildx inspect stoker-remote >/dev/null 2>&1"
    return f"{inspect} || {shlex.join([*create, settings.address])}", shlex.join(words)


REMOTE_BUILDKIT: Final = ImageBuilder(
    name="remote-buildkit",
    title="a BuildKit daemon elsewhere",
    settings=BuildKitSettings,
    render=render_buildkit,
    mounts=True,
)


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


def render_cloud(order: BuildOrder, settings: CloudSettings) -> RenderedBuild:
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
CLOUD: Final = ImageBuilder(name="cloud", title="a cloud's build service", settings=CloudSettings, render=render_cloud)


BUILDERS: Final[Registry[ImageBuilder]] = Registry(
    group="stoker.builders",
    noun="image builder",
    kind=ImageBuilder,
    builtin={
        "local": ("stoker.images.builders:LOCAL", ""),
        "kaniko": ("stoker.images.builders:KANIKO", ""),
        "remote-buildkit": ("stoker.images.builders:REMOTE_BUILDKIT", ""),
        "cloud": ("stoker.images.builders:CLOUD", ""),
    },
)
