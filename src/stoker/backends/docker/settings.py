"""The settings of the docker backend: how the container of a step is run on an engine that speaks Docker's API.

The image itself is `core.docker.DockerSettings`; the request to the engine is written in `backends.docker.requests`.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal, Mapping

import attrs

from stoker.backends.base.overlays import parse_mounts
from stoker.core.errors import SettingsError, nearest
from stoker.core.units import (
    UNSET,
    WHOLE_RUN,
    one_of,
    parse_flag,
    parse_mapping,
    parse_python,
    parse_text,
    positive_duration,
    strict,
)

SHARED_MEMORY: Final = 1 << 30
"""Bytes of /dev/shm where the step does not say: NCCL asks for 1 GB, data loaders take some, an engine gives 64 MB.
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#docker"""
SECRETS: Final = "/run/secrets"
"""Inside a container: the folder of secrets, as Docker's own and Kubernetes' customs have it."""

Pull = Literal["missing", "always", "never"]
Gpus = Literal["request", "cdi"]
Reuse = Literal["auto", True, False]

RUN_OPTIONS: Final[Mapping[str, tuple[str, type | tuple[type, ...]]]] = {
    # docker-py's name, which ZenML's `run_args` has too → the field of HostConfig, and what its value is.
    # https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Container/operation/ContainerCreate
    "cap_add": ("CapAdd", list),
    "cap_drop": ("CapDrop", list),
    "cgroup_parent": ("CgroupParent", str),
    "dns": ("Dns", list),
    "dns_options": ("DnsOptions", list),
    "dns_search": ("DnsSearch", list),
    "extra_hosts": ("ExtraHosts", dict),
    "group_add": ("GroupAdd", list),
    "init": ("Init", bool),
    "ipc_mode": ("IpcMode", str),
    "oom_score_adj": ("OomScoreAdj", int),
    "pid_mode": ("PidMode", str),
    "pids_limit": ("PidsLimit", int),
    "privileged": ("Privileged", bool),
    "read_only": ("ReadonlyRootfs", bool),
    "runtime": ("Runtime", str),
    "security_opt": ("SecurityOpt", list),
    "sysctls": ("Sysctls", dict),
    "tmpfs": ("Tmpfs", dict),
    "ulimits": ("Ulimits", dict),
    "userns_mode": ("UsernsMode", str),
}
"""Further options of a container that a person may give, and where they stand in the request."""

ELSEWHERE: Final[Mapping[str, str]] = {
    "command": "the step's function is what runs",
    "cpus": "resources=ResourceSettings(cpu_count=…)",
    "detach": "Stoker waits for the container by itself",
    "device_requests": "resources=ResourceSettings(gpu_count=…)",
    "devices": "resources=ResourceSettings(gpu_count=…)",
    "entrypoint": "Stoker's worker is what the container runs",
    "environment": "environment={…} of the step",
    "gpus": "resources=ResourceSettings(gpu_count=…)",
    "image": "docker=DockerSettings(parent_image=…)",
    "labels": "Stoker finds its containers by their labels",
    "mem_limit": "resources=ResourceSettings(memory=…)",
    "mounts": "mounts=[…] of ContainerSettings",
    "name": "a container's name follows from its run and step",
    "nano_cpus": "resources=ResourceSettings(cpu_count=…)",
    "network": "network=… of ContainerSettings",
    "network_mode": "network=… of ContainerSettings",
    "restart_policy": "retry=… of the step",
    "shm_size": "resources=ResourceSettings(shared_memory=…)",
    "user": "user=… of ContainerSettings",
    "volumes": "mounts=[…] of ContainerSettings",
}
"""Options that people know from `docker run` and that have a place of their own here."""

_SECRET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_USER = re.compile(r"image|[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?")


def parse_secrets(value: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """`secrets`: names of files to where their contents come from."""
    secrets: Any = parse_mapping(value)
    for name, source in (secrets or {}).items():
        if not _SECRET.fullmatch(name):
            raise SettingsError(f"{name!r} is not a name for a secret's file", fix="use letters, digits and _ . -")
        if source is not None and not (isinstance(source, str) and source.removeprefix("env:").strip()):
            # The value is not shown: it may be the secret itself.
            raise SettingsError(f"secret '{name}' does not say where it comes from", fix='write "env:NAME" or a path')
    return secrets  # type: ignore[no-any-return]


def parse_user(value: str | None) -> str | None:
    """`user`."""
    text = parse_text(value)
    if text and not _USER.fullmatch(text):
        raise SettingsError(f"{value!r} is not a user", fix='write "1000:1000", a name of the image\'s, or "image"')
    return text


def parse_run_options(value: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """`run_options`, each checked against the table."""
    options: Any = parse_mapping(value)
    for name, option in (options or {}).items():
        if name in ELSEWHERE:
            raise SettingsError(f"run_options has no '{name}': it is given elsewhere", fix=ELSEWHERE[name])
        if name not in RUN_OPTIONS:
            raise SettingsError(f"run_options has no '{name}'{nearest(name, RUN_OPTIONS)}")
        kind = RUN_OPTIONS[name][1]
        plain = list(option) if isinstance(option, tuple) else option
        if option is not None and (not isinstance(plain, kind) or (kind is int and isinstance(plain, bool))):
            what = kind.__name__ if isinstance(kind, type) else "value"
            raise SettingsError(f"run_options: {name}={option!r} is not a {what}")
    return options  # type: ignore[no-any-return]


def parse_pull(value: Pull | None) -> Pull | None:
    """`pull`."""
    one_of(value, "missing", "always", "never")
    return value


def parse_gpu_mode(value: Gpus | None) -> Gpus | None:
    """`gpus`."""
    one_of(value, "request", "cdi")
    return value


def parse_reuse(value: Reuse | None) -> Reuse | None:
    """`reuse`."""
    return value if value == "auto" else parse_flag(value)


def parse_idle_after(value: float | str | None) -> float | None:
    """`idle_after`."""
    return value if value is None or value is UNSET else positive_duration(value)


@strict
@attrs.frozen(kw_only=True)
class ContainerSettings:
    """How a step's container is run. A field that is not given is `UNSET`; `None` takes back what weaker layers say."""

    network: str | None = attrs.field(default=UNSET, converter=parse_text)
    """"host", "none", or a network of the engine's (`HostConfig.NetworkMode`); without it, the engine's default."""
    user: str | None = attrs.field(default=UNSET, converter=parse_user)
    """"uid:gid", a name in the image, or "image" for the image's own (`User`); without it, files are yours."""
    mounts: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_mounts)
    """Folders and volumes in the container (`HostConfig.Mounts`), as "/here:/there" or "/here:/there:ro"."""
    secrets: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_secrets)
    """Names to "env:NAME" or a file's path: each becomes a file below /run/secrets."""
    pull: Pull | None = attrs.field(default=UNSET, converter=parse_pull)
    """When the image is fetched: "missing", "always" or "never"."""
    gpus: Gpus | None = attrs.field(default=UNSET, converter=parse_gpu_mode)
    """How the engine is asked for NVIDIA devices: by a device "request" (`DeviceRequests`), or by their "cdi" names."""
    python: str | None = attrs.field(default=UNSET, converter=parse_python)
    """The interpreter in the image, first word of `Entrypoint`."""
    host: str | None = attrs.field(default=UNSET, converter=parse_text, metadata=WHOLE_RUN)
    """The engine's address, as in DOCKER_HOST, which is read where this is not given."""
    shares_files: bool | None = attrs.field(default=UNSET, converter=parse_flag, metadata=WHOLE_RUN)
    """Whether the engine sees this machine's folders; it does through a Unix socket."""
    keep: bool | None = attrs.field(default=UNSET, converter=parse_flag)
    """Leave the containers of failed steps for you to look into; `stoker gc` removes them."""
    reuse: Reuse | None = attrs.field(default=UNSET, converter=parse_reuse)
    """Whether steps with equal containers run in one, one after another: "auto", where a step needs none of its own;
    False: never; True: a step that needs its own is refused."""
    idle_after: float | None = attrs.field(default=UNSET, converter=parse_idle_after)
    """Seconds after which a container without a step ends."""
    run_options: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_run_options)
    """Further options of the container by the names of docker-py (`RUN_OPTIONS`)."""

    def get(self, name: str, default: Any = None) -> Any:
        """The field's value, or `default` where nothing was asked."""
        value = getattr(self, name)
        return default if value is UNSET or value is None else value
