"""The folder of a node in which data is kept: one folder for each listing, whole or absent, named by its identity.

    entries/IDENTITY/files/…      what was brought, read-only
    entries/IDENTITY/record.json  what it is, written before the folder gets its name; its time is the last use
    entries/IDENTITY.part/        what is being brought, or what a killed download left: the next one goes on from it
    entries/.IDENTITY.lock        locked exclusively by who brings, shared by who uses (`images.sharing`)
    room.lock                     locked by who makes room

Several processes may use a folder at the same time, also from several machines, where its file system knows locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import IO, Any, Callable, Final, Iterator, Mapping, Sequence

from stoker.core.data import DataCache, StepData
from stoker.core.errors import Away, BackendError, DiskFull, SettingsError
from stoker.core.units import size_text, value_or
from stoker.core.values import frozen
from stoker.core.words import memory_text
from stoker.images.sharing import lock_path, share, try_lock
from stoker.nodecache.sources import DataListing, Source, SourceFile, is_checked, problem_of
from stoker.store.remote import cache_root

FOLDER: Final = "STOKER_DATA_CACHE"
"""The variable of a node that names the folder, whatever settings say."""
RECORD: Final = "record.json"
_PART: Final = ".part"
_ROOM: Final = "room.json"
"""In a folder that is being brought: the bytes that it will have."""
_LOCKS: Final = "give data_cache a folder on a file system that knows locks"
_SPARE: Final = 2**30
"""Bytes that are left free on the disk at most; of a small disk a twentieth is."""
_ROUNDS: Final = 3
"""How often a process brings an entry that does not stay as it was written, or is removed at once."""
_TRIES: Final = 4
"""How often a file is brought that arrives damaged, or whose place does not answer."""
_CLOCK: Final = 1.5
"""Seconds by which machines that share a file system may see a file's time differently: some keep whole seconds."""
_WAIT: Final = 1.0
"""Seconds before the second try; before each further one twice as many."""


@frozen(kw_only=True)
class Brought:
    """What was done for one entry."""

    bytes: int
    """Those that came from the place itself."""
    checked: int
    """Files whose bytes were held against a digest of their place."""


@frozen(kw_only=True)
class _Kept:
    """Something that may be removed to make room."""

    folder: Path
    used: float
    size: int


class Cache:
    """The cache of one folder. `limit` is its size in bytes; None is the room that the disk has."""

    def __init__(self, folder: Path, limit: int | None = None) -> None:
        self.folder = folder
        self.limit = limit
        self._entries = folder / "entries"

    def entry(self, identity: str) -> Path:
        """Where an entry is, or would be."""
        return self._entries / identity[:40]

    def files(self, identity: str) -> Path:
        """The folder with an entry's files."""
        return self.entry(identity) / "files"

    def record(self, identity: str) -> Mapping[str, Any] | None:
        """What is noted of an entry, if it is there and each of its files is as it was left."""
        record = _read(self.entry(identity) / RECORD)
        if record is None:
            return None
        folder = self.files(identity)
        for path, size, _, changed in record["files"]:
            try:
                status = os.stat(folder / path)
            except OSError:
                return None
            if status.st_size != size or abs(status.st_mtime - changed) > _CLOCK:
                return None
        return record

    def hold(self, identity: str, bring: Callable[[IO[str]], None], waiting: Callable[[], None]) -> IO[str]:
        """A shared lock of an entry, which is there and stays as long as the file is open. `bring` makes it, in a
        process that has the locked file; `waiting` is called where another process does."""
        self._entries.mkdir(parents=True, exist_ok=True)
        rounds = iter(range(_ROUNDS))

        def make(lock: IO[str]) -> None:
            if next(rounds, None) is None:
                what = f"{self.entry(identity)} does not stay as it was written"
                raise BackendError(what, fix="give data_cache a folder that nothing else writes into")
            bring(lock)

        file = share(
            self.entry(identity),
            made=lambda: self.record(identity) is not None,
            make=make,
            waiting=waiting,
            fix=_LOCKS,
        )
        with contextlib.suppress(OSError):  # another user's
            os.utime(self.entry(identity) / RECORD)
        return file

    def bring(self, source: Source, listing: DataListing, data: StepData) -> Brought:
        """Make an entry; the caller holds its lock exclusively. `DiskFull` where there is no room for it."""
        entry = self.entry(listing.identity)
        part = entry.with_name(entry.name + _PART)
        _remove(entry)  # it is not as it was left
        (part / "files").mkdir(parents=True, exist_ok=True)
        known = self._known(listing)
        self._make_room(listing, part, known)
        fetched = _bring_all(source, listing, part / "files", known)
        wanted = {file.path for file in listing.files}
        record = {
            "uri": data.uri,
            "revision": listing.revision,
            "at": listing.at,
            "bytes": listing.size,
            "files": [[file.path, file.size, file.digest, _seal(part / "files" / file.path)] for file in listing.files],
        }
        for folder, _, names in os.walk(part / "files", topdown=False):
            for name in names:
                if os.path.relpath(os.path.join(folder, name), part / "files") not in wanted:
                    os.unlink(os.path.join(folder, name))
            os.chmod(folder, 0o555)
        (part / _ROOM).unlink(missing_ok=True)
        (part / RECORD).write_text(json.dumps(record), encoding="utf-8")
        part.rename(entry)
        return Brought(bytes=fetched, checked=sum(is_checked(file.digest) for file in listing.files))

    def _known(self, listing: DataListing) -> Mapping[str, Path]:
        """Digests of the listing's bytes → files of other entries that have them."""
        wanted = {file.digest for file in listing.files if is_checked(file.digest)}
        found: dict[str, Path] = {}
        for path in self._entries.glob(f"*/{RECORD}"):
            record = _read(path)
            for name, _, digest, _ in record["files"] if record else ():
                if digest in wanted:
                    found[digest] = path.parent / "files" / name
        return found

    # Room

    def _make_room(self, listing: DataListing, part: Path, known: Mapping[str, Path]) -> None:
        """Remove what was used longest ago until there is room for what is still to come; `DiskFull` where that does
        not do. What others are about to bring counts as well."""
        with open(self.folder / "room.lock", "a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            there = sum(os.stat(path).st_size for path in _paths(part / "files"))
            linked = sum(file.size for file in listing.files if file.digest in known)
            missing = max(0, listing.size - there - linked)
            while True:
                kept = self._kept()
                coming = [one for one in kept if one.folder.name.endswith(_PART) and one.folder != part]
                reserved = sum(max(0, _room_of(one.folder) - one.size) for one in coming)
                used = sum(one.size for one in kept if one.folder != part)
                disk = shutil.disk_usage(self.folder)
                short = missing + reserved + min(_SPARE, disk.total // 20) - disk.free
                over = 0 if self.limit is None else used + listing.size - self.limit
                if short <= 0 and over <= 0:
                    break
                # What would not do, were all of it removed, stays.
                if max(short, over) > used or not any(self._evict(one) for one in kept if one.folder != part):
                    raise self._no_room(listing, short, over)
            (part / _ROOM).write_text(json.dumps(listing.size), encoding="utf-8")

    def _no_room(self, listing: DataListing, short: int, over: int) -> DiskFull:
        need = f"{memory_text(listing.size)} are to be brought to {self.folder}"
        if over > 0:
            assert self.limit is not None, "only a limit can be passed"
            what = f"{need}, and all that is in use with it would pass its size of {size_text(self.limit)}"
            return DiskFull(what, fix="give data_cache a larger size, or bring less: include=[…]")
        what = f"{need}, for which its disk lacks {memory_text(short)}; nothing there can be removed"
        return DiskFull(what, fix="give data_cache a folder on a larger disk, free some of this one, or bring less")

    def _kept(self) -> Sequence[_Kept]:
        """Entries and what is being brought, those that were used longest ago first."""
        found = []
        for folder in self._entries.iterdir():
            if folder.name.startswith(".") or not folder.is_dir():
                continue
            record = _read(folder / RECORD)
            with contextlib.suppress(FileNotFoundError):
                if record is None:
                    size = sum(os.stat(path).st_size for path in _paths(folder))
                    found.append(_Kept(folder=folder, used=folder.stat().st_mtime, size=size))
                else:
                    used = (folder / RECORD).stat().st_mtime
                    found.append(_Kept(folder=folder, used=used, size=record["bytes"]))
        return sorted(found, key=lambda one: one.used)

    def _evict(self, one: _Kept) -> bool:
        """Remove something that nobody uses or brings; whether it is gone."""
        entry = one.folder.with_name(one.folder.name.removesuffix(_PART))
        with try_lock(entry, _LOCKS) as locked:
            if not locked:
                return False
            _remove(one.folder)
            if not entry.exists():
                lock_path(entry).unlink(missing_ok=True)
        return True


def place_of(cache: DataCache | None, environ: Mapping[str, str]) -> Cache:
    """The cache of this node by its own variable, else by a step's settings; `SettingsError` where a variable in the
    folder is not set here."""
    settings = cache or DataCache()
    folder = environ.get(FOLDER) or value_or(settings.folder, None)
    if not folder:
        return Cache(Path(cache_root(), "data"), value_or(settings.size, None))
    path = os.path.expanduser(os.path.expandvars(folder))
    if "$" in path or not os.path.isabs(path):
        what = f"data_cache.folder is {folder!r}, which is {path!r} on this node"
        raise SettingsError(what, fix="write an absolute path whose variables are set where the step runs")
    return Cache(Path(path), value_or(settings.size, None))


# One entry


def _bring_all(source: Source, listing: DataListing, folder: Path, known: Mapping[str, Path]) -> int:
    """Bring the files side by side; returns the bytes that came from the place."""
    for parent in {(folder / file.path).parent for file in listing.files}:
        parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(source.workers) as pool:
        futures = [pool.submit(_bring_one, source, file, folder / file.path, known) for file in listing.files]
        try:
            return sum(future.result() for future in as_completed(futures))
        except BaseException:  # raised again
            pool.shutdown(cancel_futures=True)
            raise


def _bring_one(source: Source, file: SourceFile, target: Path, known: Mapping[str, Path]) -> int:
    """Bring one file unless an earlier download or another entry has it; returns the bytes that came from the place."""
    if target.exists() and is_checked(file.digest) and not problem_of(target, file):
        return 0
    partial = target.with_name(f".{target.name}.brought")
    if file.digest in known:
        with contextlib.suppress(OSError):  # removed since, or on a file system without links
            partial.unlink(missing_ok=True)
            os.link(known[file.digest], partial)
            if not problem_of(partial, file):
                partial.replace(target)
                return 0
    problem = ""
    for number in range(_TRIES):
        if number:
            time.sleep(_WAIT * 2 ** (number - 1))
        partial.unlink(missing_ok=True)
        try:
            source.bring(file, partial)
        except Away as error:
            if number == _TRIES - 1:
                raise
            problem = error.message
            continue
        problem = problem_of(partial, file)
        if not problem or (file.digest.startswith("md5:") and _is_only_encrypted(source, file, partial)):
            partial.replace(target)
            return file.size
    fix = "try again (retry=3); if it comes damaged each time, put it there anew, or leave it out: exclude=[…]"
    raise BackendError(f"{file.path} arrives damaged: {problem}", fix=fix)


def _is_only_encrypted(source: Source, file: SourceFile, partial: Path) -> bool:
    return partial.stat().st_size == file.size and source.is_encrypted(file)


def _seal(path: Path) -> float:
    """Make a file read-only; the time of its last change."""
    os.chmod(path, 0o444)
    return path.stat().st_mtime


def _room_of(part: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int((part / _ROOM).read_text(encoding="utf-8"))
    return 0


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("files"), list) else None


def _paths(folder: Path) -> Iterator[str]:
    for parent, _, names in os.walk(folder):
        yield from (os.path.join(parent, name) for name in names)


def _remove(folder: Path) -> None:
    """Remove a folder of read-only folders; its record goes first, so that what an interruption leaves is none."""
    (folder / RECORD).unlink(missing_ok=True)
    for parent, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            os.chmod(parent, stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)
