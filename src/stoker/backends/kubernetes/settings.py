"""The words of `@kubernetes` beside resources, checked, for a backend to render.

They are Metaflow's (https://docs.metaflow.org/api/step-decorators/kubernetes). A field that is not given is `UNSET`, so
that a default never beats what somebody wrote.
"""

from __future__ import annotations

from typing import Any, Final, Iterable, Mapping

import attrs

from stoker.core.errors import SettingsError, nearest
from stoker.core.units import UNSET, parse_count, parse_mapping, parse_text, strict

QOS: Final = ("Burstable", "Guaranteed")
PULL_POLICIES: Final = ("IfNotPresent", "Always", "Never")
"""https://kubernetes.io/docs/concepts/containers/images/#image-pull-policy"""
_TOLERATION: Final = ("key", "operator", "value", "effect", "tolerationSeconds", "toleration_seconds")
"""https://kubernetes.io/docs/reference/generated/kubernetes-api/v1.30/#toleration-v1-core"""


def parse_flag_word(value: Any) -> Any:
    """A yes or a no, also as the command line writes it."""
    words = {"true": True, "false": False, "1": True, "0": False}
    if value is UNSET or value is None or isinstance(value, bool):
        return value
    if str(value).lower() in words:
        return words[str(value).lower()]
    raise SettingsError(f"{value!r} is neither true nor false", fix="write true or false")


def parse_listed_texts(value: Any) -> Any:
    """Texts, or one text with commas."""
    if value is UNSET or value is None:
        return value
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    items = list(value) if isinstance(value, Iterable) else [None]
    if not all(isinstance(item, str) for item in items):
        raise SettingsError(f"{value!r} is not a list of texts", fix='write ["a", "b"]')
    return tuple(items)


def parse_pairs(value: Any) -> Any:
    """A mapping of texts, or "key=value,key=value"."""
    if value is UNSET or value is None:
        return value
    if isinstance(value, str):
        parts = [part.partition("=") for part in value.split(",") if part.strip()]
        if not all(equals for _, equals, _ in parts):
            raise SettingsError(f"{value!r} is not key=value", fix='write {"pool": "gpu"} or "pool=gpu"')
        return {key.strip(): text.strip() for key, _, text in parts}
    if not isinstance(value, Mapping):
        raise SettingsError(f"{value!r} does not map names to texts", fix='write {"pool": "gpu"}')
    return {str(key): str(text) for key, text in value.items()}


def parse_qos(value: Any) -> Any:
    """A class of service."""
    return _one_of(value, QOS)


def parse_policy(value: Any) -> Any:
    """When an image is pulled."""
    return _one_of(value, PULL_POLICIES)


def _one_of(value: Any, known: tuple[str, ...]) -> Any:
    if value is UNSET or value is None or value in known:
        return value
    raise SettingsError(f"{value!r} is not one of {', '.join(known)}{nearest(str(value), known)}")


def _tolerations(value: Any) -> Any:
    if value is UNSET or value is None:
        return value
    if isinstance(value, (str, Mapping)) or not isinstance(value, Iterable):
        raise SettingsError(f"{value!r} is not a list of tolerations", fix='write [{"key": …, "operator": "Exists"}]')
    found = []
    for entry in value:
        if not isinstance(entry, Mapping):
            raise SettingsError(f"{entry!r} is not a toleration", fix='write {"key": …, "operator": "Exists"}')
        unknown = [name for name in entry if name not in _TOLERATION]
        if unknown:
            raise SettingsError(f"a toleration has no '{unknown[0]}'{nearest(str(unknown[0]), _TOLERATION)}")
        found.append(dict(entry))
    return tuple(found)


@strict
@attrs.frozen(kw_only=True)
class KubernetesSettings:
    """How the pod of a step is to be; the fields' own words are those of a PodSpec."""

    image: str | None = attrs.field(default=UNSET, converter=parse_text)
    """The image of the container."""
    image_pull_policy: str | None = attrs.field(default=UNSET, converter=parse_policy)
    """`imagePullPolicy`."""
    image_pull_secrets: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_listed_texts)
    """`imagePullSecrets`, by name."""
    service_account: str | None = attrs.field(default=UNSET, converter=parse_text)
    """`serviceAccountName`."""
    secrets: tuple[str, ...] | None = attrs.field(default=UNSET, converter=parse_listed_texts)
    """Secrets whose entries become environment variables (`envFrom`)."""
    node_selector: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_pairs)
    """`nodeSelector`."""
    namespace: str | None = attrs.field(default=UNSET, converter=parse_text)
    """The namespace of the job."""
    tolerations: tuple[Mapping[str, Any], ...] | None = attrs.field(default=UNSET, converter=_tolerations)
    """`tolerations`."""
    labels: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_pairs)
    """Labels of the pod."""
    annotations: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_pairs)
    """Annotations of the pod."""
    use_tmpfs: bool | None = attrs.field(default=UNSET, converter=parse_flag_word)
    """Mount a file system in memory (`emptyDir` with `medium: Memory`)."""
    tmpfs_tempdir: bool | None = attrs.field(default=UNSET, converter=parse_flag_word)
    """Make it the folder of temporary files."""
    tmpfs_size: int | None = attrs.field(default=UNSET, converter=parse_count)
    """Its size in MiB."""
    tmpfs_path: str | None = attrs.field(default=UNSET, converter=parse_text)
    """Where it is mounted."""
    persistent_volume_claims: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_pairs)
    """Claims by name, and where each is mounted."""
    port: int | None = attrs.field(default=UNSET, converter=parse_count)
    """`containerPort`."""
    compute_pool: str | None = attrs.field(default=UNSET, converter=parse_text)
    """The pool of nodes of that name."""
    executable: str | None = attrs.field(default=UNSET, converter=parse_text)
    """The interpreter in the image."""
    hostname_resolution_timeout: int | None = attrs.field(default=UNSET, converter=parse_count)
    """Seconds for which the nodes of a gang wait for each other's names."""
    qos: str | None = attrs.field(default=UNSET, converter=parse_qos)
    """The class of service: "Burstable" or "Guaranteed"."""
    extended_resources: Mapping[str, str] | None = attrs.field(default=UNSET, converter=parse_pairs)
    """Extended resources and how many of each."""
    security_context: Mapping[str, Any] | None = attrs.field(default=UNSET, converter=parse_mapping)
    """`securityContext`."""
