"""A BuildKit daemon elsewhere, which `buildctl` tells, or `docker buildx` with a builder of the driver `remote`.

https://github.com/moby/buildkit/blob/master/docs/reference/buildctl.md,
https://github.com/moby/buildkit#imageregistry and https://docs.docker.com/build/builders/drivers/remote/ describe them.
Both send docker's logins with the build. The file of metadata has the digest under `containerimage.digest`.
"""

from __future__ import annotations

import shlex
from typing import Any, Final

import attrs

from stoker.core.errors import SettingsError
from stoker.core.units import one_of, strict
from stoker.images.builders.base import CONTEXT, BuildOrder, ImageBuilder, RenderedBuild, parse_word

SCHEMES: Final = ("tcp://", "unix://", "docker-container://", "podman-container://", "kube-pod://", "ssh://")
"""https://github.com/moby/buildkit/blob/master/client/connhelper"""
METADATA: Final = "metadata.json"
_FOLDER: Final = "context"


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


def render(order: BuildOrder, settings: BuildKitSettings) -> RenderedBuild:
    """The command that sends the context and has the image built and pushed."""
    unpack = f"mkdir -p {_FOLDER} && tar -xzf {CONTEXT} -C {_FOLDER}"
    if settings.client == "buildx":
        return RenderedBuild(files={}, commands=(unpack, *_buildx(order, settings)))
    return RenderedBuild(files={}, commands=(unpack, shlex.join(_buildctl(order, settings))))


def _buildctl(order: BuildOrder, settings: BuildKitSettings) -> list[str]:
    tls = {"tlscacert": settings.ca, "tlscert": settings.cert, "tlskey": settings.key}
    tls["tlsservername"] = settings.server_name
    words = ["buildctl", f"--addr={settings.address}"]
    words += [f"--{name}={value}" for name, value in tls.items() if value]
    words += ["build", "--frontend=dockerfile.v0", f"--local=context={_FOLDER}", f"--local=dockerfile={_FOLDER}"]
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
    words = ["docker", "buildx", "build", "--builder=stoker-remote", f"--file={_FOLDER}/Dockerfile"]
    words += [f"--build-arg={name}={value}" for name, value in sorted(order.arguments.items())]
    words += [f"--platform={order.platform}"] if order.platform else []
    words += [f"--target={order.target}"] if order.target else []
    words += [] if order.cache else ["--no-cache"]
    if settings.cache:
        words += [f"--cache-to=type=registry,ref={settings.cache},mode=max"]
        words += [f"--cache-from=type=registry,ref={settings.cache}"]
    words += [f"--output=type=image,name={order.tag},push=true", f"--metadata-file={METADATA}", _FOLDER]
    # A builder of this name that is there already is used as it is.
    inspect = "docker buildx inspect stoker-remote >/dev/null 2>&1"
    return f"{inspect} || {shlex.join([*create, settings.address])}", shlex.join(words)


REMOTE_BUILDKIT: Final = ImageBuilder(
    name="remote-buildkit", title="a BuildKit daemon elsewhere", settings=BuildKitSettings, render=render, mounts=True
)
