"""The checks that the API server makes of new objects that are neither pods nor Jobs.

https://github.com/kubernetes/kubernetes/tree/master/pkg/apis (core, rbac, scheduling: validation/validation.go)
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator

from tests.kubernetes.server.failures import Cause, Refused, bad_request
from tests.kubernetes.server.objects import (
    CLAIMS,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIG_MAPS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICES,
    Object,
    Resource,
)

LARGEST_DATA = 1024 * 1024
"""Bytes of the content of a secret or a config map at most."""
_KEY = r"[-._a-zA-Z0-9]+"
_KEY_WORDS = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or "
    f"'key-name', regex used for validation is '{_KEY}')"
)
_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")


def check_base64(resource: Resource, body: Object) -> None:
    """Refuse content that says that it is encoded and is not.

    Raises:
        Refused: 400.
    """
    field = {"Secret": "data", "ConfigMap": "binaryData"}.get(resource.kind, "")
    for value in (body.get(field) or {}).values() if field else ():
        try:
            base64.b64decode(value or "", validate=True)
        except (binascii.Error, ValueError):
            raise _no_base64(resource, value) from None


def _no_base64(resource: Resource, value: str) -> Refused:
    place = next((at for at, each in enumerate(value) if not re.match(r"[A-Za-z0-9+/]", each)), len(value))
    kind = resource.kind
    return bad_request(
        f'{kind} in version "v1" cannot be handled as a {kind}: illegal base64 data at input byte {place}'
    )


def kind_causes(resource: Resource, object: Object) -> list[Cause]:
    """What is wrong with an object of a kind, beside its metadata."""
    check = _CHECKS.get(resource)
    return list(check(object)) if check is not None else []


def _config_map(object: Object) -> Iterator[Cause]:
    data, binary = object.get("data") or {}, object.get("binaryData") or {}
    for field, content in (("data", data), ("binaryData", binary)):
        yield from _key_causes(content, field)
    for key in data:
        if key in binary:
            yield Cause.invalid(f"data[{key}]", f'"{key}"', "duplicate of key present in binaryData")
    size = sum(len(value.encode()) for value in data.values())
    if size + sum(len(base64.b64decode(value)) for value in binary.values()) > LARGEST_DATA:
        yield Cause.too_long("[]", LARGEST_DATA)


def _secret(object: Object) -> Iterator[Cause]:
    data = object.get("data") or {}
    yield from _key_causes(data | (object.get("stringData") or {}), "data")
    size = sum(len(base64.b64decode(value)) for value in data.values())
    if size + sum(len(value.encode()) for value in (object.get("stringData") or {}).values()) > LARGEST_DATA:
        yield Cause.too_long("data", LARGEST_DATA)
    kind = object.get("type", "Opaque")
    needed = {"kubernetes.io/dockerconfigjson": (".dockerconfigjson",), "kubernetes.io/tls": ("tls.crt", "tls.key")}
    for key in needed.get(kind, ()):
        if key not in data | (object.get("stringData") or {}):
            yield Cause.required(f"data[{key}]")


def _key_causes(content: Object, field: str) -> Iterator[Cause]:
    for key in content:
        if len(key) > 253:
            yield Cause.invalid(f"{field}[{key}]", f'"{key}"', "must be no more than 253 bytes")
        if not re.fullmatch(_KEY, key):
            yield Cause.invalid(f"{field}[{key}]", f'"{key}"', _KEY_WORDS)


def _service(object: Object) -> Iterator[Cause]:
    spec = object.get("spec") or {}
    kind, ports = spec.get("type", "ClusterIP"), spec.get("ports") or []
    if kind not in ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"):
        yield Cause.unsupported("spec.type", kind, ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"])
    if not ports and spec.get("clusterIP") != "None" and kind != "ExternalName":
        yield Cause.required("spec.ports")
    names = []
    for index, port in enumerate(ports):
        path, name = f"spec.ports[{index}]", port.get("name", "")
        if len(ports) > 1 and not name:
            yield Cause.required(f"{path}.name")
        elif name and name in names:
            yield Cause.duplicate(f"{path}.name", name)
        names.append(name)
        if not 1 <= port.get("port", 0) <= 65535:
            yield Cause.invalid(f"{path}.port", str(port.get("port", 0)), "must be between 1 and 65535, inclusive")


def _claim(object: Object) -> Iterator[Cause]:
    spec = object.get("spec") or {}
    modes = spec.get("accessModes") or []
    if not modes:
        yield Cause.required("spec.accessModes", "at least 1 access mode is required")
    for mode in modes:
        if mode not in _MODES:
            yield Cause.unsupported("spec.accessModes", mode, _MODES)
    if "storage" not in ((spec.get("resources") or {}).get("requests") or {}):
        yield Cause.required("spec.resources[storage]")


def _role(object: Object) -> Iterator[Cause]:
    for index, rule in enumerate(object.get("rules") or []):
        path = f"rules[{index}]"
        if not rule.get("verbs"):
            yield Cause.required(f"{path}.verbs", "verbs must contain at least one value")
        if rule.get("nonResourceURLs"):
            if object["kind"] == "Role":
                why = "namespaced rules cannot apply to non-resource URLs"
                yield Cause.invalid(f"{path}.nonResourceURLs", str(rule["nonResourceURLs"]), why)
            continue
        if not rule.get("apiGroups"):
            yield Cause.required(f"{path}.apiGroups", "resource rules must supply at least one api group")
        if not rule.get("resources"):
            yield Cause.required(f"{path}.resources", "resource rules must supply at least one resource")


def _binding(object: Object) -> Iterator[Cause]:
    reference = object.get("roleRef") or {}
    kinds = ["ClusterRole", "Role"] if object["kind"] == "RoleBinding" else ["ClusterRole"]
    if reference.get("kind") not in kinds:
        yield Cause.unsupported("roleRef.kind", str(reference.get("kind", "")), kinds)
    if not reference.get("name"):
        yield Cause.required("roleRef.name")
    for index, subject in enumerate(object.get("subjects") or []):
        path, kind = f"subjects[{index}]", subject.get("kind", "")
        if not subject.get("name"):
            yield Cause.required(f"{path}.name")
        if kind not in ("ServiceAccount", "User", "Group"):
            yield Cause.unsupported(f"{path}.kind", kind, ["ServiceAccount", "User", "Group"])
        elif kind == "ServiceAccount" and not subject.get("namespace"):
            yield Cause.required(f"{path}.namespace")


_CHECKS: dict[Resource, Callable[[Object], Iterator[Cause]]] = {
    CONFIG_MAPS: _config_map,
    SECRETS: _secret,
    SERVICES: _service,
    CLAIMS: _claim,
    ROLES: _role,
    CLUSTER_ROLES: _role,
    ROLE_BINDINGS: _binding,
    CLUSTER_ROLE_BINDINGS: _binding,
}
