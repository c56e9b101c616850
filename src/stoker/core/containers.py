"""What a person asks of the container that a step runs in, on an engine that speaks Docker's API.

How the request to an engine is written is `backends.docker.requests`; the image itself is `core.docker`. What the
program inside and the backend outside must agree on stands here too.
"""

from __future__ import annotations

import re
from typing import Any, Final, Iterable, Literal, Mapping

import attrs

from stoker.core.docker import given_mapping, given_text, given_texts
from stoker.core.errors import SettingsError, nearest
from stoker.core.resources import given_flag
from stoker.core.units import UNSET, strict

MARK: Final = "\x1estoker "
"""Begins a line of a container's standard output that is a message of Stoker's, as JSON."""
UP_VERSION: Final = 1
RESULT: Final = "result.json"
"""The file beside a job's document in which its end is told."""
SHARED_MEMORY: Final = 1 << 30
"""Bytes of /dev/shm where the step does not say: NCCL asks for 1 GB, data loaders take some, an engine gives 64 MB.
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#docker"""
CREDENTIALS: Final = "/run/stoker/environment.json"
"""Inside a container: variables that neither the engine nor the image may show."""
SECRETS: Final = "/run/secrets"
"""Inside a container: the folder of secrets, as Docker's own and Kubernetes' customs have it."""

Pull = Literal["missing", "always", "never"]
Gpus = Literal["request", "cdi"]

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


@attrs.frozen
class Mount:
    """A folder of the engine's machine, or a named volume, in a container."""

    source: str
    target: str
    read_only: bool = False

    @classmethod
    def parse(cls, text: str) -> Mount:
        """From "/data:/mnt/data" or "/data:/mnt/data:ro"; "/data" alone is the same folder inside."""
        parts = text.split(":")
        mode = parts.pop() if len(parts) > 1 and parts[-1] in ("ro", "rw") else "rw"
        if len(parts) == 1:
            parts *= 2
        if len(parts) != 2 or not parts[0] or not parts[1].startswith("/"):
            fix = 'write "/folder:/place/inside", "name:/place/inside:ro", or "/folder" for the same place'
            raise SettingsError(f"{text!r} is not a mount", fix=fix)
        return cls(parts[0], parts[1], mode == "ro")


def given_mounts(value: Iterable[str] | None) -> tuple[str, ...] | None:
    """`mounts`."""
    texts = given_texts(value)
    for text in texts or ():
        Mount.parse(text)
    return texts


def given_secrets(value: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """`secrets`: names of files to where their contents come from."""
    found: Any = given_mapping(value)
    for name, source in (found or {}).items():
        if not _SECRET.fullmatch(name):
            raise SettingsError(f"{name!r} is not a name for a secret's file", fix="use letters, digits and _ . -")
        if source is not None and not (isinstance(source, str) and source.removeprefix("env:").strip()):
            # The value is not shown: it may be the secret itself.
            raise SettingsError(f"secret '{name}' does not say where it comes from", fix='write "env:NAME" or a path')
    return found  # type: ignore[no-any-return]


def given_user(value: str | None) -> str | None:
    """`user`."""
    text = given_text(value)
    if text and not _USER.fullmatch(text):
        raise SettingsError(f"{value!r} is not a user", fix='write "1000:1000", a name of the image\'s, or "image"')
    return text


def given_run_options(value: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """`run_options`, each checked against the table."""
    found: Any = given_mapping(value)
    for name, option in (found or {}).items():
        if name in ELSEWHERE:
            raise SettingsError(f"run_options has no '{name}': it is given elsewhere", fix=ELSEWHERE[name])
        if name not in RUN_OPTIONS:
            raise SettingsError(f"run_options has no '{name}'{nearest(name, RUN_OPTIONS)}")
        kind = RUN_OPTIONS[name][1]
        taken = list(option) if isinstance(option, tuple) else option
        if option is not None and (not isinstance(taken, kind) or (kind is int and isinstance(taken, bool))):
            what = kind.__name__ if isinstance(kind, type) else "value"
            raise SettingsError(f"run_options: {name}={option!r} is not a {what}")
    return found  # type: ignore[no-any-return]


def given_pull(value: Pull | None) -> Pull | None:
    """`pull`."""
    one_of(value, "missing", "always", "never")
    return value


def given_gpus(value: Gpus | None) -> Gpus | None:
    """`gpus`."""
    one_of(value, "request", "cdi")
    return value


def one_of(value: Any, *words: str) -> None:
    """Refuse a value that was given and is none of the words."""
    if value is not None and value is not UNSET and value not in words:
        raise SettingsError(f"{value!r} is not one of {', '.join(words)}{nearest(str(value), words)}")


@strict
@attrs.frozen(kw_only=True)
class ContainerSettings:
    """How a step's container is run. A field that is not given is `UNSET`; `None` takes back what weaker layers say.

    `network` is "host", "none", or a network of the engine's; without it, the engine's default. `user` is "uid:gid",
    a name in the image, or "image" for the image's own; without it, files are yours. `mounts` are "/here:/there" or
    "/here:/there:ro". `secrets` maps names to "env:NAME" or a file's path: each is a file below /run/secrets. `gpus` is
    how an engine is asked for NVIDIA's devices: by a device "request", or by their "cdi" names. `python` is the
    interpreter in the image. `host` is the engine's address as in DOCKER_HOST, which is asked where it is not given;
    `shares_files` says whether it sees this machine's folders (it does through a Unix socket). `keep` leaves the
    containers of failed steps for you to look into; `stoker gc` removes them.
    """

    whole_run = ("host", "shares_files")

    network: str | None = attrs.field(default=UNSET, converter=given_text)
    user: str | None = attrs.field(default=UNSET, converter=given_user)
    mounts: tuple[str, ...] | None = attrs.field(default=UNSET, converter=given_mounts)
    secrets: Mapping[str, str] | None = attrs.field(default=UNSET, converter=given_secrets)
    pull: Pull | None = attrs.field(default=UNSET, converter=given_pull)
    gpus: Gpus | None = attrs.field(default=UNSET, converter=given_gpus)
    python: str | None = attrs.field(default=UNSET, converter=given_text)
    host: str | None = attrs.field(default=UNSET, converter=given_text)
    shares_files: bool | None = attrs.field(default=UNSET, converter=given_flag)
    keep: bool | None = attrs.field(default=UNSET, converter=given_flag)
    run_options: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=given_run_options)

    def get(self, name: str, default: Any = None) -> Any:
        """The field's value, or `default` where nothing was asked."""
        value = getattr(self, name)
        return default if value is UNSET or value is None else value
