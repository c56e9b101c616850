"""What a run takes over from the run that it repeats: which steps run again, the results of all others, and its code.

A snapshot has the files of the user's own that the program had imported when it was planned, by path and digest. Their
texts are in the database, each once. A run whose code was sent along as a package has more: all files of the package.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
from pathlib import Path
from typing import Callable, Final, Mapping, Protocol, Sequence

import attrs

from stoker.core.errors import StoreError, UsageError, nearest
from stoker.core.plan import Plan, RunOrigin, StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.status import STEP_GOOD
from stoker.core.usercode import is_user_file
from stoker.engine.recorder import Recorder
from stoker.store.records import Records
from stoker.store.rows import StepRow
from stoker.store.store import Store

_UNFINISHED: Final = frozenset({"failed", "cancelled"})


class _Placed(Protocol):
    """A step of a plan, or a step's row."""

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def position(self) -> int: ...


Selection = Callable[[_Placed], bool]


def check(origin: RunOrigin, plan: Plan, records: Records) -> None:
    """`UsageError` where the step from which a run is repeated is not among its steps."""
    if origin.start:
        selection(origin.start, plan, records.steps(origin.run))


def load(plan: Plan, records: Records, recorder: Recorder) -> Callable[[StepPlan], bool] | None:
    """Give the recorder the results that a run takes from the one that it repeats.

    Returns whether a step runs although the cache has its result; None where every step may come from the cache.
    """
    origin = plan.origin
    if origin is None or not origin.reuse:
        return None
    rows = records.all_steps(origin.run)
    runs_again = selection(origin.start, plan, rows) if origin.start else _nothing
    reused = [row for row in rows if row.status in STEP_GOOD and row.count is None and not runs_again(row)]
    # Every task of a flow is given the place of its step in the flow, which an edit moves.
    recorder.load_origin(reused, same_inputs=not _is_flow(plan))
    return runs_again if origin.start else None


def copy_checkpoints(store: Store, origin: str, run: str) -> None:
    """Copy the checkpoints of the steps that a run began and did not finish, so that another run goes on from them."""
    for row in store.records.all_steps(origin):
        if row.status in _UNFINISHED and row.count is None:
            store.checkpoints.copy(origin, run, row.key)


def selection(start: str, plan: Plan, rows: list[StepRow]) -> Selection:
    """Which steps run again: `start`, a step's name or key, and all that come after it."""
    if not plan.steps:
        # Which steps depend on which, only the body of a dynamic pipeline knows: it calls them in their order.
        positions = [row.position for row in rows if start in (row.name, row.key)]
        if not positions:
            raise _no_such_step(start, plan, [row.key for row in rows if not row.parent])
        first = min(positions)
        return lambda step: step.position >= first
    first_keys = {step.key for step in plan.steps if step.key == start} or {
        step.key for step in plan.steps if step.name == start
    }
    if not first_keys:
        raise _no_such_step(start, plan, [step.key for step in plan.steps])
    keys = _following(plan, first_keys)
    if _is_flow(plan):
        return lambda step: step.name in keys
    return lambda step: step.key.partition("[")[0] in keys


def _following(plan: Plan, keys: set[str]) -> set[str]:
    """Keys of steps, and of all steps that come after them."""
    before = {step.key: set(step.needs) for step in plan.steps}
    following = set(keys)
    while True:
        more = {key for key, earlier in before.items() if key not in following and earlier & following}
        if not more:
            return following
        following |= more


def _is_flow(plan: Plan) -> bool:
    """Whether the plan's steps are templates of a flow's tasks."""
    return plan.dynamic and bool(plan.steps)


def _nothing(step: _Placed) -> bool:
    return False


def _no_such_step(start: str, plan: Plan, keys: list[str]) -> UsageError:
    whole = start.partition("[")[0]
    if whole != start and whole in keys:
        return UsageError(f"'{start}' is one element of '{whole}', which runs again as a whole", fix=f"name {whole}")
    return UsageError(f"'{plan.pipeline}' has no step '{start}'{nearest(start, keys)}")


LIMIT: Final = 2**20
"""Bytes of the largest file that is kept: a larger one is generated, and would grow the database with each change."""
_FOLDER: Final = "original-code"


def take(records: Records) -> dict[str, str]:
    """Keep the files of the user's own that this process has imported; path → digest."""
    files: dict[str, str] = {}
    for path in _own_files(len(sys.modules)):
        with contextlib.suppress(OSError):  # a module of a zip file, or a file that is gone by now
            status = os.stat(path)
            if status.st_size <= LIMIT:
                files[path] = _digest(path, status.st_mtime_ns, status.st_size)
    missing = records.missing_sources(set(files.values()))
    if missing:
        texts: dict[str, bytes] = {}
        for path in [path for path, digest in files.items() if digest in missing]:
            try:
                text = _text(path)
            except OSError:  # removed since its digest was read
                del files[path]
                continue
            files[path] = hashlib.sha256(text).hexdigest()  # as it is now, if it was edited since
            texts[files[path]] = text
        records.keep_sources(texts)
    return files


def restore(plan: Plan, store: Store, *, run: str) -> Plan:
    """Put the code of a run into a folder of its own, and have this process import it from there.

    Returns the plan with the places of its functions there. `UsageError` where the code was not kept.
    """
    if not plan.files and not plan.package:
        raise UsageError(
            f"the code of run {run} was not kept", fix="check its version out, and leave --code original out"
        )
    name = hashlib.sha256(repr((plan.package, sorted(plan.files.items()))).encode()).hexdigest()[:32]
    folder = Path(store.home) / _FOLDER / name
    if plan.package:
        _extract(plan, store, folder)
    else:
        _write(plan.files, store.records, folder)
    sources = [source for source in (plan.source, *(step.source for step in plan.steps)) if source is not None]
    roots = [source.root for source in sources if source.root]
    for root in reversed(dict.fromkeys([*roots, *(os.path.abspath(entry) for entry in sys.path)])):
        moved = _moved(root, folder)
        if os.path.isdir(moved):
            sys.path.insert(0, moved)
    steps = tuple(attrs.evolve(step, source=_moved_source(step.source, folder)) for step in plan.steps)
    source = None if plan.source is None else _moved_source(plan.source, folder)
    return attrs.evolve(plan, source=source, steps=steps)


@functools.lru_cache(maxsize=1)
def _own_files(count: int) -> Sequence[str]:
    """The files of the user's own modules: neither the standard library's, nor installed, nor Stoker's.

    `count` is the number of modules: with another one the files are looked up again.
    """
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return sorted({path for file in files if isinstance(file, str) and (path := _own_path(file))})


@functools.cache
def _own_path(file: str) -> str:
    """The path of a module's file if it is the user's own; else empty. A program has a thousand modules."""
    return os.path.abspath(file) if file.endswith(".py") and is_user_file(file) else ""


@functools.lru_cache(maxsize=4096)
def _digest(path: str, modified: int, size: int) -> str:
    """The digest of a file's text; read again when its status has changed."""
    return hashlib.sha256(_text(path)).hexdigest()


def _text(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _write(files: Mapping[str, str], records: Records, folder: Path) -> None:
    """The files as they were; beside them links to everything else that lies in their folders now."""
    texts = records.sources(files.values())
    missing = [path for path, digest in files.items() if digest not in texts]
    if missing:
        raise StoreError(
            f"the kept text of {missing[0]} is gone from the database",
            fix="check the version out, and leave --code original out",
        )
    folders = {parent for path in files for parent in Path(path).parents}
    roots = {Path(path).parent for path in files}
    for path, digest in files.items():
        target = Path(_moved(path, folder))
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        beside.write_bytes(texts[digest])
        beside.replace(target)
    for root in roots:
        for entry in os.scandir(root) if root.is_dir() else ():
            target = Path(_moved(entry.path, folder))
            skipped = entry.path in files or Path(entry.path) in folders or entry.name == "__pycache__"
            if not skipped and not os.path.lexists(target):
                target.symlink_to(entry.path)


def _extract(plan: Plan, store: Store, folder: Path) -> None:
    """The files of the package that was sent along, where the functions' paths lead to."""
    import tarfile

    from stoker.images import context

    paths = [step.source.path for step in plan.steps if step.source.path]
    paths += [plan.source.path] if plan.source is not None and plan.source.path else []
    package = store.blobs.path(plan.package)
    with tarfile.open(package) as archive:
        names = archive.getnames()
    root = next((path.removesuffix(name) for path in paths for name in names if path.endswith(f"/{name}")), "")
    if not root:
        raise UsageError(
            "the package that was sent along has none of the run's functions",
            fix="check its version out, and leave --code original out",
        )
    context.unpack(Path(package), _moved(root, folder))


def _moved(path: str, folder: Path) -> str:
    return str(folder) + os.path.abspath(path)


def _moved_source(source: FunctionSource, folder: Path) -> FunctionSource:
    """Where a function is in the folder; one of an installed package stays where it is."""
    if not source.path or not os.path.exists(_moved(source.path, folder)):
        return source
    return attrs.evolve(source, path=_moved(source.path, folder), root=_moved(source.root, folder))
