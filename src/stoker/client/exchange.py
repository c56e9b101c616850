"""A version of a model elsewhere: in a folder for other tools, or as one file for another store.

The file has its artifacts, what made them, and who promoted it. It is a zip that anything unpacks:
`stoker-model.json`, and below `blobs/` the bytes of the artifacts by their digests, not compressed. Runs come with
their plans and what those need, steps, attempts, receipts and metrics; outputs that are not among the model's artifacts
come as far as their values are small, so that a store that takes the file lacks nothing. Logs and checkpoints stay.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Iterator, Mapping

from stoker.client.names import ArtifactVersion, ModelVersion
from stoker.core.artifact import StoredArtifact, from_wire
from stoker.core.errors import NotFound, StoreError, UsageError
from stoker.core.registry import MODEL, Model, parse_reference
from stoker.store import artifacts
from stoker.store.check import blobs_of_plan
from stoker.store.registry import ArtifactRow

if TYPE_CHECKING:
    from stoker.client.client import Client
    from stoker.store.store import Store

SUFFIXES: Final[Mapping[str, str]] = {
    "json": ".json",
    "str": ".txt",
    "bytes": ".bin",
    "numpy": ".npy",
    "torch": ".pt",
    "pandas": ".arrow",
    "polars": ".arrow",
    "pyarrow": ".arrow",
    "pickle": ".pkl",
    "cloudpickle": ".pkl",
}
"""Serializer → the ending of a file with what it writes."""
VERSION: Final = 1
_MANIFEST: Final = "stoker-model.json"
_BLOBS: Final = "blobs/"
_COPY: Final = 1 << 20
"""Bytes that are copied at a time."""


def pull(client: Client, which: str, folder: Path, *, force: bool = False) -> list[Path]:
    """Write a version of an artifact, or the artifacts of a version of a model, into a folder; the paths.

    A file keeps its name and a folder its layout, as an artifact's of its own: an artifact's folder becomes `folder`
    itself, and in a model's each artifact has its name. Other values are written as they are stored. `stoker.json`
    says what they are, unless that is where an artifact is. Raises `UsageError` where something is in the way, unless
    `force`.
    """
    if which.startswith(MODEL):
        model = client.model(*parse_reference(which, MODEL))
        parts = [(part, folder / _folder_of(part.name)) for part in model.artifacts.values()]
        document: dict[str, Any] = {**model.as_dict(), "parts": [part.as_dict() for part, _ in parts]}
    else:
        one = client.artifact(*parse_reference(which))
        parts, document = [(one, folder)], one.as_dict()
    taken = [entry for _, target in parts if target.is_dir() for entry in target.iterdir()]
    if taken and not force:
        raise UsageError(f"{taken[0]} is in the way", fix="choose an empty folder, or --force to write over it")
    about = folder / "stoker.json"
    try:
        if about.is_file():  # of what was pulled before
            about.unlink()
        written = [_write(part, target) for part, target in parts]
        folder.mkdir(parents=True, exist_ok=True)
        if not about.exists():
            about.write_text(json.dumps(document, indent=2, ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error.strerror}", fix="choose another folder") from error
    return written


def _write(part: ArtifactVersion, target: Path) -> Path:
    target.mkdir(parents=True, exist_ok=True)
    if part.serializer == "path":
        source = Path(part.load())
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)
            return target
        shutil.copy2(source, target / source.name)
        return target / source.name
    file = target / f"{_folder_of(part.name).name}{SUFFIXES.get(part.serializer, '.bin')}"
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with part.open() as stored, partial.open("wb") as copy:
            shutil.copyfileobj(stored, copy)
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)
    return file


def _folder_of(name: str) -> Path:
    """A name as a path below a folder: what would lead out of it is replaced."""
    parts = ["_" if part in ("", ".", "..") else part for part in name.replace("\\", "/").split("/")]
    return Path(*parts)


def export_model(store: Store, version: ModelVersion, path: Path) -> int:
    """Write a version of a model into a file; returns its bytes. The file is whole or absent."""
    parts = [ArtifactVersion(store, row) for row in store.registry.parts(version.name, version.version)]
    runs = sorted({*version.run_ids, *filter(None, (part.run_id for part in parts))})
    blobs = {one.digest for part in parts for one in _blobs_of(part.stored, store)}
    plans = [text for run in runs if (text := store.records.plan(run))]
    blobs |= {digest for text in plans for digest in blobs_of_plan(text) if store.blobs.exists(digest)}
    manifest = {
        "version": VERSION,
        "model": {**_described(version), "label": version.label, "description": version.description}
        | {"metrics": version.metrics},
        "stage": version.stage,
        "artifacts": [
            {**_described(part), "wire": part.stored.wire(), "place": [part.run_id, part.step, part.output]}
            for part in parts
        ],
        "runs": [store.records.rows_of_run(run, blobs) for run in runs],
        "history": [
            {"stage": one.stage, "before": one.before, "time": one.time, "author": one.author, "reason": one.reason}
            for one in version.history
            if one.version == version.version
        ],
    }
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(partial, "w", allowZip64=True) as archive:
            archive.writestr(_MANIFEST, json.dumps(manifest, indent=1), zipfile.ZIP_DEFLATED)
            for digest in sorted(blobs):
                info = zipfile.ZipInfo(f"{_BLOBS}{digest}")
                with store.blobs.open(digest) as source, archive.open(info, "w", force_zip64=True) as target:
                    shutil.copyfileobj(source, target, _COPY)
        size = os.stat(partial).st_size
        os.replace(partial, path)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}", fix="choose another place") from error
    finally:
        partial.unlink(missing_ok=True)
    return size


def import_model(store: Store, path: Path, *, name: str = "") -> ModelVersion:
    """Take a version of a model from a file; it is the next version of its name here, with the file's artifacts.

    The metrics of the runs that made it are its metadata here. An artifact whose name has its value here already stays
    the version that it is. Raises `UsageError` for another file, and `StoreError` for one whose bytes do not have their
    digests; nothing is registered then.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = _manifest_of(archive, path)
            for blob in archive.namelist():
                if blob.startswith(_BLOBS):
                    _take_blob(store, archive, blob, path)
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}", fix="stoker models export NAME@VERSION FILE writes one") from None
    except (zipfile.BadZipFile, OSError) as error:
        raise UsageError(f"{path} is no exported model: {error}", fix="export it again") from error
    try:
        return _registered(store, manifest, name)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UsageError(f"{path} is no exported model: {error!r} in {_MANIFEST}", fix="export it again") from error


def _registered(store: Store, manifest: Mapping[str, Any], name: str) -> ModelVersion:
    model = manifest["model"]
    given = Model(
        name or model["name"],
        description=model["description"],
        tags=model["tags"],
        metadata={
            **model["metrics"],
            **model["metadata"],
            "imported.from": f"{model['name']}@{model['version']} by {model['author']}",
        },
    )
    # Read whole before anything is written.
    runs = [run["runs"][0]["id"] for run in manifest["runs"]]
    wanted = [(from_wire(part["wire"]), part, _place_of(part)) for part in manifest["artifacts"]]
    for run in manifest["runs"]:
        store.records.add_run_rows(run)
    parts = [_artifact(store, *one) for one in wanted]
    version = store.registry.create_model(given)
    for part in parts:
        store.registry.link(version.name, version.version, part.name, part.version)
    for id in runs:
        store.registry.note_run(version.name, version.version, id)
    return ModelVersion(store, version)


def _described(one: ArtifactVersion | ModelVersion) -> dict[str, Any]:
    return {
        "name": one.name,
        "version": one.version,
        "created": one._created,
        "author": one.author,
        "tags": list(one.tags),
        "metadata": one.metadata,
    }


def _blobs_of(artifact: StoredArtifact, store: Store) -> Iterator[StoredArtifact]:
    """The values of an artifact that are blobs: its own bytes, and those of a list's elements."""
    if artifact.inline is None:
        yield artifact
    if artifact.serializer == "list":
        for part in artifacts.each_item(artifact, store.blobs):
            yield from _blobs_of(part, store)


def _manifest_of(archive: zipfile.ZipFile, path: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(archive.read(_MANIFEST))
        known = manifest["version"] == VERSION
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is no exported model", fix="stoker models export NAME@VERSION FILE") from error
    if not known:
        raise UsageError(
            f"{path} has version {manifest['version']} of the format; this Stoker reads version {VERSION}",
            fix="import it with the version of Stoker that wrote it, or export it again",
        )
    return manifest


def _take_blob(store: Store, archive: zipfile.ZipFile, entry: str, path: Path) -> None:
    name = entry.removeprefix(_BLOBS)
    with archive.open(entry) as source, store.blobs.writer(expected=name) as target:
        shutil.copyfileobj(source, target, _COPY)
    if target.digest != name:
        raise StoreError(f"{path} is damaged: {entry} has the digest {target.digest}", fix="export or copy it again")


def _place_of(part: Mapping[str, Any]) -> tuple[str, str, str]:
    run, step, output = part["place"]
    return str(run), str(step), str(output)


def _artifact(
    store: Store, artifact: StoredArtifact, part: Mapping[str, Any], place: tuple[str, str, str]
) -> ArtifactRow:
    """The version of an artifact that has the value of an imported one."""
    known = [row for row in store.registry.named(artifact.digest) if row.name == part["name"]]
    if known:
        return known[-1]
    return store.registry.save(part["name"], artifact, tags=part["tags"], metadata=part["metadata"], place=place)
