"""Checkpoints of a flow's tasks: `current.checkpoint` in a step with `@checkpoint`, and `Checkpoint` anywhere else.

Checkpoints belong to a task of a run: its step, its place in a foreach. They lie in the task's folder, which every
attempt gets (`worker.context`), each whole or not at all. The same task of other runs, that of the same step and the
same elements, is found by a folder beside the runs', which has an empty file for each of them:

    RUN/KEY/saved/00000003-best/content/…, about.json        .flows/DIGEST/RUN/KEY

https://github.com/outerbounds/metaflow-checkpoint says what the words mean.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Iterator, Mapping

import attrs

from stoker.core.codec import from_json, parse_object
from stoker.core.errors import NotFound, SettingsError, UsageError
from stoker.store.checkpoints import SAVED, SHARED
from stoker.store.logs import file_name

VARIABLE: Final = "STOKER_FLOW_CHECKPOINT"
"""JSON of a `CheckpointLocation`, by which a program that the task started saves the task's checkpoints, too."""
NAME: Final = "checkpoint"
"""What a checkpoint is called that nobody named."""
SCOPE: Final = "checkpoint:"
"""Begins a tag of a run that says with which other runs it shares checkpoints, in the stead of its namespace."""
_LOG = logging.getLogger(__name__)
_ABOUT: Final = "about.json"
_FORMATS: Final = ("files", "tar")


@attrs.frozen(kw_only=True)
class CheckpointInfo:
    """The record of one checkpoint."""

    key: str
    """Its name among all checkpoints: run, task and folder."""
    name: str
    """The name that `save` was given."""
    url: str
    """The folder with its files."""
    pathspec: str
    """The task that saved it: flow, run, step and task."""
    created_on: str
    """When it was saved: UTC, as ISO 8601."""
    attempt: int = 0
    """The attempt of the task, from 0."""
    version_id: int = 0
    """Counts the checkpoints of the task, from 0."""
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    """JSON that the user keeps with it."""
    latest: bool = True
    """Whether `load` takes it when no checkpoint is named."""
    storage_format: str = "files"
    creation_context: str = "task"
    type: str = "checkpoint"

    def to_dict(self) -> dict[str, Any]:
        """The same as a dict, as `save` and `list` have it."""
        return {name: value for name, value in attrs.asdict(self).items() if name != "latest"}


@attrs.frozen(kw_only=True)
class CheckpointLocation:
    """The folder in which one task keeps its checkpoints."""

    root: str
    """The folder of all checkpoints of the store."""
    run: str
    """The run's id."""
    key: str
    """The task's key in the run; a folder's name."""
    pathspec: str = ""
    """Flow, run, step and task."""
    attempt: int = 0
    """The attempt of the task that runs, from 0."""
    same: str = ""
    """A digest that the same task of all runs that share checkpoints has; empty where none are shared."""
    nodes: int = 1
    """How many nodes save and load checkpoints together."""

    @property
    def folder(self) -> Path:
        """Where its checkpoints are."""
        return Path(self.root, self.run, self.key, SAVED)

    def checkpoints(self) -> list[CheckpointInfo]:
        """The checkpoints of the task, the newest first."""
        return _read_checkpoints(self.folder, f"{self.run}/{self.key}")

    def checkpoints_of_all_runs(self) -> list[CheckpointInfo]:
        """The checkpoints of the same task in all runs, the newest first."""
        checkpoints = []
        for run, key in self._others():
            checkpoints += CheckpointLocation(root=self.root, run=run, key=key).checkpoints()
        return sorted(checkpoints, key=lambda one: (one.created_on, one.version_id), reverse=True)

    def announce(self) -> None:
        """Record the folder where the same task of other runs looks for checkpoints."""
        if self.same:
            marker = Path(self.root, SHARED, self.same, self.run, self.key)
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()

    def _others(self) -> Iterator[tuple[str, str]]:
        folder = Path(self.root, SHARED, self.same)
        if not self.same or not folder.is_dir():
            return
        for run in os.listdir(folder):
            if not Path(self.root, run).is_dir():
                shutil.rmtree(folder / run, ignore_errors=True)  # the run was deleted, and its checkpoints with it
                continue
            for key in os.listdir(folder / run):
                yield run, key


def location_of(
    folder: Path, pathspec: str, *, attempt: int, scope: str, elements: list[str], nodes: int = 1
) -> CheckpointLocation:
    """The location of a task whose checkpoints are in a folder; `elements` are digests of the foreach's around it."""
    flow, _, step, _ = pathspec.split("/", 3)
    same = sha256("\n".join([scope, flow, step, *elements]).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return CheckpointLocation(
        root=str(folder.parent.parent),
        run=folder.parent.name,
        key=folder.name,
        pathspec=pathspec,
        attempt=attempt,
        same=same,
        nodes=nodes,
    )


class Checkpoint:
    """Checkpoints where there is no `current.checkpoint`: in a program that a task started, in a script, a notebook.

    As a context manager, or with `init_dir=True`, it has a `directory` of its own.
    """

    def __init__(self, temp_dir_root: str | None = None, init_dir: bool = False) -> None:
        self._parent = temp_dir_root
        self._directory: str | None = _folder(temp_dir_root) if init_dir else None
        self._location: CheckpointLocation | None = None

    @property
    def directory(self) -> str | None:
        """The folder that `save` keeps and `load` fills where they are given none."""
        return self._directory

    def save(
        self,
        path: str | os.PathLike[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        latest: bool = True,
        name: str = NAME,
        storage_format: str = "files",
    ) -> dict[str, Any]:
        """Keep a file or a folder, `directory` if none is named, as the task's; what is known of it is returned.

        One that is not `latest` is not loaded by itself. `metadata` is JSON.
        """
        return _save(self._task(), Path(self._folder_for(path)), name, metadata or {}, latest, storage_format).to_dict()

    def list(
        self, name: str | None = None, task: Any = None, attempt: int | None = None, full_namespace: bool = False
    ) -> list[dict[str, Any]]:
        """What was kept, the newest first: by this task, or by another, a `Task` or its path.

        `full_namespace` has what the same task of other runs kept, too.
        """
        location = self._task() if task is None else _of_task(task)
        checkpoints = location.checkpoints_of_all_runs() if full_namespace else location.checkpoints()
        matches = [one for one in checkpoints if name in (None, one.name)]
        return [one.to_dict() for one in matches if attempt is None or one.attempt == int(attempt)]

    def load(self, reference: Any = None, path: str | os.PathLike[str] | None = None) -> str:
        """Copy a checkpoint to a folder, `directory` if none is named; the folder is returned.

        Which one, say what `save` or `list` returned, its key, or a name; without any, the newest.
        """
        target = self._folder_for(path)
        _load(self._location or _inherited_location(), reference, target)
        return target

    def __enter__(self) -> Checkpoint:
        if self._directory is None:
            self._directory = _folder(self._parent)
        return self

    def __exit__(self, *failure: object) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._directory = None

    def _folder_for(self, path: str | os.PathLike[str] | None) -> str:
        if path is None and self._directory is None:
            raise UsageError("the checkpoint has no folder", fix="name a path, or write `with Checkpoint() as found:`")
        return str(self._directory if path is None else os.fspath(path))

    def _task(self) -> CheckpointLocation:
        location = self._location or _inherited_location()
        if location is None:
            raise UsageError(
                "no task with @checkpoint runs here, or has started this",
                fix='name one: Checkpoint().list(task="Flow/run/step/task")',
            )
        return location


class CurrentCheckpoint(Checkpoint):
    """The checkpoints of the task that runs. `directory` begins with what the latest one has, if `is_loaded`."""

    def __init__(self, location: CheckpointLocation, policy: str, temp_dir_root: str | None = None) -> None:
        super().__init__(temp_dir_root, init_dir=True)
        self._location: CheckpointLocation = location
        candidates = [] if policy == "none" else list(filter(self._may_begin_with, location.checkpoints()))
        if not candidates and policy == "eager":
            candidates = list(filter(self._may_begin_with, location.checkpoints_of_all_runs()))
        self.info: CheckpointInfo | None = candidates[0] if candidates else None
        if self.info is not None:
            _load(location, self.info.key, str(self.directory))

    def _may_begin_with(self, one: CheckpointInfo) -> bool:
        """Whether a task may begin with it; what another node keeps already, at this attempt, only some would find."""
        of_this_task = one.key.startswith(f"{self._location.run}/{self._location.key}/")
        return one.latest and not (self._location.nodes > 1 and of_this_task and one.attempt == self._location.attempt)

    @property
    def is_loaded(self) -> bool:
        """Whether `directory` has what an earlier attempt kept, or with "eager" an earlier run; `info` says which."""
        return self.info is not None

    @property
    def task_identifier(self) -> str:
        """What the same task of other runs has in common with it."""
        return self._location.same

    def load(self, reference: Any = None, path: str | os.PathLike[str] | None = None) -> str:
        """Copy a checkpoint to a folder; without one to `directory`, which has nothing else then."""
        location = self._location
        checkpoint = _find_checkpoint(location, reference)  # before anything is thrown away
        if path is None:
            shutil.rmtree(str(self.directory), ignore_errors=True)
        return super().load(checkpoint.key, path)

    def close(self) -> None:
        """The task is over: what was not saved is gone."""
        self.__exit__()


def _folder(parent: str | None) -> str:
    if parent is not None:
        os.makedirs(parent, exist_ok=True)
    return tempfile.mkdtemp(prefix="stoker-checkpoint-", dir=parent)


def _inherited_location() -> CheckpointLocation | None:
    text = os.environ.get(VARIABLE)
    return None if not text else CheckpointLocation(**json.loads(text))


def _of_task(task: Any) -> CheckpointLocation:
    """The location of another task: a client's `Task`, or "Flow/run/step/task"."""
    pathspec = task if isinstance(task, str) else str(task.pathspec)
    parts = pathspec.split("/")
    if len(parts) != 4:
        raise UsageError(f"{pathspec!r} is no task", fix='write "Flow/run/step/task"')
    here = _inherited_location()
    if not isinstance(task, str):
        root = str(task._run._store.checkpoints.folder)
    elif here is not None:
        root = here.root
    else:
        from stoker.stacks import home

        root = os.path.join(home(), "checkpoints")
    key = parts[3]
    if not Path(root, file_name(parts[1]), file_name(key)).is_dir():
        key = key.rpartition("[")[0] or key  # a node of a gang, whose checkpoints are those of all its nodes
    return CheckpointLocation(root=root, run=file_name(parts[1]), key=file_name(key), pathspec=pathspec)


def _save(
    location: CheckpointLocation,
    source: Path,
    name: str,
    metadata: Mapping[str, Any],
    latest: bool,
    storage_format: str,
) -> CheckpointInfo:
    if not source.exists():
        raise NotFound(f"there is nothing at {source} to be kept as a checkpoint")
    if not name.replace("-", "_").isidentifier():
        raise UsageError(f"{name!r} cannot be a checkpoint's name", fix='write "epoch_3"')
    if storage_format not in _FORMATS:
        raise UsageError(f"storage_format={storage_format!r}", fix='leave it out: files are kept as they are ("files")')
    try:
        json.dumps(dict(metadata))
    except (TypeError, ValueError) as error:
        raise UsageError(f"metadata of a checkpoint is not JSON: {error}", fix="keep the value in a file") from None
    location.folder.mkdir(parents=True, exist_ok=True)
    number = max((one.version_id for one in location.checkpoints()), default=-1) + 1
    beside = Path(tempfile.mkdtemp(prefix=".new-", dir=location.folder))
    if source.is_dir():
        shutil.copytree(source, beside / "content", symlinks=True)
    else:
        (beside / "content").mkdir()
        shutil.copy2(source, beside / "content" / source.name)
    while True:
        leaf = f"{number:08d}-{name}"
        checkpoint = CheckpointInfo(
            key=f"{location.run}/{location.key}/{leaf}",
            name=name,
            url=str(location.folder / leaf / "content"),
            pathspec=location.pathspec,
            created_on=datetime.now(timezone.utc).isoformat(),
            attempt=location.attempt,
            version_id=number,
            metadata=dict(metadata),
            latest=latest,
        )
        (beside / _ABOUT).write_text(json.dumps(attrs.asdict(checkpoint)), encoding="utf-8")
        try:
            os.rename(beside, location.folder / leaf)
        except OSError:
            if not (location.folder / leaf).exists():
                raise
            number += 1  # another node of a gang was first
            continue
        location.announce()
        return checkpoint


def _read_checkpoints(folder: Path, prefix: str) -> list[CheckpointInfo]:
    """The checkpoints of a task's folder, the newest first."""
    checkpoints = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name.startswith(".") or not (path / _ABOUT).is_file():
            continue
        place = {"key": f"{prefix}/{path.name}", "url": str(path / "content")}
        try:
            document = parse_object((path / _ABOUT).read_bytes())
            checkpoints.append(from_json(CheckpointInfo, {**document, **place}, strict=False))
        except (OSError, SettingsError) as error:
            _LOG.warning("the checkpoint %s is left out: its %s cannot be read: %s", path, _ABOUT, error)
    return sorted(checkpoints, key=lambda one: (one.version_id, one.created_on), reverse=True)


def _find_checkpoint(location: CheckpointLocation | None, reference: Any) -> CheckpointInfo:
    """The checkpoint that a reference names; the newest where there is no reference."""
    if isinstance(reference, CheckpointInfo):
        reference = reference.key
    if isinstance(reference, Mapping):
        reference = reference.get("key", reference)
    if isinstance(reference, str) and reference.count("/") == 2:
        run, key, _ = reference.split("/")
        root = location.root if location is not None else _of_task(f"flow/{run}/step/{key}").root
        matches = [one for one in CheckpointLocation(root=root, run=run, key=key).checkpoints() if one.key == reference]
    elif reference is None or isinstance(reference, str):
        checkpoints = [] if location is None else location.checkpoints()
        matches = [one for one in checkpoints if reference in (None, one.name)]
    else:
        raise UsageError(f"{reference!r} is no checkpoint", fix="hand over what save() or list() returned, or its key")
    if not matches:
        raise NotFound(f"there is no checkpoint {reference!r}" if reference else "the task has no checkpoint")
    return matches[0]


def _load(location: CheckpointLocation | None, reference: Any, target: str) -> None:
    shutil.copytree(_find_checkpoint(location, reference).url, target, dirs_exist_ok=True, symlinks=True)
