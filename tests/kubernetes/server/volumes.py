"""A pod's volumes as folders, its environment, and the paths in its command rewritten to where those folders are.

There is no mount namespace: what a container would see at a mount path lies in a folder below the pod's own, and each
mount path in the command, the arguments and the environment's values is replaced by that folder, as text.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path

from attrs import define, frozen
from tests.kubernetes.server.access import Access
from tests.kubernetes.server.objects import CLAIMS, CONFIG_MAPS, SECRETS, Object, Resource
from tests.kubernetes.server.world import World


class NotMounted(Exception):
    """A volume cannot be made yet."""


class NotConfigured(Exception):
    """The environment of a container cannot be made yet."""


@frozen
class Paths:
    """Where a container's mount paths are on this machine."""

    places: Mapping[str, str]
    """Folder or file by mount path."""

    def rewritten(self, text: str) -> str:
        """The text with each mount path replaced; a path that only begins alike stays."""
        if not self.places:
            return text
        longest_first = sorted(self.places, key=len, reverse=True)
        expression = rf"(?<![\w./-])({'|'.join(re.escape(path) for path in longest_first)})(?![\w.-])"
        return re.sub(expression, lambda match: self.places[match[1]], text)


@define(eq=False)
class Volumes:
    """The volumes of one pod."""

    world: World
    access: Access
    pod: Object
    folder: Path
    """The pod's own folder."""
    claims: Path
    """Below which each claim has its folder."""

    def make(self) -> None:
        """Make the folder of each volume.

        Raises:
            NotMounted: Something that a volume refers to is not there.
        """
        for volume in self.pod["spec"].get("volumes", []):
            try:
                self._make(volume)
            except _Missing as missing:
                raise NotMounted(f'MountVolume.SetUp failed for volume "{volume["name"]}" : {missing}') from None

    def paths(self, container: Object, status: Object, own: Path) -> Paths:
        """Where the container finds its volumes.

        Args:
            container: Its specification.
            status: The pod's status, for `subPathExpr`.
            own: The container's own folder.
        """
        places = {}
        for mount in container.get("volumeMounts", []):
            volume = next(each for each in self.pod["spec"]["volumes"] if each["name"] == mount["name"])
            place = self._place(volume)
            places[mount["mountPath"].rstrip("/") or "/"] = str(place)
        message = container["terminationMessagePath"]
        if message not in places:
            places[message] = str(own / "termination-log")
        return Paths(places)

    def usage(self, name: str) -> int:
        """How many bytes are in an emptyDir."""
        return size_of(self.folder / "volumes" / name)

    def environment(self, container: Object, status: Object) -> dict[str, str]:
        """The variables of a container's specification.

        Raises:
            NotConfigured: A secret or a config map that they refer to is not there.
        """
        values: dict[str, str] = {}
        try:
            for source in container.get("envFrom", []):
                kind, resource = ("configMapRef", CONFIG_MAPS) if "configMapRef" in source else ("secretRef", SECRETS)
                reference = source[kind]
                data = self._data(resource, reference["name"], optional=reference.get("optional", False))
                for key, content in data.items():
                    values[source.get("prefix", "") + key] = content.decode()
            for variable in container.get("env", []):
                if "valueFrom" in variable:
                    value = self._value(variable["valueFrom"], status)
                    if value is not None:
                        values[variable["name"]] = value
                else:
                    values[variable["name"]] = expanded(variable.get("value", ""), values)
        except _Missing as missing:
            raise NotConfigured(str(missing)) from None
        return values

    def _value(self, source: Object, status: Object) -> str | None:
        if "fieldRef" in source:
            return self._field(source["fieldRef"]["fieldPath"], status)
        kind, resource, shown = (
            ("secretKeyRef", SECRETS, "Secret")
            if "secretKeyRef" in source
            else ("configMapKeyRef", CONFIG_MAPS, "ConfigMap")
        )
        reference = source[kind]
        optional = reference.get("optional", False)
        data = self._data(resource, reference["name"], optional=optional)
        if reference["key"] not in data:
            if optional:
                return None
            place = f"{self.pod['metadata']['namespace']}/{reference['name']}"
            raise _Missing(f"couldn't find key {reference['key']} in {shown} {place}")
        return data[reference["key"]].decode()

    def _field(self, path: str, status: Object) -> str:
        metadata, spec = self.pod["metadata"], self.pod["spec"]
        if match := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
            return str((metadata.get(match[1]) or {}).get(match[2], ""))
        values = {
            "metadata.name": metadata["name"],
            "metadata.namespace": metadata["namespace"],
            "metadata.uid": metadata["uid"],
            "spec.nodeName": spec.get("nodeName", ""),
            "spec.serviceAccountName": spec["serviceAccountName"],
            "status.podIP": status.get("podIP", ""),
            "status.podIPs": status.get("podIP", ""),
            "status.hostIP": status.get("hostIP", ""),
            "status.hostIPs": status.get("hostIP", ""),
        }
        return str(values[path])

    def _data(self, resource: Resource, name: str, *, optional: bool) -> dict[str, bytes]:
        object = self.world.store.get(resource, self.pod["metadata"]["namespace"], name)
        if object is None:
            if optional:
                return {}
            raise _Missing(f'{resource.kind.lower()} "{name}" not found')
        return dict(_contents(resource, object))

    def _place(self, volume: Object) -> Path:
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        if "persistentVolumeClaim" in volume:
            namespace, name = self.pod["metadata"]["namespace"], volume["persistentVolumeClaim"]["claimName"]
            return self.claims / str(namespace) / str(name)
        return self.folder / "volumes" / str(volume["name"])

    def _make(self, volume: Object) -> None:
        place = self._place(volume)
        if "hostPath" in volume:
            self._check_host_path(volume["hostPath"], place)
            return
        if "persistentVolumeClaim" in volume:
            name = volume["persistentVolumeClaim"]["claimName"]
            if self.world.store.get(CLAIMS, self.pod["metadata"]["namespace"], name) is None:
                raise _Missing(f'persistentvolumeclaim "{name}" not found')
        files: dict[str, bytes] = {}
        if "configMap" in volume:
            files = self._files(CONFIG_MAPS, volume["configMap"], volume["configMap"]["name"])
        elif "secret" in volume:
            files = self._files(SECRETS, volume["secret"], volume["secret"]["secretName"])
        for source in volume.get("projected", {}).get("sources", []):
            files |= self._projected(source)
        place.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            file = place / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)

    def _check_host_path(self, source: Object, place: Path) -> None:
        kind = source.get("type", "")
        if kind == "DirectoryOrCreate":
            place.mkdir(parents=True, exist_ok=True)
        elif kind == "Directory" and not place.is_dir():
            raise _Missing(f"hostPath type check failed: {place} is not a directory")
        elif not kind and not place.exists():
            # The container runtime makes the missing source of a bind mount.
            place.mkdir(parents=True)

    def _projected(self, source: Object) -> dict[str, bytes]:
        if "serviceAccountToken" in source:
            metadata, spec = self.pod["metadata"], self.pod["spec"]
            token = self.access.account_token(metadata["namespace"], spec["serviceAccountName"])
            return {source["serviceAccountToken"]["path"]: token.encode()}
        if "downwardAPI" in source:
            return self._downward(source["downwardAPI"])
        kind, resource = ("configMap", CONFIG_MAPS) if "configMap" in source else ("secret", SECRETS)
        return self._files(resource, source[kind], source[kind]["name"])

    def _files(self, resource: Resource, source: Object, name: str) -> dict[str, bytes]:
        data = self._data(resource, name, optional=source.get("optional", False))
        if "items" not in source:
            return data
        for item in source["items"]:
            if item["key"] not in data and not source.get("optional", False):
                raise _Missing(f"references non-existent {resource.kind.lower()} key: {item['key']}")
        return {item["path"]: data[item["key"]] for item in source["items"] if item["key"] in data}

    def _downward(self, source: Object) -> dict[str, bytes]:
        files = {}
        for item in source.get("items", []):
            path = item["fieldRef"]["fieldPath"]
            files[item["path"]] = self._field(path, self.pod["status"]).encode()
        return files

    def remove(self) -> None:
        """Remove the pod's own folder: a thread does it, since a pod may have unpacked a thousand files, and the server
        answers one request at a time."""
        aside = self.folder.with_name(f".{self.folder.name}-{os.urandom(4).hex()}")
        with contextlib.suppress(OSError):
            self.folder.rename(aside)
            threading.Thread(target=shutil.rmtree, args=(aside, True), daemon=True).start()


def _contents(resource: Resource, object: Object) -> Mapping[str, bytes]:
    """What is in a secret or a config map; hundreds of pods mount the same."""
    key = object["metadata"]["uid"], object["metadata"]["resourceVersion"]
    if key not in _CONTENTS:
        plain = {} if resource is SECRETS else object.get("data") or {}
        coded = object.get("data" if resource is SECRETS else "binaryData") or {}
        if len(_CONTENTS) >= _MOST_CONTENTS:
            _CONTENTS.clear()
        _CONTENTS[key] = {key: value.encode() for key, value in plain.items()} | {
            key: base64.b64decode(value) for key, value in coded.items()
        }
    return _CONTENTS[key]


_CONTENTS: dict[tuple[str, str], Mapping[str, bytes]] = {}
"""By uid and resourceVersion."""
_MOST_CONTENTS = 64


class _Missing(Exception):
    """What is not there, in the kubelet's words."""


def expanded(text: str, values: Mapping[str, str]) -> str:
    """The text with $(NAME) replaced where NAME is known, and $$ by one $."""

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return values.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]+)\)", replace, text)


def size_of(folder: Path) -> int:
    """How many bytes the files below a folder take."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:
                continue
    return total
